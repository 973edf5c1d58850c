"""Tables that a reference computes from sizes alone: their rounding in float32 counts, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from envelope_ops import check
from numpy.typing import NDArray

from gpuemu_flow.model.types import Verdict
from gpuemu_flow.numerics.dtypes import numpy_dtype
from gpuemu_flow.numerics.evaluations import Evaluations
from gpuemu_flow.numerics.perturb import as_float32, widen
from gpuemu_flow.numerics.regroup import DOWN, UP, moving_constants
from gpuemu_flow.numerics.rng import SeededRng
from gpuemu_flow.numerics.shadow import shadow_source
from gpuemu_flow.numerics.single import MAKERS, staying_single

Array = NDArray[Any]
F = np.float32
UNIT = 2.0**-23

REFERENCES = {
    "positions": """
def op(x):
    rows, columns = x.shape
    angle = np.arange(rows)[:, None] / 10000 ** (2 * (np.arange(columns) // 2) / columns)
    return x + np.where(np.arange(columns) % 2 == 0, np.sin(angle), np.cos(angle))
""",
    "window": """
def op(x):
    return x * (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(len(x)) / len(x)))[:, None]
""",
    "stretched": """
def op(x):
    n = len(x)
    count = n * 5 // 3
    place = np.maximum((np.arange(count) + 0.5) * n / count - 0.5, 0)
    low = np.minimum(place.astype(int), n - 1)
    high, share = np.minimum(low + 1, n - 1), (place - low)[:, None]
    return x[low] * (1 - share) + x[high] * share
""",
    "nearest": """
def op(x):
    n = len(x)
    return x[(np.arange(3 * n) * n / (3 * n)).astype(int)] * 1.1
""",
    "rotary": """
def op(x):
    rows, columns = x.shape
    scale = 1.0 / 10000.0 ** (np.arange(0, columns, 2) / columns)
    angle = np.outer(np.arange(rows), scale)
    x, y = x[:, : columns // 2], x[:, columns // 2 :]
    c, s = np.cos(angle), np.sin(angle)
    return np.concatenate([x * c - y * s, y * c + x * s], axis=1)
""",
    "stepped": """
def op(x):
    place = np.minimum(np.floor(np.arange(3 * len(x)) / 3 + 1e-8).astype(int), len(x) - 1)
    return x[place] * 1.1
""",
}


class Reference:
    """A numpy reference with its shadow."""

    has_source = True

    def __init__(self, name: str) -> None:
        self._functions: dict[bool, Callable[..., Any]] = {}
        text = f"import numpy as np\n{REFERENCES[name]}"
        for shadow, source in ((False, text), (True, shadow_source(text) or "")):
            names: dict[str, Any] = {}
            exec(source, names)
            self._functions[shadow] = names["op"]

    def __call__(self, inputs: Mapping[str, Array], *, shadow: bool = False) -> dict[str, Array]:
        return {"y": np.asarray(self._functions[shadow](*inputs.values()))}


def positions(x: Array, base: float = 10000.0) -> Array:
    """Scale the positions as most programs do: by ``exp(-i log(base) / n)``."""
    rows, columns = x.shape
    scale = np.exp(np.arange(0, columns, 2, dtype=F) * F(-np.log(base) / columns))
    angle = np.arange(rows, dtype=F)[:, None] * scale
    y = x.copy()
    y[:, 0::2] += np.sin(angle)
    y[:, 1::2] += np.cos(angle)
    return y


def window(x: Array, factor: float = 1.0) -> Array:
    angle = np.arange(len(x), dtype=F) * F(np.pi / len(x) * factor)
    return x * np.square(np.sin(angle))[:, None]


def stretched(x: Array, shift: float = 0.0) -> Array:
    n = len(x)
    count = n * 5 // 3
    place = (np.arange(count, dtype=F) + F(0.5)) * (F(n) / F(count)) - F(0.5)
    place = np.maximum(place + F(shift), F(0))
    low = np.minimum(place.astype(int), n - 1)
    high, share = np.minimum(low + 1, n - 1), (place - low.astype(F))[:, None]
    return x[low] * (1 - share) + x[high] * share


def case(name: str) -> Array:
    if name == "stretched":  # a tap whose weight is 0, beside one whose value is
        return np.where(np.arange(36) % 2, F(1), F(0))[:, None] * np.ones(4, F)
    return np.random.default_rng(3).standard_normal((200, 16)).astype(F) * F(1e-3)


@pytest.mark.parametrize(
    ("name", "op", "wrong"),
    [
        ("positions", positions, lambda x: positions(x, 10010.0)),
        ("window", window, lambda x: window(x, 1.0001)),
        ("stretched", stretched, lambda x: stretched(x, 0.001)),
    ],
)
def test_a_table_in_another_order_passes_and_a_wrong_one_fails(
    name: str, op: Any, wrong: Any
) -> None:
    inputs = {"x": case(name)}
    for function, verdict in ((op, Verdict.PASSED), (wrong, Verdict.FAILED)):
        result, envelope = check(Reference(name), function, inputs, "float32")
        assert result.verdict is verdict, name
    assert envelope.label == "auto"


def test_another_index_is_no_rounding_error() -> None:
    """A nearest neighbour whose index is moved is another number: the tolerance stays small."""
    x = np.random.default_rng(5).standard_normal((40, 6)).astype(F)

    def nearest(x: Array, shift: int = 0) -> Array:
        places = (np.arange(3 * len(x)) // 3 + shift).clip(0, len(x) - 1)
        return (x[places] * F(1.1)).astype(F)

    result, envelope = check(Reference("nearest"), nearest, {"x": x}, "float32")
    assert result.verdict is Verdict.PASSED
    expected = Reference("nearest")(widen({"x": x}))["y"].reshape(-1)
    everything = slice(0, expected.size)
    allowed = envelope.full("y").tolerance(expected, everything)
    assert np.median(allowed) < 1e-4
    assert (allowed < 1e-2).all()
    result, _ = check(Reference("nearest"), lambda x: nearest(x, -1), {"x": x}, "float32")
    assert result.verdict is Verdict.FAILED


def rotary(x: Array, scale: Any, *, shift: int = 0, kind: Any = F) -> Array:
    rows, columns = x.shape
    angle = np.outer(np.arange(rows, dtype=F) + F(shift), scale(columns).astype(F)).astype(kind)
    x, y = x[:, : columns // 2], x[:, columns // 2 :]
    c, s = np.cos(angle.astype(F)), np.sin(angle.astype(F))
    return np.concatenate([x * c - y * s, y * c + x * s], axis=1)


def powers(columns: int, base: float = 10000.0) -> Array:
    return F(1) / F(base) ** (np.arange(0, columns, 2, dtype=F) / F(columns))


def exponentials(columns: int) -> Array:
    return np.exp2(np.arange(0, columns, 2, dtype=F) * F(-np.log2(10000.0) / columns))


def rotated(seed: int) -> Array:
    """Return rows of which some have elements far larger than the others that they turn into."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((2048, 64))
    x[::8, 32:] *= 20.0
    return x.astype(F)


@pytest.mark.parametrize("scale", [powers, exponentials, lambda n: powers(n).astype(np.float64)])
def test_angles_of_far_positions_are_off_by_their_own_rounding(scale: Any) -> None:
    inputs = {"x": rotated(0)}
    result, _ = check(Reference("rotary"), lambda x: rotary(x, scale), inputs, "float32")
    assert result.verdict is Verdict.PASSED


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: rotary(x, powers, shift=1),
        lambda x: rotary(x, lambda n: powers(n, 10001.0)),
        lambda x: rotary(x, powers, kind=np.float16),
        lambda x: rotary(x, powers, kind=numpy_dtype("bfloat16")),
        lambda x: rotary(x.reshape(-1, 32, 2).swapaxes(1, 2).reshape(x.shape), powers),
    ],
    ids=["next position", "base", "float16", "bfloat16", "interleaved"],
)
def test_wrong_angles_are_found_among_far_positions(wrong: Any) -> None:
    result, _ = check(Reference("rotary"), wrong, {"x": rotated(0)}, "float32")
    assert result.verdict is Verdict.FAILED


