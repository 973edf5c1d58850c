"""What every report shows of a failure first: its smallest inputs, both values, the place."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from threading import Event
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from gpuemu_flow.build.signals import cancel_on_signals
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.cases.conditions import meets
from gpuemu_flow.cases.generate import input_values, materialise
from gpuemu_flow.fuzz.failures import CODE, fails_alike, stored_inputs
from gpuemu_flow.fuzz.minimizing import minimise_failure
from gpuemu_flow.judge.fuzz_results import FuzzReport
from gpuemu_flow.judge.results import (
    CaseVerdict,
    KnownFailure,
    Minimal,
    MinimalInput,
    OpResult,
    RunReport,
)
from gpuemu_flow.model.errors import CancelledRunError, FlowError
from gpuemu_flow.model.types import BAD, SCALAR, Case, CheckResult, Failure, InputSpec
from gpuemu_flow.model.verdicts import Cause
from gpuemu_flow.numerics.dtypes import to_float64
from gpuemu_flow.report.document import causes
from gpuemu_flow.report.gather import place_of_op
from gpuemu_flow.report.text import says
from gpuemu_flow.store.failures import FailureRecord, FailureStore

SHOWN_VALUES = 64
FEW_VALUES = 8
SHORT = 72
"""Largest number of characters of an input's values in one line."""
SECONDS = 1.0
"""Time to shrink the first failure of an op after a run."""
MOST_SECONDS = 4.0
"""Time to shrink failures of all ops of a run together."""
MINIMIZE_RUNS = 300
WHATEVER = frozenset(("op-not-loadable", "op-signature", "ImportError", "ModuleNotFoundError"))
"""What fails alike on all inputs, so that none is shown."""


def minimal_of(workspace: Workspace, record: FailureRecord) -> Minimal:
    """Return what is shown of a recorded failure: of its shrunk case, if there is one."""
    store = FailureStore(workspace.cache)
    record = _smaller(store, record) or record
    try:
        inputs = stored_inputs(store, record)
    except FlowError:
        inputs = {}
    case, result = record.case, record.result
    place = places_of_ops(workspace, {record.op}).get(record.op, "")
    return describe(case, result, inputs, record.reproduce, place, record.id)


def _smaller(store: FailureStore, record: FailureRecord) -> FailureRecord | None:
    """Return the case that a failure was shrunk to; None if other code or another fault was."""
    try:
        found = store.get(record.minimized) if record.minimized else None
    except FlowError:
        return None
    if found is None or (found.provenance or {}).get(CODE) != (record.provenance or {}).get(CODE):
        return None
    return found if fails_alike(record, found.result) else None


def describe(
    case: Case,
    result: CheckResult,
    inputs: Mapping[str, NDArray[Any]],
    command: str,
    op_place: str = "",
    failure_id: str = "",
) -> Minimal:
    """Return what is shown of a failing case with these inputs."""
    failure = most_telling(result.failures)
    found = {
        spec.name: _input(spec, inputs[spec.name])
        if spec.name in inputs
        else MinimalInput(spec.dtype, spec.shape, f"{spec.dtype}{list(spec.shape)}")
        for spec in case.inputs
        if spec.has_values
    }
    if failure is None:
        return Minimal(inputs=found, command=command, id=failure_id, place=op_place)
    if failure.why in WHATEVER:
        found = {}
    finding = failure.finding.place if failure.finding is not None else None
    place = failure.place or (f"{finding.file}:{finding.line}" if finding is not None else "")
    return Minimal(
        inputs=found,
        kind=failure.kind.value,
        output=failure.output,
        index=failure.index,
        expected=failure.expected,
        actual=failure.actual,
        says=says(failure, case.dtype),
        place=place or op_place,
        command=command,
        id=failure_id,
    )


def most_telling(failures: Sequence[Failure]) -> Failure | None:
    """Return the failure to show: the first with a finite expected value, else the first."""
    finite = (f for f in failures if f.expected is not None and math.isfinite(f.expected))
    return next(finite, failures[0] if failures else None)


def _input(spec: InputSpec, array: NDArray[Any]) -> MinimalInput:
    rule = spec.rule
    dtype, shape = array.dtype.name, tuple(array.shape)
    if rule is not None and rule.kind == SCALAR and array.size == 1:
        value = array.reshape(-1)[0].item()
        value = rule.choices[int(value) % len(rule.choices)] if rule.choices else value
        return MinimalInput(dtype, (), repr(value), value)
    plain = np.asarray(to_float64(array) if array.dtype.kind == "V" else array)
    small = plain.size <= SHOWN_VALUES
    return MinimalInput(dtype, shape, one_line(array), plain.tolist() if small else None)


def one_line(array: NDArray[Any]) -> str:
    """Format an input's values in one line.

    Of a large tensor, only the shape is shown, and a few elements if all others are equal.
    """
    values = np.asarray(to_float64(array) if array.dtype.kind == "V" else array)
    if values.size <= SHOWN_VALUES:
        text = np.array2string(
            values, separator=", ", max_line_width=1 << 16, threshold=SHOWN_VALUES,
            formatter={"float_kind": lambda v: re.sub(r"\.0$", ".", str(v))},
        )  # fmt: skip
        flat = " ".join(text.split())
        if len(flat) <= SHORT:
            return flat
    few = _few_that_differ(values)
    named = f"{array.dtype.name}{list(values.shape)}"
    return f"{named}: {few}" if few and len(few) <= SHORT else named


