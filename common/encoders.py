"""Frozen encoders: images in, embeddings out."""

import contextlib
import logging
import math
import os
import sys
import time
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # what DINOv2 was trained with


def refuse(sentence):
    """End the program as its flags do: with a sentence, and exit code 2."""
    print(sentence, file=sys.stderr)
    raise SystemExit(2)


def make_encoder(args, device):
    """The encoder that the flags ask for; says how long DINO will take."""
    if args.encoder != "dino":
        return {"texture": TextureEncoder, "random": RandomEncoder}[args.encoder]().to(device)
    if args.noisy_tv and args.authors_preprocessing:
        refuse("--authors-preprocessing cuts parts of --noisy-tv off: type only one of the two.")
    encoder = DinoEncoder(args.dino_model, device, args.authors_preprocessing)
    speed = encoder.images_per_second()
    hours = args.total_timesteps / speed / 3600
    print(f"{args.dino_model} encodes {speed:.0f} images/s on this {device.type}: {hours:.1f} hours of the whole run.")
    return encoder


class FrozenNetwork(nn.Module):
    """A network that is never trained, on the 42 x 42 frames that the policy sees, with pixels from 0 to 1."""

    image_shape = (3, 42, 42)

    def freeze(self):
        for layer in self.modules():
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                nn.init.orthogonal_(layer.weight, math.sqrt(2))
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
        self.to(memory_format=torch.channels_last)  # faster on CPUs
        self.requires_grad_(False)

    def prepare(self, frames, obs):
        """What the encoder sees of the (N, H, W, 3) frames is what the policy sees, the (N, 3, 42, 42) `obs`."""
        return obs

    def forward(self, images):
        """images: (B, 3, 42, 42) uint8 -> (B, embedding_size)"""
        chunks = images.split(128)  # small enough for the activations to stay in the cache
        return torch.cat([self.embed(c.to(torch.float32, memory_format=torch.channels_last) / 255) for c in chunks])


class TextureEncoder(FrozenNetwork):
    """One random convolution, and of each filter the mean and the deviation over the upper and the lower half.

    Pooling makes a turn on the spot look less like a move than it does to the whole image, and the means never vanish,
    so that the direction of an embedding, all that the cosine sees, is well defined for dark frames, too.
    """

    embedding_size = 128

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 32, 3, stride=2, padding=1, bias=False)
        self.freeze()

    def embed(self, pixels):
        statistics = []
        for half in F.elu(self.convolution(pixels)).chunk(2, dim=2):  # (B, 32, 11, 21) and (B, 32, 10, 21)
            mean = half.mean((2, 3), keepdim=True)
            deviation = (half - mean).square().mean((2, 3)).sqrt()  # half.std() takes twice as long
            statistics += [mean.flatten(1), deviation]
        return torch.cat(statistics, dim=1)


