"""Cards agree with the engine on what a figure is and which way is better."""

from types import SimpleNamespace

from app import cards
from hydra_core.metrics import METRICS


def test_cards_and_metrics_agree_on_the_better_direction():
    for name, card in {**cards.CALIBRATION, **cards.OOD}.items():
        assert (card.better, card.help) == (METRICS[name].better, METRICS[name].help), name


def test_values_come_by_name_and_missing_ones_are_left_out():
    report = SimpleNamespace(accuracy=0.9, ece=0.1, auroc_near=None)
    cost = SimpleNamespace(parameters=10, macs=20)
    assert cards.values_of(report, cost) == {"accuracy": 0.9, "ece": 0.1, "parameters": 10.0, "macs": 20.0}
    assert cards.values_of(None) == {}