def _few_that_differ(values: NDArray[Any]) -> str:
    """Describe a tensor in which all elements but a few are equal; empty if it is no such tensor.

    Minimised inputs are of this kind.
    """
    if not values.size:
        return ""
    for rest in dict.fromkeys((values.dtype.type(0).item(), values.flat[-1].item())):
        places = np.argwhere(values != rest)
        if len(places) <= FEW_VALUES:
            few = [f"{list(map(int, at))} = {values[tuple(at)].item()!r}" for at in places]
            return f"{rest!r} everywhere" + (f" but {', '.join(few)}" if few else "")
    return ""


def places_of_ops(workspace: Workspace, names: set[str]) -> dict[str, str]:
    """Map ops to ``file:line`` of their sources, relative to the workspace."""
    root, config = workspace.root, workspace.config_path
    ops = (op for op in workspace.config.ops if op.name in names)
    found = ((op.name, place_of_op(op, config, root)) for op in ops)
    return {name: f"{file}:{line}" for name, (file, line) in found}


def with_shown(workspace: Workspace, report: FuzzReport) -> FuzzReport:
    """Return a fuzz run's report with what is shown of its failures first."""
    groups = (
        replace(group, shown=minimal_of(workspace, group.minimized or group.failures[0]))
        for group in report.groups
    )
    return replace(report, groups=tuple(groups)) if report.groups else report


# Shrink the first failure of each op after a run.


def with_minima(workspace: Workspace, report: RunReport, *, search: bool = True) -> RunReport:
    """Return a run's report with what is shown of its failures first.

    With `search`, the first failure of each op is shrunk, within a second for an op. The failures
    have to be recorded already, and what their records hold is in the report afterwards.
    """
    if not report.failures:
        return report
    store = FailureStore(workspace.cache)
    if report.interrupted:
        return replace(report, known=_known(report, store))
    records = {
        (record.op, record.seed, record.dtype, record.message): record
        for record in store
        if record.minimized_from is None
    }
    end = time.monotonic() + MOST_SECONDS
    by_op: dict[str, list[OpResult]] = {}
    for result in report.results:
        if result.failures:
            by_op.setdefault(result.op, []).append(result)
    places = places_of_ops(workspace, set(by_op))
    minima: dict[tuple[str, int, str], Minimal] = {}
    with cancel_on_signals() as cancel:
        for op, results in by_op.items():
            for number, found in enumerate(causes(results)):
                failure = found.members[0]
                case, first = failure.case, next(iter(failure.result.failures), None)
                said = "" if first is None else first.message
                record = records.get((op, case.seed, case.dtype, said))
                left = min(SECONDS, end - time.monotonic())
                fresh = search and number == 0 and not _fails_always(results)
                if record is not None and _smaller(store, record) is None and fresh and left > 0:
                    record = _shrunk(workspace, store, record, left, cancel)
                minima[op, case.seed, case.dtype] = (
                    minimal_of(workspace, record)
                    if record is not None and _may_stand(store, record, found.cause)
                    else _of_case(failure, places.get(op, ""), record)
                )
    return replace(report, minima=minima, known=_known(report, store))


def _known(report: RunReport, store: FailureStore) -> dict[tuple[str, int, str], KnownFailure]:
    """Return what the records of a report's failures hold beside the verdicts."""
    wanted = {(f.op, f.case.seed, f.case.dtype) for f in report.failures}
    return {
        key: KnownFailure(record.id, record.time, record.minimized, **record.tolerance)
        for record in store
        if (key := (record.op, record.seed, record.dtype)) in wanted and not record.minimized_from
    }


def _fails_always(results: Sequence[OpResult]) -> bool:
    """Tell whether nothing is to be found: cached results, or an error in every case alike."""
    if all(result.cached for result in results):
        return True
    first = {f.result.failures[0].why for r in results for f in r.failures if f.result.failures}
    return len(first) == 1 and all(result.errors == result.cases for result in results)


def _may_stand(store: FailureStore, record: FailureRecord, cause: Cause | None) -> bool:
    """Tell whether there is a smaller case that meets what is stated below it as the cause."""
    smaller = _smaller(store, record)
    if smaller is None or cause is None:
        return smaller is not None
    case, inputs = smaller.case, stored_inputs(store, smaller)
    return all(meets(case, inputs, condition) for condition in cause.conditions)


def _of_case(failure: CaseVerdict, place: str, record: FailureRecord | None) -> Minimal:
    case = failure.case
    try:
        few = case.numel <= SHOWN_VALUES
        inputs = dict(materialise(case)) if few else _scalars(case)
    except FlowError:
        inputs = {}
    named = "" if record is None else record.id
    return describe(case, failure.result, inputs, failure.reproduce, place, named)


def _scalars(case: Case) -> dict[str, NDArray[Any]]:
    rules = ((s, s.rule) for s in case.inputs if s.has_values)
    scalars = (s for s, rule in rules if rule is not None and rule.kind == SCALAR)
    return {s.name: input_values(case, s) for s in scalars}


def _shrunk(
    workspace: Workspace,
    store: FailureStore,
    record: FailureRecord,
    seconds: float,
    cancel: Event,
) -> FailureRecord:
    """Shrink a recorded failure for a while; return its record as it is then."""
    if cancel.is_set() or record.verdict not in {verdict.value for verdict in BAD}:
        return record
    try:
        minimise_failure(
            workspace,
            record,
            strategy="all",
            budget=MINIMIZE_RUNS,
            seconds=seconds,
            cancel=cancel,
        )
    except (FlowError, CancelledRunError):
        return record
    return store.get(record.id)
