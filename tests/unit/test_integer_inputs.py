"""Float outputs of integer inputs: float32 arithmetic is allowed, and wrong values are found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from envelope_ops import F32, check
from for_each import for_each
from numpy.typing import NDArray

from gpuemu_flow.model.types import Verdict
from gpuemu_flow.numerics.envelope import is_exact_op, shadow_is_faithful
from gpuemu_flow.numerics.evaluations import on_each
from gpuemu_flow.numerics.perturb import moved_integers
from gpuemu_flow.numerics.shadow import shadow_source

Array = NDArray[Any]

REFERENCES = {
    "time steps": """
def op(t):
    scale = np.exp(-np.log(10000) * np.arange(16) / 16)
    angle = t[:, None] * scale
    return np.concatenate([np.cos(angle), np.sin(angle)], axis=1)
""",
    "sine": """
def op(t):
    return np.sin(t * 0.1)
""",
    "decay": """
def op(t):
    return np.exp(-0.1 * t)
""",
    "image": """
def op(t):
    return (t / 255 - 0.485) / 0.229
""",
    "image in float": """
def op(t):
    return (t.astype(float) / 255 - 0.485) / 0.229
""",
    "image in a dtype by name": """
WIDE = "float64"
def op(t):
    return (t.astype(WIDE) / 255 - 0.485) / 0.229
""",
    "spread": """
def op(t):
    return np.sqrt(((t - t.mean()) ** 2).mean(keepdims=True))
""",
    "buckets": """
def op(t):
    return np.log(np.array([3.0, 5.0, 7.0]))[np.floor(t * 0.37).astype(int) % 3]
