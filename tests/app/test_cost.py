"""The Cost page: what its controls measure."""

import pytest

from app import lab
from tests.app.test_pages import settle, texts, visit

WAYS = [lab.SINGLE, lab.DEEP, lab.HYDRA, lab.HYDRA_TRUNK]


@pytest.fixture
def measured():
    at = visit("cost", batch="1", precision=["fp32", "bf16"])
    return settle(at.button(key="cost/go").click().run())


def test_bf16_is_measured_beside_fp32_in_table_and_picture(measured):
    assert not measured.exception
    assert not measured.error
    table = measured.dataframe[1].value
    assert table["name"].tolist() == WAYS * 2
    assert table["precision"].tolist() == ["fp32"] * 4 + ["bf16"] * 4
    assert (table["median"] > 0).all()
    assert table["median"].nunique() == len(table)  # not one measurement shown twice


def test_the_sentence_says_what_bf16_does_on_this_machine(measured):
    times = measured.dataframe[1].value.set_index(["precision", "name"])["median"]
    slower = times["bf16", lab.SINGLE] / times["fp32", lab.SINGLE]
    fused = times["bf16", lab.HYDRA_TRUNK] / times["bf16", lab.SINGLE]
    assert f"{fused:.2f} times one model in bf16" in texts(measured)
    assert f"One model in bf16 takes {slower:.2f} times its time in fp32" in texts(measured)


def test_bf16_alone_is_measured_alone():
    at = visit("cost", batch="1", precision="bf16")
    at = settle(at.button(key="cost/go").click().run())
    assert set(at.dataframe[1].value["precision"]) == {"bf16"}
    assert "times one model in bf16" in texts(at)
    assert "fp32 on this machine" not in texts(at)


def test_nothing_is_measured_without_a_precision():
    at = visit("cost")
    at = at.segmented_control(key="precision").set_value([]).run()
    assert at.button(key="cost/go").disabled
