"""Ops for the tests of the auto tolerance: references, right and wrong implementations, a check."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gpuemu_flow.model.types import CheckResult
from gpuemu_flow.numerics.compare import Policy, check_outputs
from gpuemu_flow.numerics.dtypes import numpy_dtype
from gpuemu_flow.numerics.envelope import Envelope
from gpuemu_flow.numerics.operand import Rounding, rounding_to
from gpuemu_flow.numerics.perturb import widen
from gpuemu_flow.numerics.shadow import shadow_source

Arrays = Mapping[str, np.ndarray]
Op = Callable[..., np.ndarray]
F32 = np.float32


def single(*arrays: np.ndarray) -> list[np.ndarray]:
    return [array.astype(np.float32) for array in arrays]


# References, in the float64 that references are written in

REFERENCES = {
    "softmax": """
def op(x):
    e = np.exp(x.astype(np.float64) - x.astype(np.float64).max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
""",
    "matmul": """
def op(a, b):
    return a.astype(np.float64) @ b.astype("float64")
""",
    "layernorm": """
def op(x):
    x = np.asarray(x, dtype=np.float64)
    mean = x.mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5)
""",
    "logsumexp": """
def op(x):
    x = x.astype(float)
    top = x.max(-1, keepdims=True)
    return np.log(np.exp(x - top).sum(-1)) + top[..., 0]
""",
    "cumsum": """
def op(x):
    return np.cumsum(x, -1, dtype=np.float64)
""",
    "l2norm": """
def op(x):
    x = x.astype(np.float64)
    return x / np.maximum(np.sqrt((x * x).sum(-1, keepdims=True)), 1e-12)
""",
    "gelu": """
def op(x):
    x = x.astype(np.float64)
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2.0)).astype(np.float64))
""",
    "attention": """
