"""Common corruptions of images at five severities: an ID set becomes a shifted one.

After Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and
Perturbations" (ICLR 2019). Their strengths for CIFAR-10-C (32 pixels) and ImageNet-C (224 pixels) are
the anchors, number by number as their code has them (github.com/hendrycks/robustness, ImageNet-C:
create_c/make_cifar_c.py and imagenet_c/corruptions.py); between these sizes a strength is interpolated in
the logarithm of the shorter side (fill-in). Fog's clouds are octaves of noise instead of their
diamond-square fractal, with the same roughness. The public packages of these corruptions are unmaintained
or need OpenCV and scikit-image; numpy and Pillow do.
"""

from __future__ import annotations

import hashlib
import io
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image

from hydra_core.data.images import stack_images
from hydra_core.data.report import Watch
from hydra_core.data.sets import DataBundle, SampleSet, Shift
from hydra_core.errors import DataError, UnknownNameError
from hydra_core.progress import Progress, step_of

SEVERITIES = (1, 2, 3, 4, 5)
SMALL, LARGE = 32, 224  # pixels for which the two tables of strengths were made

Strengths = tuple[float, float, float, float, float]
Change = Callable[..., np.ndarray]  # (image, one strength or more, generator) -> image


@dataclass(frozen=True)
class Corruption:
    """One corruption: how it is shown, its strengths at 32 and 224 pixels, and what it does.

    `change` takes a float64 image in 0 ... 1, (H, W) or (H, W, 3), its strengths and a generator. `small` and
    `large` hold one row of five severities for each of its strengths.
    """

    label: str
    small: tuple[Strengths, ...]
    large: tuple[Strengths, ...]
    change: Change

    def strengths(self, severity: int, side: int) -> tuple[float, ...]:
        """The strengths for images whose shorter side has `side` pixels."""
        share = math.log(side / SMALL) / math.log(LARGE / SMALL) if side > 0 else 0.0
        share = min(1.0, max(0.0, share))
        pairs = zip(self.small, self.large, strict=True)
        return tuple(a[severity - 1] ** (1 - share) * b[severity - 1] ** share for a, b in pairs)


CORRUPTIONS: dict[str, Corruption] = {}


def _register(name: str, label: str, *rows: Strengths) -> Callable[[Change], Change]:
    """`rows`: for each strength the five at 32 pixels, then the five at 224."""

    def keep(change: Change) -> Change:
        CORRUPTIONS[name] = Corruption(label, rows[::2], rows[1::2], change)
        return change

    return keep


@_register("gaussian_noise", "Gaussian noise", (0.04, 0.06, 0.08, 0.09, 0.10), (0.08, 0.12, 0.18, 0.26, 0.38))
def _gaussian_noise(x: np.ndarray, sigma: float, rng: np.random.Generator) -> np.ndarray:
    return x + rng.normal(scale=sigma, size=x.shape)


@_register("shot_noise", "Shot noise", (500, 250, 100, 75, 50), (60, 25, 12, 5, 3))
def _shot_noise(x: np.ndarray, photons: float, rng: np.random.Generator) -> np.ndarray:
    return rng.poisson(x * photons) / photons


@_register("impulse_noise", "Impulse noise", (0.01, 0.02, 0.03, 0.05, 0.07), (0.03, 0.06, 0.09, 0.17, 0.27))
def _impulse_noise(x: np.ndarray, amount: float, rng: np.random.Generator) -> np.ndarray:
    hit, salt = rng.random(x.shape) < amount, rng.random(x.shape) < 0.5
    return np.where(hit, salt.astype(x.dtype), x)


@_register("gaussian_blur", "Gaussian blur", (0.4, 0.6, 0.7, 0.8, 1.0), (1, 2, 3, 4, 6))
def _gaussian_blur(x: np.ndarray, sigma: float, rng: np.random.Generator) -> np.ndarray:
    from scipy.ndimage import gaussian_filter

    sigma *= max(1.0, min(x.shape[:2]) / LARGE)  # larger images lose the same share of detail
    return gaussian_filter(x, (sigma, sigma) + (0,) * (x.ndim - 2), mode="nearest", truncate=4)


