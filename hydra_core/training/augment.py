"""Augmentation of whole batches (B, C, H, W), drawn from a generator so that it repeats by seed."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F


def shift(x: torch.Tensor, pixels: int, generator: torch.Generator) -> torch.Tensor:
    """Move each image by up to `pixels` in both directions; the border is repeated."""
    b, c, h, w = x.shape
    padded = F.pad(x, (pixels,) * 4, mode="replicate")
    top = torch.randint(0, 2 * pixels + 1, (b, 1, 1, 1), generator=generator)
    left = torch.randint(0, 2 * pixels + 1, (b, 1, 1, 1), generator=generator)
    rows = (top + torch.arange(h).view(1, 1, h, 1)).expand(b, c, h, padded.shape[-1])
    columns = (left + torch.arange(w).view(1, 1, 1, w)).expand(b, c, h, w)
    return padded.gather(2, rows).gather(3, columns)


def flip(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Mirror every second image, left to right."""
    mirrored = torch.rand(len(x), 1, 1, 1, generator=generator) < 0.5
    return torch.where(mirrored, x.flip(-1), x)


def erase(x: torch.Tensor, chance: float, generator: torch.Generator, largest: float = 0.4) -> torch.Tensor:
    """Set one rectangle of some images to the image's own mean (random erasing).

    Args:
        x: (B, C, H, W).
        chance: share of the images that lose a rectangle.
        largest: longest side of the rectangle, as a share of the image's side.
    """
    b, _, h, w = x.shape
    draw = torch.rand(5, b, 1, 1, 1, generator=generator)
    inside = (
        (draw[0] < chance) & _span(draw[1], draw[2], h, largest, dim=2) & _span(draw[3], draw[4], w, largest, dim=3)
    )
    return torch.where(inside, x.mean((1, 2, 3), keepdim=True), x)


def _span(start: torch.Tensor, length: torch.Tensor, size: int, largest: float, dim: int) -> torch.Tensor:
    """Where the pixel index lies inside each image's span: broadcasts along `dim`."""
    shape = [1, 1, 1, 1]
    shape[dim] = size
    pixel = torch.arange(size).view(shape)
    long = size * (0.1 + (largest - 0.1) * length)
    first = start * (size - long)
    return (pixel >= first) & (pixel < first + long)


def mixup(x: torch.Tensor, alpha: float, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Blend the batch with a shuffled copy of itself (Zhang et al., 2018).

    Returns:
        (blended batch, permutation, weight of the unshuffled part).
    """
    seed = int(torch.randint(0, 2**31, (1,), generator=generator))
    weight = float(np.random.default_rng(seed).beta(alpha, alpha))  # torch's Beta takes no generator
    order = torch.randperm(len(x), generator=generator)
    return x.mul(weight).add(x[order], alpha=1 - weight), order, weight
