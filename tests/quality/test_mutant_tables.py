"""Each mutant fits its op and really changes its behaviour; each control is really correct."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import controls
import mutants
import numpy as np
import probes
import pytest
from numpy.typing import NDArray

FLOAT32_EPS = 2.0**-23
WELL_CONDITIONED = ("normal", "small", "zeros", "ties", "nan", "inf", "minus_inf")


@cache
def expected(op_name: str) -> list[tuple[probes.Probe, probes.Tensors, probes.Tensors]]:
    """Each probe of an op with its reference in float64 and the op's own outputs."""
    op = probes.OPS[op_name]
    reference, function = probes.function_of(op.reference), probes.function_of(op.op)
    return [
        (
            probe,
            probes.call(op, reference, probes.as_float64(probe.inputs)),
            probes.call(op, function, probe.inputs),
        )
        for probe in probes.probes(op)
    ]


def distance(value: NDArray, exact: NDArray, judged: NDArray) -> NDArray:
    """``|value - exact|`` where `judged`, else 0."""
    return np.abs(np.subtract(value, exact, where=judged, out=np.zeros(exact.shape)))


def differs(got: probes.Tensors, truth: probes.Tensors, own: probes.Tensors) -> bool:
    """Tell whether `got` is wrong where the op is right: in dtype, in NaN or Inf, or by a clear
    error."""
    for name, exact in truth.items():
        value, good = got[name], own[name]
        if value.dtype != good.dtype or value.shape != good.shape:
            return True
        if value.dtype.kind in "iu":
            if not np.array_equal(value, good):
                return True
            continue
        value, good = value.astype(np.float64), good.astype(np.float64)
        if not np.array_equal(np.where(np.isfinite(value), 0, value),
                              np.where(np.isfinite(good), 0, good), equal_nan=True):  # fmt: skip
            return True
        judged = np.isfinite(exact) & np.isfinite(good)
        spacing = probes.ulp(exact, got[name].dtype)
        usual = np.max(distance(good, exact, judged) - spacing / 2, initial=0)
        if np.any(distance(value, exact, judged) > 4 * usual + spacing):
            return True
    return False


def misbehaves(op: probes.Op, function: Callable[..., Any]) -> str:
    """The first probe on which a function crashes, changes inputs, varies or is wrong; or ''."""
    for probe, truth, own in expected(op.name):
        before = {name: array.tobytes() for name, array in probe.inputs.items()}
        inputs = {name: array.copy(order="K") for name, array in probe.inputs.items()}
        other = {name: array[::-1].copy(order="K") for name, array in probe.inputs.items()}
        try:
            probes.call(op, function, other)
            first = probes.call(op, function, inputs)
            changed = any(inputs[name].tobytes() != before[name] for name in inputs)
            again = probes.call(op, function, inputs)
        except (IndexError, ValueError) as error:
            return f"{probe.label}: {error}"
        if changed:
            return f"{probe.label}: input changed"
        if any(first[name].tobytes() != again[name].tobytes() for name in first):
            return f"{probe.label}: not deterministic"
        if differs(first, truth, own):
            return f"{probe.label}: wrong"
    return ""


@pytest.mark.ci
def test_the_op_itself_does_not_misbehave() -> None:
    for op in probes.OPS.values():
        assert misbehaves(op, probes.function_of(op.op)) == "", op.name


def test_there_are_enough_mutants_of_enough_ops_and_every_kind() -> None:
    assert len(mutants.MUTANTS) >= 60
    assert len({m.op for m in mutants.MUTANTS}) >= 12
    assert {m.kind for m in mutants.MUTANTS} == set(mutants.KINDS)
    assert {m.op for m in mutants.MUTANTS} <= set(probes.OPS)
    assert max(Counter(m.id for m in mutants.MUTANTS).values()) == 1
    assert len(controls.CONTROLS) >= 10
    assert max(Counter(c.id for c in controls.CONTROLS).values()) == 1


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda m: m.id)
def test_the_mutant_changes_what_its_op_does(mutant: mutants.Mutant) -> None:
    op = probes.OPS[mutant.op]
    assert mutant.file == op.op[0]
    source = (probes.ROOT / mutant.file).read_text(encoding="utf-8")
    planted = probes.function_from(mutants.apply(mutant, source), op.op[1], mutant.id)
    assert misbehaves(op, planted), "an equivalent mutant measures nothing"


@pytest.mark.parametrize("control", controls.CONTROLS, ids=lambda c: c.id)
def test_the_control_agrees_with_the_reference(control: controls.Control) -> None:
    op = probes.OPS[control.op]
    assert control.file == op.op[0]
    source = (probes.ROOT / control.file).read_text(encoding="utf-8")
    function = probes.function_from(controls.apply(control, source), op.op[1], control.id)
    reference = probes.function_of(op.reference)
    for probe, truth, own in expected(op.name):
        if probe.values not in WELL_CONDITIONED:
            continue
        got = probes.call(op, function, probe.inputs)
        wide = probes.as_float64(probe.inputs)
        magnitudes = {n: np.abs(a) if a.dtype.kind == "f" else a for n, a in wide.items()}
        scale = probes.call(op, reference, magnitudes)
        for name, exact in truth.items():
            where = f"{probe.label} {name}"
            assert got[name].dtype == own[name].dtype, where
            if got[name].dtype.kind in "iu":
                np.testing.assert_array_equal(got[name], exact, where)
                continue
            value = got[name].astype(np.float64)
            finite = np.isfinite(exact)
            np.testing.assert_array_equal(value[~finite], exact[~finite], where)
            if probe.values in ("nan", "inf", "minus_inf"):  # no scale for the rest
                continue
            size = np.fmax(np.abs(exact), np.abs(scale[name]))
            bound = 512 * FLOAT32_EPS * size + probes.ulp(exact, got[name].dtype)
            if control.name == "weights-cast":  # what `precision` allows
                bound += probes.ulp(size, got[name].dtype)
            assert np.all((distance(value, exact, finite) <= bound)[finite]), where


def test_an_edit_that_does_not_fit_is_an_error() -> None:
    mutant = mutants.MUTANTS[0]
    with pytest.raises(mutants.EditError, match="0 times"):
        mutants.apply(mutant, "nothing of the kind")
    with pytest.raises(mutants.EditError, match="2 times"):
        mutants.apply(mutant, mutant.old + mutant.old)
    with pytest.raises(mutants.EditError, match="changes nothing"):
        mutants.replace_once("a", "a", "a", "here")
