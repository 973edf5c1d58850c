"""Test the roundings of intermediate results that are allowed, and that no bug hides behind
them."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest
from envelope_ops import F32, Arrays, Reference, check
from for_each import for_each

from gpuemu_flow.model.types import Verdict
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, numpy_dtype
from gpuemu_flow.numerics.operand import (
    PRECISIONS,
    Rounding,
    round_to,
    rounded,
    rounding_for,
    rounding_to,
)
from gpuemu_flow.numerics.rng import SeededRng
from gpuemu_flow.numerics.shadow import shadow_source

HALVES = ["float16", "bfloat16"]
SIZES = [(23, 129, 64), (17, 257, 64)]
DRAWS = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "uniform": lambda rng, shape: rng.uniform(-10, 10, shape),
    "ties": lambda rng, shape: np.rint(rng.standard_normal(shape)),
    "sparse": lambda rng, shape: rng.standard_normal(shape) * (rng.random(shape) < 0.5),
    "offset": lambda rng, shape: 30 + rng.standard_normal(shape),
}


def cases(dtype: str, seeds: range = range(2)) -> Iterator[Arrays]:
    for seed in seeds:
        queries, keys, depth = SIZES[seed % len(SIZES)]
        for number, draw in enumerate(DRAWS.values()):
            rng = np.random.default_rng([seed, number])
            shapes = {"q": (queries, depth), "k": (keys, depth), "v": (keys, depth)}
            kind = numpy_dtype(dtype)
            yield {name: draw(rng, shape).astype(kind) for name, shape in shapes.items()}


def tensor_core_attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    block: int = 32,
    cast: bool = True,
    half_sums: bool = False,
    half_total: bool = False,
    scaled: bool = True,
    rescale: bool = True,
) -> np.ndarray:
    """Flash attention that casts P to the dtype of V before it multiplies, and bugs of its kind."""
    dtype = q.dtype

    def narrow(values: np.ndarray) -> np.ndarray:
        return values.astype(dtype).astype(F32)

    q, k, v = (t.astype(F32) for t in (q, k, v))
    scale = F32(1 / np.sqrt(q.shape[1])) if scaled else F32(1)
    top, total = np.full(len(q), -np.inf, F32), np.zeros(len(q), F32)
    out = np.zeros((len(q), v.shape[1]), F32)
    for start in range(0, len(k), block):
        scores = q @ k[start : start + block].T * scale
        new_top = np.maximum(top, scores.max(-1))
        weights = np.exp(scores - new_top[:, None])
        factor = np.exp(top - new_top) if rescale else np.ones_like(top)
        total = total * factor + weights.sum(-1)
        total = narrow(total) if half_total else total
        weights = narrow(weights) if cast else weights
        out = out * factor[:, None] + weights @ v[start : start + block]
        out = narrow(out) if half_sums else out
        top = new_top
    return out / total[:, None]


def verdicts(precision: str, dtype: str, **options: bool | int) -> Iterator[Verdict]:
    """The verdict on each case, one at a time: who looks for a failure needs no more after it."""
    reference = Reference("attention")
    for inputs in cases(dtype):
        yield check(
            reference,
            lambda *tensors: tensor_core_attention(*tensors, **options),  # type: ignore[arg-type]
            inputs,
            dtype,
            rounding=rounding_for(precision, dtype),
        )[0].verdict


@pytest.mark.parametrize("block", [16, 4096])
@pytest.mark.parametrize("dtype", HALVES)
def test_attention_that_casts_its_weights_passes_by_default(dtype: str, block: int) -> None:
    assert set(verdicts("tensor-core", dtype, block=block)) == {Verdict.PASSED}
    assert Verdict.FAILED in verdicts("float32", dtype, block=block)
    assert set(verdicts("float32", dtype, block=block, cast=False)) == {Verdict.PASSED}


@pytest.mark.parametrize(
    "bug",
    [
        {"half_sums": True},
        {"half_sums": True, "block": 8},
        {"half_sums": True, "block": 16, "cast": False},
        {"half_total": True},
        {"half_total": True, "cast": False},
        {"scaled": False},
        {"rescale": False},
    ],
)
@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_bugs_fail_by_default(dtype: str, bug: dict[str, bool | int]) -> None:
    found = verdicts("tensor-core", dtype, **bug)
    assert Verdict.FAILED in found


MATMUL = """
import numpy as np
def op(a, b):
    return a.astype(np.float64) @ b.astype(np.float64)
