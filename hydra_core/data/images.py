"""One image from bytes of unknown origin -> a uint8 array, or a reason why not."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageOps

from hydra_core.data.limits import Limits
from hydra_core.errors import UploadError

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
ENDINGS = frozenset(  # compared in lower case
    {".png", ".apng", ".jpg", ".jpeg", ".jpe", ".jfif", ".webp", ".gif", ".bmp", ".dib", ".tif", ".tiff"}
    | {".ppm", ".pgm", ".pbm", ".pnm"}
)

_WIDE = {"I;16", "I;16L", "I;16B", "I;16N", "I", "F"}
_ALPHA = {"LA", "La", "PA", "RGBA", "RGBa"}


def decode_image(data: bytes, limits: Limits | None = None) -> np.ndarray:
    """Decode the first frame of an image, upright as its EXIF says.

    The format is found by content, never by a name. Transparency is laid over white, wide values
    (16 bit, float) are brought to 8 bit, CMYK and palettes become RGB, grey stays grey.

    Returns:
        uint8, (H, W) grey or (H, W, 3) RGB. A shorter side above `limits.side` is shrunk to it.

    Raises:
        UploadError: not an image of a known format, truncated, damaged or too large; its `problem`
            says which in a few words.
    """
    limits = limits or Limits()
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)  # reads the header only
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_large(limits) from None
    except Exception:  # plugins raise many kinds on hostile headers
        raise UploadError("not an image" if data else "empty file", expected=", ".join(FORMATS)) from None
    with image:
        # our own bound is lower than Pillow's warning, so its warning never decides (and needs no global filter)
        if image.width * image.height > limits.pixels:
            raise _too_large(limits, image.size)
        try:
            return _pixels(image, limits.side)
        except MemoryError:
            raise _too_large(limits, image.size) from None
        except Exception as error:
            truncated = "truncated" in str(error).lower() or "unexpected end" in str(error).lower()
            raise UploadError("truncated image" if truncated else "damaged image") from error


def _too_large(limits: Limits, size: tuple[int, int] | None = None) -> UploadError:
    got = f"{size[0]} x {size[1]}" if size else "far more"
    return UploadError("too many pixels", expected=f"at most {limits.pixels:,} pixels", got=got)


def _pixels(image: Image.Image, side: int) -> np.ndarray:
    """Decode, turn upright, shrink, flatten -> (H, W) or (H, W, 3) uint8."""
    if image.format == "JPEG" and min(image.size) >= 2 * side:
        image.draft(None, (side, side))  # decode at a fraction of the size, never below `side`
    image.seek(0)
    image.load()
    image = _upright(image)
    if image.mode in _WIDE:
        image = Image.fromarray(_to_8_bit(np.asarray(image)))
    return np.array(_shrink(_flatten(image), side), dtype=np.uint8)


def _upright(image: Image.Image) -> Image.Image:
    """Turned as its EXIF orientation says; a damaged EXIF block turns nothing."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:
        return image


def _flatten(image: Image.Image) -> Image.Image:
    """Mode L or RGB; transparent parts become white."""
    if image.mode in _ALPHA or "transparency" in image.info:
        grey = image.mode in ("L", "LA", "La", "1")
        layer = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
        return image.convert("L" if grey else "RGB")
    if image.mode in ("L", "RGB"):
        return image
    return image.convert("L" if image.mode == "1" else "RGB")


def _shrink(image: Image.Image, side: int) -> Image.Image:
    scale = side / min(image.size)
    if scale >= 1:
        return image
    width, height = (max(1, round(n * scale)) for n in image.size)
    return image.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=3.0)


def _to_8_bit(values: np.ndarray) -> np.ndarray:
    """Grey values of any width -> uint8.

    0 ... 65535 is taken as the range of 16-bit values and 0 ... 1 as that of floats; values outside
    their range are stretched from their own minimum and maximum.
    """
    wide = values.astype(np.float64)
    if not np.isfinite(wide).all():
        raise ValueError("values are not finite")
    low, high = wide.min(), wide.max()
    top = 1.0 if values.dtype.kind == "f" else 65535.0
    if low < 0 or high > top:
        wide, top = wide - low, max(high - low, 1e-12)
    return np.rint(wide * (255.0 / top)).astype(np.uint8)


def stack_images(images: Sequence[np.ndarray]) -> np.ndarray:
    """(N, H, W) or (N, H, W, 3) where all shapes agree, else an object array (N,) of images."""
    if images and all(image.shape == images[0].shape for image in images):
        return np.stack(images)
    out = np.empty(len(images), dtype=object)
    for i, image in enumerate(images):
        out[i] = image
    return out