@_register("brightness", "Brightness", (0.05, 0.1, 0.15, 0.2, 0.3), (0.1, 0.2, 0.3, 0.4, 0.5))
def _brightness(x: np.ndarray, amount: float, rng: np.random.Generator) -> np.ndarray:
    if x.ndim == 2:
        return x + amount
    # V of HSV grows, hue and saturation stay: all channels are scaled by the same factor
    value = x.max(axis=2, keepdims=True)
    lifted = np.clip(value + amount, 0, 1)
    return np.where(value > 0, x * lifted / np.maximum(value, 1e-12), lifted)


@_register("contrast", "Contrast", (0.75, 0.5, 0.4, 0.3, 0.15), (0.4, 0.3, 0.2, 0.1, 0.05))
def _contrast(x: np.ndarray, kept: float, rng: np.random.Generator) -> np.ndarray:
    mean = x.mean(axis=(0, 1), keepdims=True)
    return (x - mean) * kept + mean


@_register("jpeg", "JPEG", (80, 65, 58, 50, 40), (25, 18, 15, 10, 7))
def _jpeg(x: np.ndarray, quality: float, rng: np.random.Generator) -> np.ndarray:
    buffer = io.BytesIO()
    Image.fromarray(_to_uint8(x)).save(buffer, "JPEG", quality=round(quality))
    with Image.open(buffer) as image:
        return np.asarray(image, dtype=np.float64) / 255


@_register("pixelate", "Pixelate", (0.95, 0.9, 0.85, 0.75, 0.65), (0.6, 0.5, 0.4, 0.3, 0.25))
def _pixelate(x: np.ndarray, scale: float, rng: np.random.Generator) -> np.ndarray:
    image = Image.fromarray(_to_uint8(x))
    small = (max(1, int(image.width * scale)), max(1, int(image.height * scale)))
    coarse = image.resize(small, Image.Resampling.BOX).resize(image.size, Image.Resampling.NEAREST)
    return np.asarray(coarse, dtype=np.float64) / 255


@_register(
    "fog", "Fog", (0.2, 0.5, 0.75, 1.0, 1.5), (1.5, 2.0, 2.5, 2.5, 3.0), (3, 3, 2.5, 2, 1.75), (2, 2, 1.7, 1.5, 1.4)
)
def _fog(x: np.ndarray, density: float, decay: float, rng: np.random.Generator) -> np.ndarray:
    top = float(x.max())
    haze = _clouds(x.shape[0], x.shape[1], decay, rng)
    hazy = x + density * (haze if x.ndim == 2 else haze[..., None])
    return hazy * top / (top + density) if top else hazy / (1 + density)


def _clouds(height: int, width: int, decay: float, rng: np.random.Generator) -> np.ndarray:
    """Random clouds in 0 ... 1, (H, W): octaves of noise, each twice as fine and decay^2 times as weak.

    The square is theirs: the fractal multiplies its random steps by their own width.
    """
    total = np.zeros((height, width))
    cells, weight = 2, 1.0
    while cells < 2 * max(height, width):
        grid = Image.fromarray(rng.random((cells, cells)).astype(np.float32))
        total += weight * np.asarray(grid.resize((width, height), Image.Resampling.BICUBIC))
        cells, weight = cells * 2, weight / decay**2
    low, high = total.min(), total.max()
    return (total - low) / (high - low) if high > low else total * 0 + 0.5


def _to_uint8(x: np.ndarray) -> np.ndarray:
    return np.rint(np.clip(x, 0, 1) * 255).astype(np.uint8)


def corrupt_image(image: np.ndarray, name: str, severity: int, rng: np.random.Generator) -> np.ndarray:
    """One corrupted image of the same shape, uint8.

    Args:
        image: uint8, (H, W) grey or (H, W, 3) RGB, any size.
        name: a key of `CORRUPTIONS`.
        severity: 1 (mild) to 5.

    Raises:
        UnknownNameError, DataError.
    """
    corruption = _checked(name, severity)
    strengths = corruption.strengths(severity, min(image.shape[:2]))
    return _to_uint8(corruption.change(image.astype(np.float64) / 255, *strengths, rng))


