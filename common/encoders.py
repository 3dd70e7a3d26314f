"""Frozen encoders: observations in, embeddings out."""

import math

import torch
import torch.nn as nn


class RandomEncoder(nn.Module):
    """A random convolutional network: 42 x 42 frames to 384 numbers.

    The orthogonal weights matter: with PyTorch's default initialisation all embeddings point the same way, and no
    threshold on their cosine similarity can tell them apart.
    """

    embedding_size = 384

    def __init__(self):
        super().__init__()
        layers = []
        for channels in (3, 32, 32, 32):
            layers += [nn.Conv2d(channels, 32, 3, stride=2, padding=1), nn.ELU(inplace=True)]
        self.network = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 3 * 3, self.embedding_size))
        for layer in self.network:
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                nn.init.orthogonal_(layer.weight, math.sqrt(2))
                nn.init.zeros_(layer.bias)
        self.network.to(memory_format=torch.channels_last)  # faster on CPUs
        self.requires_grad_(False)

    def forward(self, frames):
        """frames: (B, 3, 42, 42) uint8 -> (B, 384)"""
        embeddings = []
        for chunk in frames.split(128):  # small enough for the activations to stay in the cache
            embeddings.append(self.network(chunk.to(torch.float32, memory_format=torch.channels_last) / 255))
        return torch.cat(embeddings)
