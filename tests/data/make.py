"""Small files for the tests of this folder: sound ones and hostile ones."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image


def pixels(seed: int = 0, height: int = 6, width: int = 8, grey: bool = False) -> np.ndarray:
    """A random uint8 image, (H, W, 3) or (H, W)."""
    shape = (height, width) if grey else (height, width, 3)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def encode(image: np.ndarray | Image.Image, form: str = "PNG", **options: Any) -> bytes:
    image = image if isinstance(image, Image.Image) else Image.fromarray(image)
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def png(seed: int = 0) -> bytes:
    return encode(pixels(seed))


def zipped(files: Mapping[str, bytes], **options: Any) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", **options) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def class_files(classes: tuple[str, ...] = ("cat", "dog"), count: int = 6, under: str = "") -> dict[str, bytes]:
    return {f"{under}{c}/{i}.png": png(100 * k + i) for k, c in enumerate(classes) for i in range(count)}


def safetensors(header: Mapping[str, Any] | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    """A file of that format with any header, true or not."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data
