"""Images from outside: every kind is decoded as a viewer shows it, or refused with the reason."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from hydra_core.data.images import decode_image, stack_images
from hydra_core.data.limits import Limits
from hydra_core.errors import UploadError
from tests.data.make import encode, pixels


@pytest.mark.parametrize("form", ["PNG", "BMP", "TIFF", "PPM"])
def test_lossless_formats_keep_every_pixel(form: str) -> None:
    image = pixels()
    np.testing.assert_array_equal(decode_image(encode(image, form)), image)


def test_webp_and_gif_are_decoded() -> None:
    image = pixels(grey=True)
    np.testing.assert_array_equal(decode_image(encode(pixels(), "WEBP", lossless=True)), pixels())
    np.testing.assert_array_equal(decode_image(encode(image, "GIF"))[..., 0], image)  # a palette becomes RGB


def test_jpeg_is_close() -> None:
    smooth = np.full((16, 16, 3), (200, 60, 20), np.uint8)
    assert np.abs(decode_image(encode(smooth, "JPEG", quality=95)).astype(int) - smooth).max() <= 3


def test_grey_stays_grey_and_one_pixel_is_enough() -> None:
    assert decode_image(encode(pixels(grey=True))).shape == (6, 8)
    assert decode_image(encode(np.full((1, 1, 3), 7, np.uint8))).tolist() == [[[7, 7, 7]]]


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_sixteen_bits_keep_their_order(form: str) -> None:
    wide = np.array([[0, 257, 32896, 65535]], dtype=np.uint16)
    np.testing.assert_array_equal(decode_image(encode(wide, form)), [[0, 1, 128, 255]])


def test_float_images_span_0_to_1() -> None:
    image = Image.fromarray(np.array([[0.0, 0.2, 1.0]], dtype=np.float32))
    np.testing.assert_array_equal(decode_image(encode(image, "TIFF")), [[0, 51, 255]])


def test_float_images_with_nan_are_refused() -> None:
    image = Image.fromarray(np.array([[0.0, np.nan]], dtype=np.float32))
    with pytest.raises(UploadError, match="damaged"):
        decode_image(encode(image, "TIFF"))


def test_transparency_lies_over_white() -> None:
    rgba = np.zeros((1, 3, 4), np.uint8)
    rgba[0, :, :3] = (10, 20, 30)
    rgba[0, :, 3] = (255, 0, 51)  # opaque, clear, a fifth
    want = [[[10, 20, 30], [255, 255, 255], [206, 208, 210]]]
    assert np.abs(decode_image(encode(rgba)).astype(int) - want).max() <= 1


def test_grey_with_transparency_stays_grey() -> None:
    la = Image.merge("LA", [Image.new("L", (2, 1), 50), Image.frombytes("L", (2, 1), b"\xff\x00")])
    np.testing.assert_array_equal(decode_image(encode(la)), [[50, 255]])


def test_palette_with_a_clear_colour() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putdata([0, 1])
    np.testing.assert_array_equal(decode_image(encode(image)), [[[255, 0, 0], [0, 0, 255]]])
    np.testing.assert_array_equal(decode_image(encode(image, transparency=1)), [[[255, 0, 0], [255, 255, 255]]])


def test_cmyk_becomes_rgb() -> None:
    out = decode_image(encode(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG", quality=95))
    assert np.abs(out.astype(int) - (255, 0, 0)).max() <= 6


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_turns_the_image_upright(orientation: int) -> None:
    image = pixels()
    undo = [None, *(getattr(Image.Transpose, t) for t in (
        "FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_90", "TRANSVERSE", "ROTATE_270"
    ))][orientation - 1]  # fmt: skip
    stored = Image.fromarray(image) if undo is None else Image.fromarray(image).transpose(undo)
    exif = Image.Exif()
    exif[0x0112] = orientation
    np.testing.assert_array_equal(decode_image(encode(stored, exif=exif.tobytes())), image)


@pytest.mark.parametrize("form", ["GIF", "WEBP"])
def test_the_first_frame_of_an_animation(form: str) -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    data = encode(frames[0], form, save_all=True, append_images=frames[1:], lossless=True)
    assert np.abs(decode_image(data).astype(int) - (255, 0, 0)).max() <= 2


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF"])
def test_truncated_images_are_refused(form: str) -> None:
    data = encode(pixels(height=64, width=64), form)
    with pytest.raises(UploadError) as error:
        decode_image(data[: len(data) // 2])
    assert error.value.problem in ("truncated image", "damaged image", "not an image")


@pytest.mark.parametrize(
    "data", [b"not an image at all", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"%PDF-1.7", b"\xff\xd8\xff"]
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(UploadError, match="not an image"):
        decode_image(data)


def test_empty_bytes_say_so() -> None:
    with pytest.raises(UploadError, match="empty file"):
        decode_image(b"")


def test_formats_that_are_not_listed_are_refused() -> None:
    with pytest.raises(UploadError, match="not an image"):
        decode_image(encode(pixels(), "TGA"))
    with pytest.raises(UploadError, match="not an image"):  # PostScript would start an interpreter
        decode_image(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 1 1\n")


@pytest.mark.parametrize("side", [9_000, 60_000, 2_000_000])
def test_a_decompression_bomb_is_refused_before_it_is_decoded(side: int) -> None:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    bomb = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
    with pytest.raises(UploadError, match="too many pixels"):
        decode_image(bomb)


def test_large_images_shrink_in_proportion_and_small_ones_do_not() -> None:
    limits = Limits(side=32)
    flat = np.full((64, 128, 3), 90, np.uint8)
    out = decode_image(encode(flat), limits)
    assert out.shape == (32, 64, 3)
    assert (out == 90).all()
    assert decode_image(encode(pixels(height=32, width=500)), limits).shape == (32, 500, 3)


def test_large_jpegs_are_decoded_at_a_fraction() -> None:
    out = decode_image(encode(np.full((512, 1024, 3), 90, np.uint8), "JPEG"), Limits(side=32))
    assert out.shape == (32, 64, 3)
    assert np.abs(out.astype(int) - 90).max() <= 2


def test_images_of_one_size_are_stacked() -> None:
    assert stack_images([pixels(0), pixels(1)]).shape == (2, 6, 8, 3)
    ragged = stack_images([pixels(0), pixels(1, height=9)])
    assert ragged.dtype == object
    assert ragged[1].shape == (9, 8, 3)
