"""Images that are nothing: the outliers of training (outlier exposure, Hendrycks et al., 2019).

All are drawn by formulas; no image of any OOD set is used. The validation sets "noise" and "textures" come from the
same formulas with other seeds, so for a model trained with these outliers only the other sets tell anything new.
"""

from __future__ import annotations

import numpy as np
from scipy.ndimage import gaussian_filter

from hydra_core.training.demo_data import SIZE, noise, textures


def outliers(count: int, seed: int = 0) -> np.ndarray:
    """Noise, textures, strokes and blobs in equal shares and random order.

    Returns:
        images (N, 28, 28) uint8 with N = `count` rounded down to a multiple of four.
    """
    rng = np.random.default_rng([seed, 77])
    each = count // 4
    kinds = [
        noise(1000 + seed, each)["images"],
        textures(2000 + seed, each)["images"],
        strokes(each, rng),
        blobs(each, rng),
    ]
    return rng.permutation(np.concatenate(kinds))


def strokes(count: int, rng: np.random.Generator) -> np.ndarray:
    """One to three smooth random curves of random width and brightness on black, (N, 28, 28) uint8."""
    y, x = np.mgrid[:SIZE, :SIZE]
    t = np.linspace(0, 1, 60)
    bezier = np.stack([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3])  # (4, 60)
    out = np.zeros((count, SIZE, SIZE))
    for canvas in out:
        for _ in range(rng.integers(1, 4)):
            cx, cy = rng.uniform(3, SIZE - 3, (2, 4)) @ bezier
            away = np.sqrt(((x[..., None] - cx) ** 2 + (y[..., None] - cy) ** 2).min(-1))  # (28, 28) pixels
            ink = np.clip(rng.uniform(0.8, 2.5) + 0.5 - away, 0, 1) * rng.uniform(90, 255)
            np.maximum(canvas, ink, out=canvas)
    return out.astype(np.uint8)


def blobs(count: int, rng: np.random.Generator) -> np.ndarray:
    """Random shapes with soft shading, most of them on black, (N, 28, 28) uint8."""
    shade = blurred(count, rng, 4.0)
    ground = np.where(rng.random((count, 1, 1)) < 0.7, 0.0, rng.uniform(0, 255, (count, 1, 1)))
    return np.where(shapes(count, rng), 60 + 195 * shade, ground).astype(np.uint8)


def shapes(count: int, rng: np.random.Generator, share: float = 0.35) -> np.ndarray:
    """Random shapes (N, 28, 28) bool: the upper `share` of smooth fields, coarse and fine."""
    parts = np.array_split(np.arange(count), 4)
    field = np.concatenate([blurred(len(part), rng, width) for part, width in zip(parts, (1.0, 2.0, 3.0, 4.0))])
    return field >= np.quantile(field, 1 - share, axis=(1, 2), keepdims=True)


def blurred(count: int, rng: np.random.Generator, width: float) -> np.ndarray:
    """Smooth random fields (N, 28, 28), each from 0 to 1; `width` in pixels."""
    field = gaussian_filter(rng.random((count, SIZE, SIZE)), (0, width, width))
    low, high = field.min((1, 2), keepdims=True), field.max((1, 2), keepdims=True)
    return (field - low) / (high - low)