def op(q, k, v):
    q, k, v = (t.astype(np.float64) for t in (q, k, v))
    scores = q @ k.T / np.sqrt(np.float64(q.shape[1]))
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)) @ v
""",
}


class Reference:
    """A reference and its shadow, made from one source; counts its evaluations."""

    def __init__(self, name: str = "", source: str = "") -> None:
        source = "import math\nimport numpy as np\n" + (source or REFERENCES[name])
        shadow = shadow_source(source)
        assert shadow is not None
        self.functions = [self.load(source), self.load(shadow)]
        self.rounding = {
            wrap: self.load(shadow_source(source, wrap) or source) for wrap in ("operands", "steps")
        }
        self.calls = 0

    @staticmethod
    def load(source: str) -> Op:
        namespace: dict[str, Any] = {}
        exec(source, namespace)
        op: Op = namespace["op"]
        return op

    def __call__(
        self, inputs: Arrays, *, shadow: bool = False, rounding: Rounding | None = None
    ) -> Arrays:
        self.calls += 1
        function = self.functions[shadow]
        if rounding is not None:
            function = self.rounding["steps" if rounding.steps else "operands"]
        with np.errstate(all="ignore"), rounding_to(rounding):
            return {"y": np.asarray(function(*inputs.values()))}


class Function:
    """Any function of one input as a reference; it computes in the dtype that it is given."""

    def __init__(self, function: Op) -> None:
        self.function = function
        self.calls = 0

    def __call__(self, inputs: Arrays, *, shadow: bool = False) -> Arrays:
        self.calls += 1
        with np.errstate(all="ignore"):
            return {"y": np.asarray(self.function(*inputs.values()))}


# Right implementations: other algorithms in float32


def online_softmax(x: np.ndarray, *, rescale: bool = True) -> np.ndarray:
    (x,) = single(x)
    top, total = np.full(x.shape[:-1], -np.inf, F32), np.zeros(x.shape[:-1], F32)
    for start in range(0, x.shape[-1], 37):
        tile = x[..., start : start + 37]
        new_top = np.maximum(top, tile.max(-1))
        factor = np.exp(top - new_top) if rescale else F32(1)
        total = total * factor + np.exp(tile - new_top[..., None]).sum(-1)
        top = new_top
    return np.exp(x - top[..., None]) / total[..., None]


def exp2_softmax(x: np.ndarray) -> np.ndarray:
    scaled = x.astype(F32) * F32(1.4426950408889634)
    e = np.exp2(scaled - scaled.max(-1, keepdims=True))
    return e * (F32(1) / np.cumsum(e, -1, dtype=F32)[..., -1:])


def tiled_matmul(
    a: np.ndarray, b: np.ndarray, *, drop_tail: bool = False, assign: bool = False
) -> np.ndarray:
    a, b = single(a, b)
    total = np.zeros((a.shape[0], b.shape[1]), F32)
    for start in range(0, a.shape[1], 16):
        if drop_tail and start + 16 > a.shape[1]:
            break
        part = a[:, start : start + 16] @ b[start : start + 16]
        total = part if assign else total + part
    return total


def outer_product_matmul(a: np.ndarray, b: np.ndarray, dtype: Any = F32) -> np.ndarray:
    total = np.zeros((a.shape[0], b.shape[1]), dtype)
    for k in range(a.shape[1]):
        total += a[:, k : k + 1].astype(dtype) * b[k : k + 1].astype(dtype)
    return total.astype(F32)


def two_pass_layernorm(x: np.ndarray, eps: float = 1e-5) -> np.ndarray:
    (x,) = single(x)
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * (F32(1) / np.sqrt(variance + F32(eps)))


def welford_layernorm(x: np.ndarray, *, less: int = 0) -> np.ndarray:
    (x,) = single(x)
    mean, squares = np.zeros(x.shape[:-1], F32), np.zeros(x.shape[:-1], F32)
    for i in range(x.shape[-1]):
        delta = x[..., i] - mean
        mean = mean + delta / F32(i + 1)
        squares = squares + delta * (x[..., i] - mean)
    variance = squares / F32(x.shape[-1] - less)
    return (x - mean[..., None]) / np.sqrt(variance + F32(1e-5))[..., None]


def online_logsumexp(x: np.ndarray, *, rescale: bool = True) -> np.ndarray:
    (x,) = single(x)
    top, total = np.full(x.shape[:-1], -np.inf, F32), np.zeros(x.shape[:-1], F32)
    for start in range(0, x.shape[-1], 29):
        tile = x[..., start : start + 29]
        new_top = np.maximum(top, tile.max(-1))
        factor = np.exp(top - new_top) if rescale else F32(1)
        total = total * factor + np.exp(tile - new_top[..., None]).sum(-1)
        top = new_top
    return top + np.log(total)


def blocked_cumsum(x: np.ndarray, *, carry: bool = True) -> np.ndarray:
    (x,) = single(x)
    out, last = np.empty_like(x), np.zeros(x.shape[:-1], F32)
    for start in range(0, x.shape[-1], 32):
        part = np.cumsum(x[..., start : start + 32], -1, dtype=F32)
        out[..., start : start + 32] = part + last[..., None] if carry else part
        last = out[..., min(start + 31, x.shape[-1] - 1)]
    return out


def tree_cumsum(x: np.ndarray) -> np.ndarray:
    out = x.astype(F32)
    distance = 1
    while distance < x.shape[-1]:
        shifted = out.copy()
        shifted[..., distance:] += out[..., :-distance]
        out, distance = shifted, 2 * distance
    return out


def reciprocal_l2norm(x: np.ndarray) -> np.ndarray:
    (x,) = single(x)
    total = np.cumsum(x * x, -1, dtype=F32)[..., -1:]
    return x * (F32(1) / np.maximum(np.sqrt(total), F32(1e-12)))


def erf_gelu(x: np.ndarray) -> np.ndarray:
    (x,) = single(x)
    erf = np.vectorize(math.erf)(x * F32(0.70710678)).astype(F32)
    return F32(0.5) * x * (F32(1) + erf)


def flash_attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scaled: bool = True, rescale: bool = True
) -> np.ndarray:
    q, k, v = single(q, k, v)
    scale = F32(1) / np.sqrt(F32(q.shape[1])) if scaled else F32(1)
    top, total = np.full(len(q), -np.inf, F32), np.zeros(len(q), F32)
    out = np.zeros((len(q), v.shape[1]), F32)
    for start in range(0, len(k), 19):
        scores = q @ k[start : start + 19].T * scale
        new_top = np.maximum(top, scores.max(-1))
        weights = np.exp(scores - new_top[:, None])
        factor = np.exp(top - new_top) if rescale else np.ones(len(q), F32)
        total = total * factor + weights.sum(-1)
        out = out * factor[:, None] + weights @ v[start : start + 19]
        top = new_top
    return out / total[:, None]


RIGHT: list[tuple[str, Op]] = [
    ("softmax", online_softmax),
    ("softmax", exp2_softmax),
    ("matmul", tiled_matmul),
    ("matmul", outer_product_matmul),
    ("layernorm", two_pass_layernorm),
    ("layernorm", welford_layernorm),
    ("logsumexp", online_logsumexp),
    ("cumsum", blocked_cumsum),
    ("cumsum", tree_cumsum),
    ("l2norm", reciprocal_l2norm),
    ("gelu", erf_gelu),
    ("attention", flash_attention),
]


def zero_padded_softmax(x: np.ndarray) -> np.ndarray:
    padded = np.zeros((*x.shape[:-1], 1 << (x.shape[-1] - 1).bit_length()), F32)
    padded[..., : x.shape[-1]] = x
    return exp2_softmax(padded)[..., : x.shape[-1]]


def tanh_gelu(x: np.ndarray) -> np.ndarray:
    (x,) = single(x)
    return F32(0.5) * x * (F32(1) + np.tanh(F32(0.7978845608) * (x + F32(0.044715) * x**3)))


def half_layernorm(x: np.ndarray) -> np.ndarray:
    half = x.astype(np.float16)
    mean = half.mean(-1, keepdims=True, dtype=np.float16)
    variance = ((half - mean) ** 2).mean(-1, keepdims=True, dtype=np.float16)
    return ((half - mean) / np.sqrt(variance + np.float16(1e-5))).astype(F32)


def stale_row_l2norm(x: np.ndarray) -> np.ndarray:
    out = reciprocal_l2norm(x)
    out[-1] = out[0]
    return out


WRONG: dict[str, tuple[str, Op]] = {
    "no rescale in online softmax": ("softmax", lambda x: online_softmax(x, rescale=False)),
    "tail padded with zero": ("softmax", zero_padded_softmax),
    "scaled by 0.9": ("softmax", lambda x: exp2_softmax(x) * F32(0.9)),
    "last partial tile dropped": ("matmul", lambda a, b: tiled_matmul(a, b, drop_tail=True)),
    "= for +=": ("matmul", lambda a, b: tiled_matmul(a, b, assign=True)),
    "half accumulation": ("matmul", lambda a, b: outer_product_matmul(a, b, np.float16)),
    "wrong epsilon": ("layernorm", lambda x: two_pass_layernorm(x, 1e-3)),
    "n - 1 in the variance": ("layernorm", lambda x: welford_layernorm(x, less=1)),
    "half layernorm": ("layernorm", half_layernorm),
    "no rescale in logsumexp": ("logsumexp", lambda x: online_logsumexp(x, rescale=False)),
    "exclusive cumsum": ("cumsum", lambda x: tree_cumsum(x) - x.astype(F32)),
    "carry lost": ("cumsum", lambda x: blocked_cumsum(x, carry=False)),
    "stale row": ("l2norm", stale_row_l2norm),
    "tanh for erf": ("gelu", tanh_gelu),
    "no 1/sqrt(D)": ("attention", lambda q, k, v: flash_attention(q, k, v, scaled=False)),
    "no rescale here": ("attention", lambda q, k, v: flash_attention(q, k, v, rescale=False)),
}

SHAPES = [(1, 1), (3, 5), (4, 128), (5, 129), (2, 513)]
STRATEGIES = ["normal", "uniform", "negative", "offset"]


def draw(rng: np.random.Generator, strategy: str, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    values = rng.standard_normal(shape)
    if strategy == "uniform":
        values = rng.uniform(-10, 10, shape)
    elif strategy == "negative":
        values = -np.abs(values) - 0.01
        values[::3] -= 100
    elif strategy == "offset":
        values = 30 + values * rng.choice([1.0, 1e-2, 1e-4])
    return values.astype(numpy_dtype(dtype))


def inputs_of(name: str, strategy: str, shape: tuple[int, int], dtype: str, seed: int) -> Arrays:
    rng = np.random.default_rng([seed, STRATEGIES.index(strategy)])
    rows, columns = shape
    if name == "matmul":
        return {
            "a": draw(rng, strategy, (rows, columns), dtype),
            "b": draw(rng, strategy, (columns, 7), dtype),
        }
    if name == "attention":
        shapes = {"q": (rows, 16), "k": (columns, 16), "v": (columns, 16)}
        return {key: draw(rng, strategy, s, dtype) for key, s in shapes.items()}
    return {"x": draw(rng, strategy, (rows, columns), dtype)}


def check(
    evaluate: Any,
    op: Op,
    inputs: Arrays,
    dtype: str,
    *,
    exact_op: bool = False,
    weak: bool = False,
    expected: Arrays | None = None,
    rounding: Rounding | None = None,
) -> tuple[CheckResult, Envelope]:
    if expected is None:
        expected = evaluate(widen(inputs))
    envelope = Envelope(
        inputs,
        expected,
        evaluate,
        dtype=dtype,
        seed=5,
        exact_op=exact_op,
        weak=weak,
        rounding=rounding,
    )
    with np.errstate(all="ignore"):
        actual = np.asarray(op(*inputs.values())).astype(numpy_dtype(dtype))
    result = check_outputs(
        {"y": actual},
        expected,
        tolerance=envelope,
        policy=Policy(),
        expected_dtypes={"y": dtype},
        inputs=inputs,
    )
    return result, envelope