""",
}


class Reference:
    """A numpy reference with its shadow, which may be the reference itself."""

    has_source = True

    def __init__(self, name: str) -> None:
        self._read(REFERENCES[name])

    @classmethod
    def of(cls, source: str) -> Reference:
        made = cls.__new__(cls)
        made._read(source)
        return made

    def _read(self, source: str) -> None:
        text = f"import numpy as np\n{source}"
        self._functions: dict[bool, Callable[..., Any]] = {}
        for shadow, source in ((False, text), (True, shadow_source(text) or text)):
            names: dict[str, Any] = {}
            exec(source, names)
            self._functions[shadow] = names["op"]

    def plain(self, *inputs: Array) -> Array:
        found: Array = self._functions[False](*inputs)
        return found

    def __call__(self, inputs: Mapping[str, Array], *, shadow: bool = False) -> dict[str, Array]:
        return {"y": np.asarray(self._functions[shadow](*inputs.values()))}


SINGLE_ELEMENTS = {
    "product": "a * b + a",
    "remainder": "a // b + a % b",
    "bits": "(a << 2) ^ b",
    "largest": "np.maximum(a, b)",
    "comparison": "np.where(a > b, a, b)",
    "scaled sum": "(a + b) * 0.1",
    "norm": "np.sqrt(a * a + b * b)",
    "quotient": "(a - b) / b",
    "rounded quotient": "np.round((a + b) / 3).astype(np.int32)",
    "truncated root": "np.sqrt(a + b).astype(np.int32)",
    "scaled comparison": "(a > b) * 0.1",
}


@for_each("expression", SINGLE_ELEMENTS.values())
def test_single_elements_are_judged_as_larger_inputs(expression: str) -> None:
    evaluate = Reference.of(f"def op(a, b):\n    return {expression}\n")
    found = {}
    for shape in ((), (1,), (7,)):
        rng = np.random.default_rng(3)
        pairs = [
            {name: np.asarray(rng.integers(1, 1000, shape), np.int32) for name in "ab"}
            for _ in range(4)
        ]
        exact = is_exact_op(on_each(evaluate, pairs))
        found[shape] = exact, exact or shadow_is_faithful(on_each(evaluate, pairs))
    assert found[()] == found[1,] == found[7,]
    assert found[()][1], "the tolerance would be `auto (weak)`"


def time_steps(t: Array, base: float = 10000.0, shift: int = 0) -> Array:
    scale = np.exp(F32(-np.log(base)) * np.arange(16, dtype=F32) / F32(16))
    angle = (t + shift)[:, None].astype(F32) * scale
    return np.concatenate([np.cos(angle), np.sin(angle)], axis=1)


def image(t: Array, mean: float = 0.485, wide: Any = F32) -> Array:
    scaled = (t.astype(F32) * F32(1 / 255)).astype(wide).astype(F32)
    return (scaled - F32(mean)) * F32(1 / 0.229)


def spread(t: Array, less: int = 0) -> Array:
    x = t.astype(F32)
    return np.sqrt(((x - x.mean()) ** 2).sum(keepdims=True) / F32(len(t) - less))


IMAGES = [(image, lambda t: image(t, 0.4852)), (image, lambda t: image(t, wide="f2"))]
OPS: dict[str, list[tuple[Any, Any]]] = {
    "time steps": [
        (time_steps, lambda t: time_steps(t, shift=1)),
        (time_steps, lambda t: time_steps(t, 10010.0)),
    ],
    "sine": [
        (
            lambda t: np.sin(t.astype(F32) * F32(0.1)),
            lambda t: np.sin((t * 0.1).astype(np.float16).astype(F32)),
        ),
    ],
    "decay": [
        (
            lambda t: np.exp(F32(-0.1) * t.astype(F32)),
            lambda t: np.exp(F32(-0.1001) * t.astype(F32)),
        ),
    ],
    "image": IMAGES,
    "image in float": IMAGES,
    "image in a dtype by name": IMAGES,
    "spread": [(spread, lambda t: spread(t, 1))],
    "buckets": [
        (
            lambda t: np.log(F32([3, 5, 7]))[np.floor(t.astype(F32) * F32(0.37)).astype(int) % 3],
            lambda t: np.log(F32([3, 5, 7]))[np.ceil(t.astype(F32) * F32(0.37)).astype(int) % 3],
        ),
    ],
}


def samples(name: str) -> list[Array]:
    dtype = np.uint8 if name.startswith("image") else np.int32
    largest = 255 if dtype == np.uint8 else 999
    rng = np.random.default_rng(7)
    return [rng.integers(0, largest + 1, size).astype(dtype) for size in (1, 7, 64, 100)]


@pytest.mark.parametrize("name", OPS)
def test_float32_arithmetic_on_integers_passes_and_wrong_values_fail(name: str) -> None:
    for right, wrong in OPS[name]:
        found = []
        for t in samples(name):
            result, envelope = check(Reference(name), right, {"t": t}, "float32")
            assert result.verdict is Verdict.PASSED, t.size
            assert envelope.label == "auto"
            result, _ = check(Reference(name), wrong, {"t": t}, "float32")
            found.append(result.verdict)
        assert found[-1] is Verdict.FAILED


def mean(y: Array) -> Array:
    return np.cumsum(y, axis=1, dtype=y.dtype)[:, -1:] * y.dtype.type(1 / y.shape[1])


def running_variance(x: Array) -> Array:
    out = np.zeros(len(x), F32)
    for r, row in enumerate(x.astype(F32)):
        center = total = F32(0)
        for i, value in enumerate(row):
            away = value - center
            center = center + away / F32(i + 1)
            total = total + away * (value - center)
        out[r] = total / F32(len(row))
    return out


def normed(x: Array) -> Array:
    away = x.astype(F32) - mean(x.astype(F32))
    return away / np.sqrt(mean(away * away) + F32(1e-5))


def less_mean(x: Array) -> Array:
    y = x.astype(F32)
    return y - mean(y)


CANCELLING = {
    "x - x.mean(axis=1, keepdims=True)": (less_mean, lambda x: less_mean(x) * F32(1.001)),
    "x.var(axis=1)": (running_variance, lambda x: running_variance(x) + F32(1e-4)),
    "(x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5)": (
        normed,
        lambda x: normed(x) * F32(1.001),
    ),
}


@for_each("expression", CANCELLING)
def test_what_cancels_in_the_reference_alone_may_be_rounded(expression: str) -> None:
    """All that the reference computes is exact: sums, their quotients, differences, squares."""
    evaluate = Reference.of(f"def op(x):\n    return {expression}\n")
    for seed, size in ((1, 7), (2, 16)):
        rng = np.random.default_rng(seed)
        x = np.repeat(rng.integers(20, 40, 6), size).reshape(6, size).astype(np.int8)
        x += rng.integers(-1, 2, x.shape).astype(np.int8)
        right, wrong = CANCELLING[expression]
        assert check(evaluate, right, {"x": x}, "float32")[0].verdict is Verdict.PASSED
        assert check(evaluate, wrong, {"x": x}, "float32")[0].verdict is Verdict.FAILED


@for_each("expression", CANCELLING)
def test_a_float64_op_that_computes_in_float32_fails(expression: str) -> None:
    evaluate = Reference.of(f"def op(x):\n    return {expression}\n")
    x = np.random.default_rng(1).integers(20, 40, (6, 7)).astype(np.int32)
    x[3] = 30
    in_float32, _ = CANCELLING[expression]
    for op, verdict in ((in_float32, Verdict.FAILED), (evaluate.plain, Verdict.PASSED)):
        assert check(evaluate, op, {"x": x}, "float64")[0].verdict is verdict


@for_each(
    "expression",
    ["(x > 3) - x * 0.0", "x // 4 * 0.1", "np.floor(x / 4) * 0.1", "np.arange(99.0)[x] * 0.1"],
)
def test_no_integer_is_moved_over_a_step(expression: str) -> None:
    def evaluate(inputs: Any) -> dict[str, Array]:
        return {"y": np.asarray(eval(expression, {"np": np, "x": inputs["x"]}))}

    def checked(inputs: Any) -> Any:
        try:
            return evaluate(inputs)
        except IndexError:
            return None

    given = {"x": np.arange(12, dtype=np.int32)}
    assert not list(moved_integers(given, 5, 2.0**-23, checked))
    smooth = moved_integers(given, 5, 2.0**-23, lambda inputs: {"y": inputs["x"] * 0.1})
    assert len(list(smooth)) == 4


@for_each("name", [name for name in REFERENCES if name != "buckets"])
def test_the_shadow_of_floats_of_integers_is_faithful(name: str) -> None:
    assert shadow_is_faithful(on_each(Reference(name), [{"t": t} for t in samples(name)]))


def test_a_shadow_in_pythons_own_floats_is_not_faithful() -> None:
    """Its float64 results differ from float32 ones although nothing in it is rounded to float32."""

    def op(inputs: Any, *, shadow: bool = False) -> dict[str, Array]:
        return {"y": np.array([float(v) * 0.1 for v in inputs["t"]], np.float64)}

    assert not shadow_is_faithful(on_each(op, [{"t": t} for t in samples("sine")]))