def _checked(name: str, severity: int) -> Corruption:
    if name not in CORRUPTIONS:
        raise UnknownNameError("corruption", name, CORRUPTIONS)
    if severity not in SEVERITIES:
        raise DataError("There is no such severity", expected="1, 2, 3, 4 or 5", got=severity)
    return CORRUPTIONS[name]


def corrupt(
    samples: SampleSet,
    name: str,
    severity: int = 3,
    *,
    seed: int = 0,
    shift: Shift = "other",
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> SampleSet:
    """A shifted copy of a set of images; labels stay, ids say what was done.

    The noise of an image depends on the seed and its id alone, not on its place in the set.

    Raises:
        UnknownNameError: no such corruption. DataError: texts, or no such severity. Cancelled.
    """
    label = _checked(name, severity).label
    if samples.kind != "image":
        raise DataError(f"{samples.name} cannot be corrupted", expected="images", got=samples.kind)
    watch = Watch(f"{label} {severity}", progress, cancel)
    images = []
    for done, (image, key) in enumerate(zip(samples.inputs, samples.ids, strict=True), 1):
        images.append(corrupt_image(image, name, severity, _generator(seed, name, key)))
        watch.tick(done, len(samples))
    return replace(
        samples,
        name=f"{samples.name} {label} {severity}",
        inputs=stack_images(images),
        ids=tuple(f"{key}@{name}{severity}" for key in samples.ids),
        shift=shift,
    )


def _generator(seed: int, name: str, key: str) -> np.random.Generator:
    """The same noise field for all severities of one image, so that they differ in strength alone."""
    digest = hashlib.blake2b(f"{seed}|{name}|{key}".encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))


# -- whole data sets -----------------------------------------------------------------------------

MARK = "~"  # in a data set's name, before the corruption: "demo/fashion~fog-3"


def corrupt_bundle(
    bundle: DataBundle,
    name: str,
    severity: int = 3,
    *,
    seed: int = 0,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> DataBundle:
    """A data set whose validation and test images are corrupted; training images and OOD sets stay as they are.

    So the known classes look different and must still be known, as in full-spectrum OOD detection (Yang et al.,
    IJCV 2023): a detector that takes noise for news is found out.

    Raises:
        UnknownNameError, DataError, Cancelled: see `corrupt`. DataError: the set has that corruption already.
    """
    target = shifted_name(bundle.name, name, severity)
    parse_shift(target)  # refuses what `load_data` would refuse by that name

    def changed(part: SampleSet, place: int) -> SampleSet:
        step = step_of(progress, place, 2)
        return corrupt(part, name, severity, seed=seed, shift="id", progress=step, cancel=cancel)

    val, test = changed(bundle.val, 0), changed(bundle.test, 1)
    label = f"{CORRUPTIONS[name].label}, severity {severity}"
    about = f"ID images changed: {label}; OOD sets unchanged. {bundle.about}".strip()
    return replace(bundle, name=target, about=about, val=val, test=test)


def shifted_name(base: str, name: str, severity: int) -> str:
    """The name of a corrupted data set.

    Examples:
        >>> shifted_name("demo/fashion", "fog", 3)
        'demo/fashion~fog-3'
    """
    return f"{base}{MARK}{name}-{severity}"


def parse_shift(name: str) -> tuple[str, str, int] | None:
    """(name of the clean set, corruption, severity) of a corrupted data set's name; None for any other name.

    Different corruptions may follow each other.

    Raises:
        UnknownNameError, DataError: no such corruption or severity, or one that is already in the name.
    """
    base, mark, change = name.rpartition(MARK)
    if not mark:
        return None
    kind, _, severity = change.rpartition("-")
    number = int(severity) if severity.isdecimal() and len(severity) < 3 else 0
    _checked(kind, number)
    if kind in (earlier.rpartition("-")[0] for earlier in base.split(MARK)[1:]):
        raise DataError(
            "A corruption is applied once", expected=f"one {MARK}{kind} in a name", got=name,
            hint="Choose a higher severity, or another corruption.",
        )  # fmt: skip
    return base, kind, number
