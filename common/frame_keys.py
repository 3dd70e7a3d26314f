"""What it means to see the same frame again: keys that can be counted."""

import torch
import torch.nn as nn


class SimHash(nn.Module):
    """A key of `num_bits` bits: on which random patterns of +1 and -1 is the projection of the frame positive?

    Similar frames often share a key, the more often the fewer bits. Half of a pattern is +1 and half is -1, so
    brightness, which all pixels share, cancels out. Pixels are integers below 256, so the sums are exact in float32:
    equal frames have equal keys, in whatever batch and on whatever device.
    """

    def __init__(self, num_bits):
        super().__init__()
        ranks = torch.rand(num_bits, 3 * 42 * 42).argsort(1)
        self.register_buffer("patterns", (ranks % 2 * 2 - 1).float())

    def forward(self, frames):
        """frames (T, N, 3, 42, 42) uint8 -> T lists of N keys"""
        keys = []
        for chunk in frames.flatten(0, 1).split(1024):
            bits = chunk.flatten(1).float() @ self.patterns.T > 0  # (B, num_bits)
            keys.append((bits.long() << torch.arange(bits.shape[1], device=bits.device)).sum(1))
        return torch.cat(keys).view(frames.shape[:2]).tolist()


def exact_keys(frames):
    """frames (T, N, 3, 42, 42) uint8 -> T lists of N keys, equal only where all pixels are"""
    return [[frame.tobytes() for frame in row] for row in frames.cpu().numpy()]
