"""Sound files with random damage: the readers either read them or raise an error that is fit to be shown."""

from __future__ import annotations

import contextlib
import io

import numpy as np
import pytest
import safetensors.torch
import torch

from hydra_core.data.checkpoints import read_safetensors
from hydra_core.data.images import decode_image
from hydra_core.data.limits import Limits
from hydra_core.data.sources import open_data
from hydra_core.errors import CheckpointError, DataError
from tests.data.make import class_files, encode, pixels, zipped

ROUNDS = 150
LIMITS = Limits(pixels=10_000_000, memory_bytes=50_000_000, file_bytes=20_000_000)


def damaged(data: bytes, seed: int) -> bytes:
    """A few bytes changed, a piece cut out or doubled, or the end cut off."""
    rng = np.random.default_rng(seed)
    out = bytearray(data)
    for _ in range(rng.integers(1, 6)):
        out[rng.integers(len(out))] = rng.integers(256)
    a, b = sorted(rng.integers(0, len(out), 2).tolist())
    match seed % 4:
        case 1:
            del out[a:b]
        case 2:
            out[a:a] = out[a : min(b, a + 64)]
        case 3:
            del out[max(1, b) :]
    return bytes(out)


def npz() -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, x=pixels(height=4, width=4)[None].repeat(6, 0), y=np.arange(6) % 2)
    return buffer.getvalue()


SOURCES = {
    "zip": zipped(class_files(count=2)),
    "npz": npz(),
    "csv": 'text,label\nälpha,a\n"b, c",2\nd;e,\n'.encode() * 3,
    "jsonl": b'{"text": "a", "label": 1}\n{"text": "b", "label": "x"}\n' * 3,
}


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow tells of broken TIFF tags
@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "PPM"])
def test_damaged_images(form: str) -> None:
    data = encode(pixels(height=24, width=20), form)
    read = 0
    for seed in range(ROUNDS):
        with contextlib.suppress(DataError):
            image = decode_image(damaged(data, seed), LIMITS)
            assert image.dtype == np.uint8
            assert image.ndim == 2 or image.shape[2:] == (3,)
            read += 1
    assert read < ROUNDS  # the damage is real


@pytest.mark.parametrize("kind", SOURCES)
def test_damaged_sources(kind: str) -> None:
    whole = 0
    for seed in range(ROUNDS):
        with contextlib.suppress(DataError):
            samples, report = open_data(damaged(SOURCES[kind], seed), limits=LIMITS)
            assert report.read == len(samples) <= report.found
            whole += not report.counts
    assert whole < ROUNDS


def test_damaged_weights() -> None:
    data = safetensors.torch.save({"a": torch.arange(6.0).reshape(2, 3), "b": torch.zeros(3, dtype=torch.int64)})
    refused = 0
    for seed in range(4 * ROUNDS):
        try:
            assert all(isinstance(t, torch.Tensor) for t in read_safetensors(damaged(data, seed)).values())
        except CheckpointError:
            refused += 1
    assert refused > ROUNDS