"""


@pytest.mark.parametrize("dtype", HALVES)
def test_a_product_of_inputs_is_held_to_float32_as_ever(dtype: str) -> None:
    """Its operands are of the narrow type already: there is nothing to round."""
    reference = Reference("matmul")
    rng = np.random.default_rng(0)
    kind = numpy_dtype(dtype)
    inputs = {"a": rng.standard_normal((32, 200)), "b": rng.standard_normal((200, 32))}
    inputs = {name: array.astype(kind) for name, array in inputs.items()}

    def half_sums(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        total = np.zeros((32, 32), kind)
        for start in range(0, 200, 8):
            part = a[:, start : start + 8].astype(F32) @ b[start : start + 8].astype(F32)
            total = (total.astype(F32) + part).astype(kind)
        return total

    for precision in ("tensor-core", "float32"):
        rounding = rounding_for(precision, dtype)
        right, _ = check(
            reference, lambda a, b: a.astype(F32) @ b.astype(F32), inputs, dtype, rounding=rounding
        )
        wrong, _ = check(reference, half_sums, inputs, dtype, rounding=rounding)
        assert (right.verdict, wrong.verdict) == (Verdict.PASSED, Verdict.FAILED)


@pytest.mark.parametrize("dtype", HALVES)
def test_every_step_in_half_passes_where_the_project_says_so(dtype: str) -> None:
    reference = Reference("softmax")
    rng = np.random.default_rng(0)
    x = (3 * rng.standard_normal((40, 70))).astype(numpy_dtype(dtype))

    def by_steps(x: np.ndarray) -> np.ndarray:
        e = np.exp(x - x.max(-1, keepdims=True)).astype(x.dtype)
        return e / e.astype(F32).sum(-1, keepdims=True).astype(x.dtype)

    found = {
        precision: check(
            reference, by_steps, {"x": x}, dtype, rounding=rounding_for(precision, dtype)
        )[0].verdict
        for precision in PRECISIONS
    }
    assert found["input"] is Verdict.PASSED
    assert found["float32"] is found["tensor-core"] is Verdict.FAILED
    wrong, _ = check(
        reference, lambda x: 1.2 * by_steps(x).astype(F32), {"x": x}, dtype,
        rounding=rounding_for("input", dtype),
    )  # fmt: skip
    assert wrong.verdict is Verdict.FAILED


MLP = """
def op(x, w1, w2):
    x, w1, w2 = (t.astype(np.float64) for t in (x, w1, w2))
    return np.maximum(x @ w1, 0) @ w2