class RandomEncoder(FrozenNetwork):
    """The paper's random network: the policy's convolutions and a linear layer.

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
        self.freeze()

    def embed(self, pixels):
        return self.network(pixels)


class DinoEncoder:
    """DINOv2, or another vision model of the transformers library, with the class token (else the pooled output).

    Frames are scaled to a square as a whole and normalised with ImageNet's mean and deviation, as DINOv2 was trained.
    `authors_preprocessing` scales the shorter side, cuts the middle out, and does not normalise.
    """

    def __init__(self, name, device, authors_preprocessing=False):
        self.name, self.device, self.authors_preprocessing = name, device, authors_preprocessing
        self.model = load_vision_model(name).to(device).eval().requires_grad_(False)
        config = self.model.config
        if config.model_type.startswith("dinov2"):
            self.image_size = 196 if config.hidden_size >= 1024 else 98  # multiples of the patch size, 14; the paper's
        else:
            self.image_size = getattr(config, "image_size", None) or 224
        self.checksum = sum(parameter.double().abs().sum().item() for parameter in self.model.parameters())
        parameter_names = [parameter.split(".")[-1] for parameter, _ in self.model.named_parameters()]
        self.has_class_token = "cls_token" in parameter_names or "class_embedding" in parameter_names
        self.image_shape = (3, self.image_size, self.image_size)
        try:
            self.embedding_size = self(torch.zeros(1, *self.image_shape, dtype=torch.uint8)).shape[1]
        except (AttributeError, RuntimeError, TypeError, ValueError):
            refuse(
                f"--dino-model {name}: a {config.model_type} model gives neither a class token nor a pooled output for "
                f"an image of {self.image_size} pixels; type --dino-model facebook/dinov2-small."
            )

    def prepare(self, frames, obs):
        """(N, H, W, 3) uint8 frames of any size -> (N, 3, S, S) uint8 images, sharper than the policy's `obs`"""
        images = torch.from_numpy(frames).permute(0, 3, 1, 2)
        height, width = images.shape[2:]
        size = (self.image_size, self.image_size)
        if self.authors_preprocessing:
            scale = self.image_size / min(height, width)
            size = (round(scale * height), round(scale * width))
        images = F.interpolate(images, size, mode="bicubic", antialias=True)
        top, left = (size[0] - self.image_size) // 2, (size[1] - self.image_size) // 2
        return images[:, :, top : top + self.image_size, left : left + self.image_size]

    @torch.no_grad()
    def __call__(self, images):
        """images: (B, 3, S, S) uint8 -> (B, D)"""
        embeddings = []
        for chunk in images.split(32 if self.device.type == "cpu" else 256):
            pixels = chunk.to(self.device).float() / 255
            if not self.authors_preprocessing:
                mean, std = (pixels.new_tensor(values)[:, None, None] for values in (IMAGENET_MEAN, IMAGENET_STD))
                pixels = (pixels - mean) / std
            outputs = self.model(pixels)
            embeddings.append(
                outputs.last_hidden_state[:, 0] if self.has_class_token else outputs.pooler_output.flatten(1)
            )
        return torch.cat(embeddings)

    def images_per_second(self):
        images = torch.zeros(32, *self.image_shape, dtype=torch.uint8)
        self(images)  # the first call is slower
        start = time.perf_counter()
        self(images).cpu()
        return len(images) / (time.perf_counter() - start)

    def state_dict(self):
        """Not the weights, which are large and never change, but enough to notice other ones."""
        return {"checksum": self.checksum, "authors_preprocessing": self.authors_preprocessing}

    def load_state_dict(self, state):
        if not math.isclose(state["checksum"], self.checksum, rel_tol=1e-6):
            refuse(f"--dino-model {self.name}: the run used other weights; type the model it was started with.")
        if state["authors_preprocessing"] != self.authors_preprocessing:
            refuse("--authors-preprocessing cannot change in a resumed run: start a new one without --resume.")


def load_vision_model(name):
    """The model in a folder made by `save_pretrained`, in the hub's cache, or else from the hub."""
    try:
        from transformers import AutoModel
        from transformers.utils import logging as transformers_logging
    except ImportError:
        refuse("--encoder dino needs the package transformers: type pip install -r requirements.txt.")
    transformers_logging.disable_progress_bar()
    is_folder = os.path.isdir(name)
    try:
        with quiet("transformers", "huggingface_hub"):
            try:
                model, report = AutoModel.from_pretrained(name, output_loading_info=True, local_files_only=True)
            except OSError:
                if is_folder:
                    raise
                model, report = AutoModel.from_pretrained(name, output_loading_info=True)
    except Exception as error:  # whatever a damaged file or a missing network makes the library raise
        if is_folder or Path(name).is_absolute():
            problem = f"holds no model that can be read ({first_line(error)})" if is_folder else "is not there"
            advice = "give a folder that transformers' save_pretrained wrote"
        else:
            problem = f"could not be loaded from the hub ({first_line(error)})"
            advice = (
                "without a network, fetch it elsewhere with 'hf download "
                f"{name} --local-dir dino' and type --dino-model dino"
            )
        refuse(f"--dino-model {name} {problem}: {advice}.")
    missing = [key for key in report["missing_keys"] if not key.startswith("pooler")]
    if missing:
        refuse(f"--dino-model {name} lacks {len(missing)} of its weights, such as {missing[0]}: fetch it again.")
    if model.main_input_name != "pixel_values":
        refuse(
            f"--dino-model {name} is a {model.config.model_type} model, which does not take images alone: "
            "type --dino-model facebook/dinov2-small."
        )
    return model


@contextlib.contextmanager
def quiet(*logger_names):
    """What goes wrong is told in one sentence, not in the libraries' retries."""
    loggers = [logging.getLogger(name) for name in logger_names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels):
            logger.setLevel(level)


def first_line(error):
    if isinstance(error, RuntimeError):
        return "its weights do not fit its config.json"
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
