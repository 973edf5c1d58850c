"""The debugger's lines about tensors: what they are, their values, where two of them differ."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from gpuemu_flow.model.errors import UsageError
from gpuemu_flow.services.debugger import describe, difference_lines, value_lines

NAMES = ("a", "b")


def grid(lines: list[str]) -> list[str]:
    return [line[1:-1] for line in lines if line.startswith("|")]


def test_the_map_shows_where_and_how_much() -> None:
    first = np.zeros((4, 8), np.float32)
    second = first.copy()
    second[1, 2], second[3, 7], second[0, 0], second[2, 4] = 8.0, 0.5, 5e-3, 1e-6
    lines = difference_lines(NAMES, first, second)
    assert lines[:2] == [
        "a against b, [4, 8]: 4 of 32 elements differ",
        "largest 8.00e+00 at [1, 2]: 0 against 8",
    ]
    assert grid(lines) == [":       ", "  #     ", "    .   ", "       ="]
    assert "'#' over 1/10" in lines[-1]


def test_what_is_not_finite_stands_out() -> None:
    first = np.array([np.nan, np.nan, np.inf, -np.inf, np.inf, 1.0])
    second = np.array([np.nan, 0.0, np.inf, np.inf, 3.0, 1.5])
    lines = difference_lines(NAMES, first, second)
    assert lines[0].endswith("4 of 6 elements differ")
    assert grid(lines) == [" ! !!#"]


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, bool, np.int64])
def test_every_dtype(dtype: type) -> None:
    first = np.array([[0, 1], [1, 0]]).astype(dtype)
    second = np.array([[0, 1], [1, 1]]).astype(dtype)
    assert grid(difference_lines(NAMES, first, second)) == ["  ", " #"]
    assert describe("x", first).startswith(f"x  {first.dtype.name}[2, 2]  min 0  max 1  mean 0.5")
    assert len(value_lines(first)) == 2


def test_equal_empty_and_scalar() -> None:
    assert difference_lines(NAMES, np.ones(3), np.ones(3)) == ["a against b, [3]: equal"]
    assert difference_lines(NAMES, np.ones((0, 3)), np.ones((0, 3))) == [
        "a against b, [0, 3]: no elements"
    ]
    assert grid(difference_lines(NAMES, np.float32(1)[()].reshape(()), np.zeros(()))) == ["#"]
    assert describe("x", np.ones((0, 3), np.float32)) == "x  float32[0, 3]"


def test_shapes_that_differ_are_refused() -> None:
    with pytest.raises(UsageError, match="debug-shapes-differ"):
        difference_lines(NAMES, np.ones(3), np.ones((3, 1)))


def test_large_tensors_take_few_lines() -> None:
    big = np.zeros((300, 700), np.float16)
    other = big.copy()
    other[299, 699] = 1
    lines = difference_lines(NAMES, big, other)
    assert len(lines) < 40 and max(map(len, lines)) < 200
    assert grid(lines)[-1][-1] == "#"
    assert sum("#" in row for row in grid(lines)) == 1
    assert len(value_lines(big)) < 30


def test_strides_and_what_is_not_finite_are_told() -> None:
    x = np.array([[1, np.nan, np.inf], [4, 5, -np.inf]], np.float32).T
    assert describe("x", x) == "x  float32[3, 2]  strides [1, 3]  min 1  max 5  mean 3.33333333" \
        "  1 NaN  2 Inf"  # fmt: skip


def test_hostile_names_cannot_steer_the_terminal() -> None:
    assert "\x1b" not in describe("\x1b[2J", np.ones(1))
    assert "\x1b" not in difference_lines(("\x1b[2J", "b"), np.ones(1), np.ones(1))[0]
