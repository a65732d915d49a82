"""The Python side of the grid: what the browser sends is checked, strokes apply in order and once."""

import numpy as np
import pytest

from app.head_grid import Stroke, hints, paint_mask, paint_selection, read_strokes, shades
from hydra_core.heads.mask import HeadMask

SHAPE = (2, 3)


def op(seq, cells, on=False):
    return {"seq": seq, "cells": cells, "on": on}


def test_strokes_apply_in_order():
    mask = HeadMask.full(SHAPE)
    strokes, last = read_strokes({"ops": [op(1, [[0, 0], [1, 2]]), op(2, [[1, 2]], True)]}, SHAPE, 0)
    assert last == 2
    assert paint_mask(mask, strokes) == mask.prune(0, 0)


def test_strokes_that_were_confirmed_are_not_applied_again():
    payload = {"ops": [op(1, [[0, 0]]), op(2, [[0, 1]]), op(3, [[1, 0]])]}
    strokes, last = read_strokes(payload, SHAPE, 2)
    assert (strokes, last) == ([Stroke(((1, 0),), False)], 3)
    assert read_strokes(payload, SHAPE, 3) == ([], 3)


@pytest.mark.parametrize(
    "payload",
    [
        None, 7, "x", [], {}, {"ops": None}, {"ops": [None, 3, []]}, {"ops": [{"seq": "1", "cells": [], "on": True}]},
        {"ops": [op(1, [[0, 9], [-1, 0], [5, 0], [0], "ab", None, [None, 1]])]},
        {"ops": [op(1, [[0, 0]], "yes")]}, {"ops": [op(1, None)]}, {"ops": [op(1, 5)]},
    ],
)  # fmt: skip
def test_what_does_not_fit_is_left_out(payload):
    strokes, _ = read_strokes(payload, SHAPE, 0)
    assert strokes == []


def test_selection_of_many_and_of_one():
    strokes = [Stroke(((1, 2), (0, 1)), True), Stroke(((0, 1),), False), Stroke(((0, 0),), True)]
    assert paint_selection([], strokes) == ((0, 0), (1, 2))
    assert paint_selection([(1, 1)], [Stroke(((0, 0),), True)], multi=False) == ((0, 0),)


def test_shades_are_linear_or_by_rank_and_none_where_unknown():
    matrix = [np.array([0.0, 10.0]), np.array([1.0, np.nan, 0.0])]
    assert shades(matrix) == [[0.0, 1.0], [0.1, None, 0.0]]
    assert shades(matrix, "rank") == [[0.0, 1.0], [0.5, None, 0.0]]
    assert shades([np.array([2.0, 2.0])]) == [[0.0, 0.0]]


def test_hints_name_rank_one_for_the_highest():
    assert hints([np.array([0.5, 3.0]), np.array([1.0])], "Taylor") == [
        ["Taylor 0.5, rank 3 of 3", "Taylor 3, rank 1 of 3"],
        ["Taylor 1, rank 2 of 3"],
    ]
