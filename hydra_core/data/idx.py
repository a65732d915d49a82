"""Fashion-MNIST's IDX files, as the Debian package `dataset-fashion-mnist` installs them."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np

from hydra_core.errors import DataError

PACKAGE = "dataset-fashion-mnist"
FOLDER = Path("/usr/share/datasets/fashion-mnist")
FILES = {"train": "train", "test": "t10k"}


def read_split(split: str, folder: Path | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, 28, 28) uint8 and labels (N,) uint8 of the "train" or the "test" split.

    Args:
        split: "train" (60,000) or "test" (10,000).
        folder: where the four .gz files lie; None: $FASHION_MNIST, else where the package puts them.

    Raises:
        DataError: a file is missing or is not what it should be; the text names the package.
    """
    folder = folder or Path(os.environ.get("FASHION_MNIST", FOLDER))
    if split not in FILES:
        raise DataError("Fashion-MNIST has no such split", expected=" or ".join(FILES), got=split)
    images = read_idx(folder / f"{FILES[split]}-images-idx3-ubyte.gz")
    labels = read_idx(folder / f"{FILES[split]}-labels-idx1-ubyte.gz")
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise DataError(
            f"Fashion-MNIST's {split} split does not fit together", expected="a label an image", got=labels.shape
        )
    return images, labels


def read_idx(path: Path) -> np.ndarray:
    """One gzipped IDX file of unsigned bytes: magic 0, 0, 8, rank; big-endian sizes; then the bytes."""
    if not path.is_file():
        raise DataError(
            f"{path.name} is not installed",
            expected="the files of Fashion-MNIST",
            hint=f"Install the Debian package: apt-get install {PACKAGE} (or set FASHION_MNIST to a folder with them).",
        )
    try:
        raw = gzip.decompress(path.read_bytes())
    except (OSError, EOFError) as error:
        raise DataError(f"{path.name} cannot be unpacked", expected="a whole gzip file", got=str(error)) from None
    rank = raw[3] if raw[:3] == b"\0\0\x08" and len(raw) > 3 else 0
    shape = tuple(int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(rank))
    body = np.frombuffer(raw, np.uint8, offset=min(len(raw), 4 + 4 * rank))
    if not rank or len(body) != np.prod(shape):
        raise DataError(
            f"{path.name} is damaged", expected="an IDX file of bytes", got=f"{len(body)} bytes for shape {shape}"
        )
    return body.reshape(shape)
