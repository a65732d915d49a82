"""The study of Proposition 1 over corruptions and severities, on a tiny float64 model, and its command."""

import threading
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from torch.nn import functional as F

from hydra_core.cli import main
from hydra_core.data.corruptions import corrupt
from hydra_core.errors import Cancelled, DataError, MaskError, UnknownNameError
from hydra_core.heads.mask import HeadMask
from hydra_core.heads.noise import compare_sides, measure_side
from hydra_core.methods.noise_study import NoiseStudy, noise_study, path_study, quarters
from tests.methods.conftest import bundle, tiny

MASKS = [HeadMask.full((4, 4, 4)).prune(0, 0), HeadMask.full((4, 4, 4)).with_layer(2, [True, False, False, True])]
NOISE = ["gaussian_noise", "contrast"]


@pytest.fixture(scope="module")
def found():
    return noise_study(tiny(), bundle().val, MASKS, NOISE, (1, 4), keeps=[3, 2])


def test_every_noise_stands_against_the_same_clean_samples(found):
    assert [(r.corruption, r.severity, r.keep) for r in found.rows] == [
        (name, severity, keep) for name in NOISE for severity in (1, 4) for keep in (3, 2)
    ]
    assert len({r.clean for r in found.rows}) == 1
    view, samples = tiny(), bundle().val
    noisy = corrupt(samples, "contrast", 4)
    sides = [measure_side(view, part, MASKS) for part in (samples, noisy)]
    assert compare_sides(*sides, MASKS, corruption="contrast", severity=4, keeps=[3, 2]) == list(found.rows[-2:])
    loss = F.cross_entropy(view(view.inputs(noisy), MASKS[1]), view.inputs(samples).new_tensor(samples.labels).long())
    assert found.rows[-1].noisy_pruned == pytest.approx(loss.item(), abs=1e-6)


def test_stronger_noise_changes_more(found):
    by = {(r.corruption, r.severity): abs(r.gap) for r in found.rows}
    assert by["contrast", 4] > by["contrast", 1]


def test_what_is_known_is_not_measured_again(found):
    sides = {}

    def remember(key, compute):
        if key not in sides:
            sides[key] = compute()
        return sides[key]

    parts = []
    view, samples = tiny(), bundle().val
    first = noise_study(view, samples, MASKS, NOISE[:1], (1, 4), keeps=[3, 2], remember=remember, publish=parts.append)
    assert first.rows == found.rows[:4]
    assert [len(part) for part in parts] == [2, 2]
    assert len(sides) == 3  # the clean one and two severities
    noise_study(view, samples, MASKS, NOISE, (1, 4), remember=remember)
    assert len(sides) == 5
    noise_study(view, samples, MASKS[:1], NOISE[:1], (1,), remember=remember)  # other masks are another side
    assert len(sides) == 7


def test_progress_rises_and_cancel_stops(found):
    shares, stop = [], threading.Event()
    noise_study(tiny(), bundle().val, MASKS, NOISE[:1], (1,), progress=lambda share, text: shares.append(share))
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1)
    stop.set()
    with pytest.raises(Cancelled):
        noise_study(tiny(), bundle().val, MASKS, NOISE, cancel=stop)


def test_it_survives_json_and_gives_a_table(found, tmp_path):
    text = found.to_json(tmp_path / "noise.json")
    back = NoiseStudy.from_json(text)
    assert back.to_json() == text
    assert [r.change.value for r in back.rows] == pytest.approx([r.change.value for r in found.rows], rel=1e-6)
    assert back.provenance["noise"]["contrast-4"] == corrupt(bundle().val, "contrast", 4).digest
    assert {"change", "change_low", "slope", "holds_slope", "grows"} <= set(found.frame())
    for wrong in ("", "[]", '{"rows": [{"a": 1}], "provenance": {}}', '{"rows": {}}'):
        with pytest.raises(DataError, match="not a noise study"):
            NoiseStudy.from_json(wrong)


def test_a_path_of_a_criterion_and_what_it_refuses():
    view, data = tiny(), bundle()
    study = path_study(
        view, data, ["fog"], keeps=(3, 1), criterion="magnitude", samples=20, severities=(2,), layers=(1, 2)
    )
    masks = [HeadMask.parse(row.mask) for row in study.rows]
    assert [mask.counts for mask in masks] == [(4, 3, 3), (4, 1, 1)]
    assert all(not after and before for before, after in zip(*(np.ravel(m.rows) for m in masks)) if before != after)
    assert quarters(view) == (3, 2, 1)
    with pytest.raises(UnknownNameError, match="fog"):
        path_study(view, data, ["fogg"], keeps=(3,), samples=10)
    with pytest.raises(DataError, match="severity"):
        path_study(view, data, ["fog"], keeps=(3,), samples=10, severities=(6,))
    with pytest.raises(MaskError, match="keeps all heads"):
        path_study(view, data, ["fog"], keeps=(4,), samples=10)
    texts = replace(data, val=replace(data.val, kind="text"))
    with pytest.raises(DataError, match="images"):
        noise_study(view, texts.val, MASKS, ["fog"])


def test_the_command_writes_rows_and_says_what_is_wrong(tmp_path, capsys):
    words = ["noise", "demo/fashion-vit", "--samples", "8", "--keep", "4", "--layers", "last1", "--out", str(tmp_path)]
    assert main(words) == 0
    table = pd.read_csv(tmp_path / "noise.csv")
    assert table["severity"].tolist() == [1, 2, 3, 4, 5]
    assert set(table["pruned"]) == {4}
    assert len(NoiseStudy.from_json((tmp_path / "noise.json").read_text()).rows) == 5
    assert main(["noise"]) == 1
    assert main([*words, "--corruptions", "rain"]) == 1
    assert "There is no corruption named 'rain'" in capsys.readouterr().err