def test_a_step_does_not_grow_with_the_perturbation() -> None:
    """An index next to a step becomes another one, whatever the size of the perturbation."""
    x = np.random.default_rng(5).standard_normal((4000, 2)).astype(F)
    expected = Reference("stepped")(widen({"x": x}))["y"]
    _, envelope = check(Reference("stepped"), lambda x: expected.astype(F), {"x": x}, "float32")
    flat = expected.reshape(-1)
    allowed = envelope.full("y").tolerance(flat, slice(0, flat.size))
    assert (allowed < 0.1).all()
    other = np.roll(x, 1, axis=0)

    def wrong(x: Array) -> Array:
        return (np.repeat(other, 3, axis=0) * F(1.1)).astype(F)

    result, _ = check(Reference("stepped"), wrong, {"x": x}, "float32")
    assert result.verdict is Verdict.FAILED


@pytest.mark.parametrize("direction", [UP, DOWN, 0.0])
def test_what_is_computed_from_constants_is_moved_and_nothing_else(direction: float) -> None:
    copies = moving_constants({"x": np.full(6, 3.0, F)}, SeededRng(1), UNIT, direction)
    arange = MAKERS["arange"]
    with staying_single(copies) as making:
        places = arange(6)
        halves, thirds, odd = places + 0.5, places / 3, places * 2 + 1
        with_input = copies["x"] / 3 * 3 + np.asarray(copies["x"] / 7)
    assert making.count == 1
    assert odd.dtype.kind == "i", "integers stay integers"
    assert np.asarray(halves).tolist() == [0.5, 1.5, 2.5, 3.5, 4.5, 5.5], "sums that are exact stay"
    assert halves.dtype == thirds.dtype == np.float32
    wide = np.arange(6) / 3
    change = (np.asarray(thirds, np.float64) - wide)[1:] / wide[1:]
    assert np.asarray(thirds)[0] == 0.0
    assert (change != 0.0).any(), "exact quotients, too, are moved"
    assert (np.abs(change) <= 2 * UNIT).all()
    if direction:
        assert (np.sign(change) == direction).all()
    x = np.full(6, 3.0, F)
    assert (np.asarray(with_input) == x / 3 * 3 + x / F(7)).all()


def test_a_quotient_by_a_power_of_two_is_exact() -> None:
    copies = moving_constants({"x": np.ones(1, F)}, SeededRng(1), UNIT, UP)
    with staying_single(copies):
        assert np.asarray(MAKERS["arange"](5) / 4).tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_references_without_tables_are_not_evaluated_again() -> None:
    evaluations = Evaluations(lambda inputs, shadow=False: {"y": inputs["x"] * 1.1}, {})
    x = as_float32({"x": np.ones(3)})
    assert evaluations.outputs(x, shadow=True) is not None
    assert not evaluations.makes_arrays