"""


def overflowing_mlp(dtype: str) -> Arrays:
    """Weights and 16 rows, of which the hidden layer of the first two overflows in `dtype`."""
    rng = np.random.default_rng(0)
    top = FLOAT_LIMITS[dtype].max
    x = rng.standard_normal((16, 32)) * top / 2**15
    x[:2] *= 2**12
    w1, w2 = 16 * rng.standard_normal((32, 64)), rng.standard_normal((64, 24)) / 2**12
    return {k: v.astype(numpy_dtype(dtype)) for k, v in {"x": x, "w1": w1, "w2": w2}.items()}


def half_mlp(
    x: np.ndarray, w1: np.ndarray, w2: np.ndarray, *, saturate: bool = False, cast: bool = True
) -> np.ndarray:
    """Two layers, of which the hidden one is kept in the dtype of the inputs."""
    hidden = np.maximum(x.astype(F32) @ w1.astype(F32), 0)
    if saturate:
        hidden = np.minimum(hidden, F32(FLOAT_LIMITS[x.dtype.name].max))
    hidden = hidden.astype(x.dtype).astype(F32) if cast else hidden
    return hidden @ w2.astype(F32)


@pytest.mark.parametrize("precision", ["tensor-core", "input"])
@pytest.mark.parametrize("dtype", ["float16", "float8_e5m2"])
def test_operands_that_overflow_take_the_verdict_from_what_depends_on_them(
    dtype: str, precision: str
) -> None:
    reference, inputs = Reference(source=MLP), overflowing_mlp(dtype)
    rounding = rounding_for(precision, dtype)
    for saturate in (False, True):
        result, _ = check(
            reference, lambda *t, s=saturate: half_mlp(*t, saturate=s), inputs, dtype,
            rounding=rounding,
        )  # fmt: skip
        assert result.failures == ()
        if saturate and (dtype, precision) == ("float8_e5m2", "input"):
            # With 2 bits, half a rounding of each step is more than what saturating changes.
            assert (result.verdict, result.stats.num_no_verdict) == (Verdict.PASSED, 0)
            continue
        assert result.verdict is Verdict.INCONCLUSIVE
        assert 0 < result.stats.num_no_verdict <= 2 * 24
    strict, _ = check(reference, half_mlp, inputs, dtype, rounding=rounding_for("float32", dtype))
    assert strict.verdict is Verdict.FAILED
    wide, _ = check(
        reference, lambda *t: half_mlp(*t, cast=False), inputs, dtype, rounding=rounding
    )
    assert wide.verdict is Verdict.PASSED, "its operands do not overflow"
    assert wide.stats.num_no_verdict == 0


@for_each("row", [2, 15])
@for_each("value", [np.nan, np.inf, 0.0, 1.1])
def test_what_depends_on_no_operand_that_overflows_is_judged(value: float, row: int) -> None:
    reference, inputs = Reference(source=MLP), overflowing_mlp("float16")

    def wrong(*tensors: np.ndarray) -> np.ndarray:
        result = half_mlp(*tensors)
        result[row] = result[row] * value if value > 1 else value
        return result

    result, _ = check(
        reference, wrong, inputs, "float16", rounding=rounding_for("tensor-core", "float16")
    )
    assert result.verdict is Verdict.FAILED
    assert {failure.index[0] for failure in result.failures if failure.index} == {row}


def test_only_types_narrower_than_float32_are_rounded_to() -> None:
    assert rounding_for("tensor-core", "float16") == Rounding("float16")
    assert rounding_for("input", "bfloat16") == Rounding("bfloat16", steps=True)
    for dtype in ("float32", "float64", "int32", "bool"):
        for precision in PRECISIONS:
            assert rounding_for(precision, dtype) is None
    assert rounding_for("float32", "float16") is None


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_rounding_is_that_of_the_format_and_keeps_what_it_holds(name: str) -> None:
    fmt = FLOAT_LIMITS[name]
    kind = numpy_dtype(name)
    values = np.random.default_rng(0).standard_normal(2000)
    values[:3] = [0.0, np.inf, -np.inf]
    with np.errstate(all="ignore"):
        exact = values.astype(np.float32).astype(kind).astype(np.float64)
    nearest = round_to(values.astype(np.float32).astype(np.float64), fmt)
    finite = np.isfinite(values)
    assert np.array_equal(nearest[finite], exact[finite])
    drawn = round_to(values, fmt, SeededRng(1))
    assert np.array_equal(round_to(nearest, fmt, SeededRng(1)), nearest)
    moved = np.abs(drawn[finite] - values[finite])
    assert np.all(moved <= fmt.eps * np.abs(values[finite]) + 1e-3)
    assert np.any(drawn != nearest)
    assert np.array_equal(drawn[~finite], values[~finite])


def test_outside_of_a_rounded_evaluation_nothing_is_rounded() -> None:
    value = np.float32([1.0001])
    assert rounded(value) is value
    with rounding_to(Rounding("bfloat16")):
        assert rounded(value)[0] == 1.0
        assert rounded([value, "ij", 3])[1:] == ["ij", 3]
        assert rounded(np) is np
        halves = np.zeros(3, ml_dtypes.bfloat16)
        assert rounded(halves) is halves
        whole = np.ones((2, 3), np.float32)
        assert rounded(whole) is whole, "views of it stay views"
    assert rounded(value) is value


SHORT = "R"
LONG = '__import__("gpuemu_flow.numerics.operand").numerics.operand.rounded'


@for_each(
    ("source", "wrapped"),
    [
        ("y = a @ b", "y = R(a) @ R(b)"),
        ("y = (a + 1) @ b.T", "y = (R(a + 1)) @ R(b.T)"),
        ("y = np.matmul(a, b, out=c)", "y = R(np).matmul(R(a), R(b), out=c)"),
        ("y = a.dot(b)", "y = R(a).dot(R(b))"),
        ("y = np.einsum('ij,jk', a, b)", "y = R(np).einsum(R('ij,jk'), R(a), R(b))"),
        ("y = torch.addmm(c, a, b)", "y = torch.addmm(c, R(a), R(b))"),
        ("y = F.conv2d(x, weight=w, bias=c)", "y = R(F).conv2d(R(x), weight=R(w), bias=c)"),
        ("y = tensordot(a, b, axes=1)", "y = tensordot(R(a), R(b), axes=1)"),
        ("a @= b", "a @= R(b)"),
        ("y = np.float64(a) @ b", "y = R(np.float32(a)) @ R(b)"),
        ("y = f'{a @ b}'", None),
        ("def f():\n    y = (yield a) @ b", None),
        ("y = a * b + np.exp(c)", None),
    ],
)
def test_operands_are_wrapped_where_they_stand(source: str, wrapped: str | None) -> None:
    found = shadow_source(source, "operands")
    if wrapped is None:
        assert found in (None, source)
    else:
        assert found is not None
        assert found.replace(LONG, SHORT) == wrapped


def test_steps_are_the_results_of_arithmetic_and_calls_but_no_targets_and_no_views() -> None:
    source = "@deco(1)\ndef f(x):\n    g(x)[0] = np.exp(x) * 2\n    return x.reshape(3) - 1"
    found = shadow_source(source, "steps")
    assert found is not None
    assert found.replace(LONG, SHORT) == (
        "@deco(1)\ndef f(x):\n    g(x)[0] = R(R(np.exp(x)) * 2)\n    return R(x.reshape(3) - 1)"
    )
