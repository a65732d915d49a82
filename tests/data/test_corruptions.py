"""Corruptions: closed forms where there are any, order of severities, determinism."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

from hydra_core.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt, corrupt_bundle, corrupt_image, parse_shift
from hydra_core.data.images import stack_images
from hydra_core.data.sets import DataBundle, SampleSet
from hydra_core.errors import Cancelled, DataError, UnknownNameError


def scene(height: int, width: int, grey: bool = False) -> np.ndarray:
    """A smooth image with an edge and some texture, in mid-range so that little is clipped."""
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    waves = 0.5 + 0.2 * np.sin(40 * x) * np.cos(30 * y) + 0.15 * (x > y)
    image = np.rint(255 * waves).astype(np.uint8)
    return image if grey else np.stack([image, image[::-1], 255 - image], axis=2)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def images(*items: np.ndarray) -> SampleSet:
    labels = np.zeros(len(items), np.int64)
    return SampleSet("s", stack_images(items), labels, tuple(f"s/{i}" for i in range(len(items))), ("a",))


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("shape", [(28, 28, True), (32, 40, False), (224, 224, False), (300, 260, True)])
def test_severities_grow_and_shapes_stay(name: str, shape: tuple[int, int, bool]) -> None:
    image = scene(*shape)
    distances = []
    for severity in SEVERITIES:
        out = corrupt_image(image, name, severity, rng())
        assert out.shape == image.shape
        assert out.dtype == np.uint8
        if name == "fog":  # haze takes away from the scene, while its mean depends on how rough the clouds are
            hazy = [corrupt_image(image, name, severity, rng(seed)) for seed in range(5)]
            distances.append(1 - np.mean([np.corrcoef(image.ravel(), h.ravel())[0, 1] for h in hazy]))
        else:
            distances.append(np.abs(out.astype(float) - image).mean())
    # JPEG and box sizes move in whole steps, so neighbours may tie; the ends may not
    assert all(b >= a * 0.93 for a, b in pairwise(distances)), distances
    assert distances[0] > 0
    assert distances[-1] > (1.1 if name == "fog" else 1.2) * distances[0]


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("shape", [(1, 1), (1, 1, 3), (2, 9, 3), (9, 2)])
@pytest.mark.parametrize("value", [0, 255])
def test_the_smallest_and_flattest_images(name: str, shape: tuple[int, ...], value: int) -> None:
    image = np.full(shape, value, np.uint8)
    for severity in (1, 5):
        assert corrupt_image(image, name, severity, rng()).shape == shape


# read off the code of the paper's authors (github.com/hendrycks/robustness), CIFAR-10-C and ImageNet-C
PUBLISHED = {
    "gaussian_noise": ([0.04, 0.06, 0.08, 0.09, 0.10], [0.08, 0.12, 0.18, 0.26, 0.38]),
    "shot_noise": ([500, 250, 100, 75, 50], [60, 25, 12, 5, 3]),
    "impulse_noise": ([0.01, 0.02, 0.03, 0.05, 0.07], [0.03, 0.06, 0.09, 0.17, 0.27]),
    "gaussian_blur": ([0.4, 0.6, 0.7, 0.8, 1], [1, 2, 3, 4, 6]),
    "brightness": ([0.05, 0.1, 0.15, 0.2, 0.3], [0.1, 0.2, 0.3, 0.4, 0.5]),
    "contrast": ([0.75, 0.5, 0.4, 0.3, 0.15], [0.4, 0.3, 0.2, 0.1, 0.05]),
    "jpeg": ([80, 65, 58, 50, 40], [25, 18, 15, 10, 7]),
    "pixelate": ([0.95, 0.9, 0.85, 0.75, 0.65], [0.6, 0.5, 0.4, 0.3, 0.25]),
    "fog": ([0.2, 0.5, 0.75, 1, 1.5], [1.5, 2, 2.5, 2.5, 3]),
}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_strengths_are_the_published_ones_at_32_and_224_pixels(name: str) -> None:
    for row, side in zip(PUBLISHED[name], (32, 224), strict=True):
        assert [CORRUPTIONS[name].strengths(s, side)[0] for s in SEVERITIES] == pytest.approx(row)


def test_fog_is_as_rough_as_published() -> None:
    fog = CORRUPTIONS["fog"]
    assert [fog.strengths(s, 32)[1] for s in SEVERITIES] == pytest.approx([3, 3, 2.5, 2, 1.75])
    assert [fog.strengths(s, 224)[1] for s in SEVERITIES] == pytest.approx([2, 2, 1.7, 1.5, 1.4])


def test_strengths_between_and_beyond_the_two_sizes() -> None:
    noise = CORRUPTIONS["gaussian_noise"]
    assert noise.strengths(1, 8) == pytest.approx((0.04,))
    assert noise.strengths(1, 1000) == pytest.approx((0.08,))
    assert noise.strengths(1, round((32 * 224) ** 0.5)) == pytest.approx(((0.04 * 0.08) ** 0.5,), rel=5e-3)


def test_noise_has_the_variance_that_it_should() -> None:
    flat = np.full((224, 224), 128, np.uint8)
    level = 128 / 255
    for severity, sigma, photons, hits in ((1, 0.08, 60, 0.03), (3, 0.18, 12, 0.09)):
        normal = corrupt_image(flat, "gaussian_noise", severity, rng()).astype(float) / 255
        clipped = np.clip(level + rng(1).normal(scale=sigma, size=10**6), 0, 1).std()
        assert normal.std() == pytest.approx(clipped, rel=0.02)
        shots = corrupt_image(flat, "shot_noise", severity, rng()).astype(float) / 255
        poisson = np.clip(rng(1).poisson(level * photons, 10**6) / photons, 0, 1)
        assert shots.std() == pytest.approx(poisson.std(), rel=0.02)
        struck = corrupt_image(flat, "impulse_noise", severity, rng()) != 128
        assert struck.mean() == pytest.approx(hits, rel=0.1)


def test_brightness_and_contrast_in_closed_form() -> None:
    image = np.array([[[100, 50, 25], [200, 100, 0]]], np.uint8)
    out = corrupt_image(image, "brightness", 2, rng()).astype(float)  # V + 0.1 below 32 pixels
    np.testing.assert_allclose(out[0, 0], np.array([100, 50, 25]) * (100 + 25.5) / 100, atol=0.51)
    grey = np.array([[100, 250]], np.uint8)
    np.testing.assert_array_equal(corrupt_image(grey, "brightness", 2, rng()), [[126, 255]])
    np.testing.assert_array_equal(corrupt_image(grey, "contrast", 2, rng()), [[138, 212]])  # 175 -+ 75 / 2


def test_brightness_keeps_hue_as_pillow_sees_it() -> None:
    image = scene(32, 32)
    out = corrupt_image(image, "brightness", 3, rng())
    before, after = (np.asarray(Image.fromarray(x).convert("HSV")).astype(int) for x in (image, out))
    assert np.abs((before[..., 0] - after[..., 0] + 128) % 256 - 128).mean() < 2
    assert np.abs(np.minimum(before[..., 2] + 0.15 * 255, 255) - after[..., 2]).max() <= 1


def test_blur_keeps_the_mean_and_pixelate_makes_blocks() -> None:
    dot = np.zeros((65, 65), np.uint8)
    dot[32, 32] = 255
    spread = corrupt_image(np.kron(dot, np.ones((7, 7), np.uint8)), "gaussian_blur", 1, rng())
    assert spread.astype(float).sum() == pytest.approx(255 * 49, rel=0.08)
    blocks = corrupt_image(scene(224, 224, grey=True), "pixelate", 5, rng())  # 56 x 56 blocks of 4 x 4
    np.testing.assert_array_equal(blocks, np.kron(blocks[::4, ::4], np.ones((4, 4), np.uint8)))


def test_a_set_keeps_labels_and_names_what_was_done() -> None:
    plain = images(scene(20, 20), scene(20, 20)[::-1])
    out = corrupt(plain, "shot_noise", 2)
    assert out.ids == ("s/0@shot_noise2", "s/1@shot_noise2")
    assert out.shift == "other"
    assert out.labels is not None
    assert out.labels.tolist() == [0, 0]
    assert "Shot noise 2" in out.name
    np.testing.assert_array_equal(plain.inputs[0], scene(20, 20))


def test_noise_depends_on_seed_and_id_alone() -> None:
    plain = images(*[scene(20, 20)] * 3)
    whole = corrupt(plain, "gaussian_noise", 3, seed=1)
    part = corrupt(plain.take([2, 0]), "gaussian_noise", 3, seed=1)
    np.testing.assert_array_equal(part.inputs, whole.inputs[[2, 0]])
    assert not np.array_equal(whole.inputs[0], whole.inputs[1])
    assert not np.array_equal(whole.inputs[0], corrupt(plain, "gaussian_noise", 3, seed=2).inputs[0])


def test_ragged_sets_and_empty_sets() -> None:
    ragged = corrupt(images(scene(20, 20), scene(9, 30, grey=True)), "jpeg", 1)
    assert [image.shape for image in ragged.inputs] == [(20, 20, 3), (9, 30)]
    assert len(corrupt(images(scene(4, 4)).take([]), "jpeg", 1)) == 0


def test_errors_and_cancel() -> None:
    plain = images(scene(8, 8))
    with pytest.raises(UnknownNameError, match="gaussian_noise"):
        corrupt(plain, "gausian_noise")
    with pytest.raises(DataError, match="severity"):
        corrupt(plain, "jpeg", 6)
    texts = SampleSet("t", np.array(["a"], dtype=object), None, ("1",), kind="text")
    with pytest.raises(DataError, match=r"Expected images. Got text"):
        corrupt(texts, "jpeg")
    stop = threading.Event()
    stop.set()
    with pytest.raises(Cancelled):
        corrupt(plain, "jpeg", cancel=stop)


# -- whole data sets -------------------------------------------------------------------------


def test_a_data_set_by_name_has_its_id_images_corrupted_and_nothing_else() -> None:
    from hydra_core.data.load import load_data

    plain, shifted = load_data("demo/fashion"), load_data("demo/fashion~gaussian_noise-3")
    assert shifted.name.endswith("~gaussian_noise-3")
    assert shifted.digest != plain.digest
    for part in ("val", "test"):
        before, after = getattr(plain, part), getattr(shifted, part)
        np.testing.assert_array_equal(after.labels, before.labels)
        assert after.class_names == before.class_names
        assert after.shift == "id"
        one = corrupt(before.take([7]), "gaussian_noise", 3).inputs[0]
        np.testing.assert_array_equal(after.inputs[7], one)
    assert {name: s.digest for name, s in shifted.ood_test.items()} == {
        name: s.digest for name, s in plain.ood_test.items()
    }


@pytest.mark.parametrize("name", ["demo/fashion~fgo-3", "demo/fashion~fog-6", "demo/fashion~fog", "demo/fashion~", "~"])
def test_corrupted_sets_that_do_not_exist(name: str) -> None:
    from hydra_core.data.load import load_data

    with pytest.raises((UnknownNameError, DataError)):
        load_data(name)


def test_names_that_are_no_corruption_are_left_alone() -> None:
    assert parse_shift("demo/fashion") is None
    assert parse_shift("yours/ab-cd_3~jpeg-2") == ("yours/ab-cd_3", "jpeg", 2)


def test_a_corruption_is_applied_once_and_others_may_follow() -> None:
    assert parse_shift("demo/fashion~fog-3~jpeg-2") == ("demo/fashion~fog-3", "jpeg", 2)
    with pytest.raises(DataError, match="applied once"):
        parse_shift("demo/fashion~fog-3~jpeg-2~fog-3")


def test_a_corrupted_set_takes_no_second_dose_from_python_either() -> None:
    part = images(scene(20, 20))
    once = corrupt_bundle(DataBundle("photos", part, replace(part, ids=("t/0",))), "fog", 1)
    with pytest.raises(DataError, match="applied once"):
        corrupt_bundle(once, "fog", 2)
    twice = corrupt_bundle(once, "jpeg", 2)
    assert parse_shift(twice.name) == (once.name, "jpeg", 2)


def test_texts_cannot_be_corrupted_by_name() -> None:
    from hydra_core.data.load import DATA, load_data, register_data

    def texts(name: str) -> SampleSet:
        return SampleSet(name, np.array(["a", "b"], dtype=object), np.array([0, 1]), (f"{name}/1", f"{name}/2"),
                         ("x", "y"), kind="text")  # fmt: skip

    register_data("yours/texts-of-a-test", lambda: DataBundle("t", texts("val"), texts("test")))
    try:
        with pytest.raises(DataError, match="cannot be corrupted"):
            load_data("yours/texts-of-a-test~fog-1")
    finally:
        del DATA["yours/texts-of-a-test"]
