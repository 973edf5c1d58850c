"""On real planted bugs the diagnosis says something true and useful: the finding is named here."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import mutants
import numpy as np
import probes
import pytest
from whole import sample

from gpuemu_flow.model.types import Tolerance
from gpuemu_flow.numerics.diagnose import diagnose
from gpuemu_flow.numerics.finding import Finding

MUTANTS = {mutant.id: mutant for mutant in mutants.MUTANTS}
TOLERANCES = {"float32": Tolerance(1e-5, 1e-3), "float16": Tolerance(1e-9, 8e-3)}
EXACT = Tolerance(0.0, 0.0)

TAILS = (40, 137, 70)
LARGEST = (10_000,)
RUBBISH = np.random.default_rng(0).normal(size=9973)


@dataclass(frozen=True)
class Expectation:
    """The finding expected for one mutant, on inputs made as in `probes`."""

    mutant: str
    kind: str
    numbers: dict[str, Any] = field(default_factory=dict)
    values: str = "normal"
    sizes: tuple[int, ...] = TAILS
    layout: str = "contiguous"
    dtype: str = "float32"
    output: str = ""
    first: bool = True

    def __str__(self) -> str:
        return f"{self.mutant}: {self.kind}"


E = Expectation
EXPECTATIONS = (
    # Where the errors lie: the tile that was not masked, stored or carried.
    E("attention/grid-rounds-down", "tail", {"axis": 2, "start": 128, "tile": 128}, sizes=LARGEST),
    E("matmul/grid-rounds-down", "tail", {"axis": 0, "start": 128, "tile": 128}, sizes=LARGEST),
    E("matmul/edge-tile-not-cleared", "tail", {"axis": 1, "start": 64, "tile": 64}),
    E("transpose_copy/grid-rounds-down", "tail", {"axis": 1, "start": 32, "tile": 32}),
    E("layernorm/weights-of-the-first-tile", "tail", {"axis": 1, "start": 128, "tile": 128}),
    E("rmsnorm/weights-of-the-first-tile", "tail", {"axis": 1, "start": 64, "tile": 64},
      first=False),
    E("softmax/tile-keeps-its-own-maximum", "tail", {"axis": 2, "start": 128, "tile": 128}),
    E("cumsum/no-carry", "tail", {"axis": 1, "start": 64, "tile": 64}),
    E("cumsum/carry-counted-twice", "tail", {"axis": 1, "start": 128, "tile": 128}),
    E("cumsum/scan-one-step-short", "tail", {"axis": 1, "start": 32, "tile": 32}),
    E("causal_attention/sees-one-key-ahead", "head", {"axis": 2, "stop": 39, "size": 40}),
    E("causal_attention/wholly-masked-split", "head", {"axis": 2, "stop": 96, "tile": 32},
      sizes=LARGEST, first=False),
    E("bias_add_relu/last-element-not-written", "one-element", {"index": [31, 136]}),
    E("bias_add_relu/bias-of-the-first-block", "memory-tail", {"start": 256, "tile": 256}),
    E("gelu_tanh/grid-rounds-down", "memory-tail", {"start": 4096}),
    E("silu/grid-rounds-down", "memory-tail", {"start": 4096}),
    E("leaky_relu/grid-rounds-down", "memory-tail", {"start": 12288}),
    # What the wrong values are.
    E("leaky_relu/alpha-hard-coded", "factor", {"factor": 0.1, "meaning": "1/10"}),
    E("matmul/alpha-ignored", "factor", {"factor": 2 / 3, "meaning": "2/3"}),
    E("rmsnorm/padding-counts-in-the-mean", "factor", {"meaning": "√(192/137)"}),
    E("layernorm/unbiased-variance", "factor", {"meaning": "√(6/7)"}, sizes=(40, 7), output="rstd"),
    E("logsumexp/odd-partial-dropped", "offset", {"offset": math.log(1 - 8 / 520)}, "small",
      LARGEST, output="lse"),
    E("argmax/index-in-a-signed-byte", "offset", {"offset": -256.0}, sizes=(64, 264)),
    E("argmax/index-without-tile-start", "wrapped", {"modulus": 64}),
    E("argmax/tail-lanes-hold-zero", "constant", {"value": 137.0}, "negative"),
    E("attention/lse-without-maximum", "zeros", {}, "wide", output="lse"),
    E("matmul/saturating-store", "clipped", {"value": 65504.0, "format": "float16"}, "huge"),
    E("transpose_copy/flushes-subnormals", "flushed", {"below": 2.0**-14}, "tiny", dtype="float16"),
    E("softmax/tail-lanes-hold-zero", "row-factor"),
    E("softmax/sum-not-rescaled", "row-factor"),
    E("softmax/sum-of-the-last-tile", "row-factor"),
    E("l2norm/squares-keep-the-old-scale", "row-factor"),
    E("l2norm/epsilon-squared", "row-factor", {}, "small"),
    E("rmsnorm/squares-of-the-last-tile", "row-factor"),
    E("rmsnorm/reduction-tree-one-level-short", "row-factor"),
    E("attention/sum-not-rescaled", "row-factor", output="out"),
    E("rmsnorm/weights-of-the-first-tile", "column-factor"),
    E("matmul/last-k-left-out", "low-rank", {"rank": 1}),
    E("layernorm/mean-of-the-last-tile", "low-rank", {"rank": 1}, output="y"),
    E("matmul/partial-sums-in-storage-dtype", "rounding", dtype="float16"),
    # Right values elsewhere.
    E("transpose_copy/assumes-contiguous-rows", "transposed", {"axes": [0, 1]}, sizes=(64, 64),
      layout="transposed"),
    E("conv2d/window-shifted", "shifted", {"axis": 3, "distance": 1}),
    # NaN and Inf.
    E("bias_add_relu/nan-becomes-zero", "nan-lost", {"value": 0.0}, "nan"),
    E("leaky_relu/nan-becomes-zero", "nan-lost", {"value": 0.0}, "nan"),
    E("silu/clamped-to-its-minimum", "nan-lost", {"value": pytest.approx(-0.2785)}, "nan"),
    E("softmax/nan-counts-as-nothing", "nan-lost", {}, "nan"),
    E("matmul/nan-operands-count-as-zero", "nan-lost", {}, "nan"),
    E("cumsum/carry-only-if-finite", "nan-lost", {}, "nan"),
    E("gelu_erf/tail-never-reaches-zero", "nan-lost", {"value": -math.inf}, "minus_inf"),
    E("attention/exp-of-raw-scores", "nan", {}, "wide", output="out"),
    E("cross_entropy/exp-of-raw-logits", "inf", {"value": math.inf}, "wide"),
    E("leaky_relu/halves-of-sum-and-magnitude", "nan", {}, "minus_inf"),
    # When.
    E("l2norm/zero-row-divides-by-zero", "input-row", {"holds": "is all zeros"}, "zeros",
      first=False),
    E("logsumexp/positive-infinity-gives-nan", "input-row", {"holds": "holds +Inf"}, "inf",
      output="lse", first=False),
    E("argmax/nan-never-wins", "input-row", {"holds": "holds NaN"}, "nan"),
    E("softmax/exp-of-raw-values", "input-value", {"side": "above"}, "wide", first=False),
    E("silu/exponential-overflows", "input-value", {"side": "above"}, "wide", first=False),
)  # fmt: skip


def findings(wanted: Expectation) -> tuple[Finding, ...]:
    """The diagnosis of the wanted output of the mutant, with a tolerance that any check has."""
    mutant = MUTANTS[wanted.mutant]
    op = probes.OPS[mutant.op]
    source = (probes.ROOT / mutant.file).read_text(encoding="utf-8")
    function = probes.function_from(mutants.apply(mutant, source), op.op[1], mutant.id)
    dtype = probes.numpy_dtype(wanted.dtype)
    sizes = probes.sizes_near(op, wanted.sizes)
    inputs = probes.draw(op, sizes, dtype, wanted.values, wanted.layout)
    reference = probes.function_of(op.reference)
    expected = probes.call(op, reference, probes.as_float64(inputs))
    copies = {name: array.copy(order="K") for name, array in inputs.items()}
    actual = probes.call(op, function, copies)
    name = wanted.output or op.outputs[0]
    exact = actual[name].dtype.kind in "iu"
    tolerance = EXACT if exact else TOLERANCES[wanted.dtype]
    return diagnose(actual[name], expected[name], tolerance, inputs=inputs)


@pytest.fixture
def stale_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give `np.empty` the same rubbish at each call.

    What an allocator hands out depends on what ran before; now and then it is the freed input
    itself, and then "the input, unchanged" is as true of an unwritten tail as where it starts.
    """

    def stale(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if array.dtype.kind == "f":
            array.flat = RUBBISH
        return array

    empty, empty_like = np.empty, np.empty_like
    monkeypatch.setattr(np, "empty", lambda *args, **kw: stale(empty(*args, **kw)))
    monkeypatch.setattr(np, "empty_like", lambda *args, **kw: stale(empty_like(*args, **kw)))


@pytest.mark.usefixtures("stale_memory")
@pytest.mark.parametrize("wanted", sample(EXPECTATIONS, 3), ids=str)
def test_the_bug_is_described(wanted: Expectation) -> None:
    found = findings(wanted)
    said = [finding.sentence for finding in found]
    assert found, "nothing was found"
    matching = [finding for finding in found if finding.kind == wanted.kind]
    assert matching, f"not said: {wanted.kind}; said: {said}"
    for name, value in wanted.numbers.items():
        close = isinstance(value, float) and math.isfinite(value)
        assert matching[0].numbers[name] == (pytest.approx(value, rel=1e-3) if close else value)
    if wanted.first:
        assert found[0] is matching[0], said


def test_the_borders_in_the_inputs_are_where_exp_overflows() -> None:
    for mutant in ("softmax/exp-of-raw-values", "silu/exponential-overflows"):
        wanted = next(w for w in EXPECTATIONS if (w.mutant, w.kind) == (mutant, "input-value"))
        border = next(f for f in findings(wanted) if f.kind == "input-value")
        assert math.log(3.4e38) - 1 < border.numbers["border"] < math.log(3.4e38) + 6


def test_enough_mutants_of_most_ops_are_covered() -> None:
    covered = {wanted.mutant for wanted in EXPECTATIONS}
    assert len(covered) >= 50
    assert len({mutant.partition("/")[0] for mutant in covered}) >= 16
