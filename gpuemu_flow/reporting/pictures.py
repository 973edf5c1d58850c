"""Add drawings of the worst failures to a report, from the cache or by running cases again."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from gpuemu_flow.cases.generate import materialise
from gpuemu_flow.engine.signals import on_signals
from gpuemu_flow.engine.workspace import Workspace
from gpuemu_flow.errors import CancelledRunError, FlowError
from gpuemu_flow.fuzz.failures import stored_inputs
from gpuemu_flow.fuzz.minimizing import minimise_failure
from gpuemu_flow.fuzz.subjects import op_subject, open_ordered
from gpuemu_flow.judging.case_evaluator import SESSIONS_PER_EVALUATOR, CaseEvaluator
from gpuemu_flow.reporting.drawing import draw, values_text
from gpuemu_flow.reporting.gather import known_failures
from gpuemu_flow.reporting.stored_pictures import store_picture, stored_picture
from gpuemu_flow.results.document import Picture, Report
from gpuemu_flow.results.model import CaseFailure
from gpuemu_flow.runners.pool import Pool
from gpuemu_flow.store.failures import FailureStore
from gpuemu_flow.types import Verdict

MAX_PICTURES = 20
MAX_MINIMIZED = 8
MINIMIZE_RUNS = 300
SECONDS = 60.0
"""Time limit in seconds for all drawings together; a missing drawing has a note."""

NOT_DRAWN = "it was not drawn: its time was over, or a signal interrupted the drawing"

NOT_STORED = "it needs a run: `gpuemu-flow ci -o report.html` draws it"

Key = tuple[str, int, str]


def with_pictures(workspace: Workspace, report: Report, seconds: float = SECONDS) -> Report:
    """Return the report with drawings of its worst failures, one for each op, dtype and kind.

    For the drawings, ops and references are run again, as by `reproduce`, but no verdict changes.
    After `seconds`, nothing more is run. If a signal interrupts the drawing, the report counts as
    interrupted, although only drawings are missing from it.
    """
    chosen = report.representatives()
    if not chosen:
        return report
    deadline = time.monotonic() + seconds
    with _cancel_at(seconds) as cancel, _interrupting(cancel) as interrupted:
        # Drawing is much faster than minimising, and more useful.
        pictures = dict(_draw_all(workspace, report, chosen, deadline, cancel))
        minimise_some(workspace, report, chosen, cancel)
        known = known_failures(workspace, report.run)
    for failure in chosen:
        store_picture(workspace.cache, failure, pictures[report.key(failure)])
    if interrupted.is_set():
        report = replace(report, run=replace(report.run, interrupted=True))
    return _complete(workspace, replace(report, known=known), chosen, pictures)


def with_stored_pictures(workspace: Workspace, report: Report) -> Report:
    """Return the report with the stored drawings that an earlier `ci` made; run nothing."""
    chosen = report.representatives()
    pictures = {
        report.key(failure): stored_picture(workspace.cache, failure) or Picture(note=NOT_STORED)
        for failure in chosen
    }
    return _complete(workspace, report, chosen, pictures)


def _complete(
    workspace: Workspace,
    report: Report,
    chosen: Iterable[CaseFailure],
    pictures: Mapping[Key, Picture],
) -> Report:
    smallest = _smallest_inputs(workspace, report, chosen)
    shown = {
        key: replace(picture, inputs=smallest.get(key, {})) for key, picture in pictures.items()
    }
    return replace(report, pictures=shown)


@contextmanager
def _cancel_at(seconds: float) -> Iterator[threading.Event]:
    cancel = threading.Event()
    timer = threading.Timer(seconds, cancel.set)
    timer.daemon = True
    timer.start()
    try:
        yield cancel
    finally:
        timer.cancel()


@contextmanager
def _interrupting(cancel: threading.Event) -> Iterator[threading.Event]:
    """Yield an event; a signal that ends a command sets both this event and `cancel`."""
    interrupted = threading.Event()

    def stop() -> None:
        interrupted.set()
        cancel.set()

    with on_signals(stop):
        yield interrupted


def minimise_some(
    workspace: Workspace, report: Report, chosen: Iterable[CaseFailure], cancel: threading.Event
) -> None:
    """Minimise the first few failures in `chosen`, and record the results, until `cancel` is set.

    Failures without a record, failures that have been minimised already, and cases with the verdict
    ``error`` are left out.
    """
    records = {r.id: r for r in FailureStore(workspace.cache)}
    count = 0
    for failure in chosen:
        known = report.known.get(report.key(failure))
        record = records.get(known.id) if known is not None else None
        if record is None or record.minimized or failure.result.verdict is not Verdict.FAILED:
            continue
        if cancel.is_set() or count == MAX_MINIMIZED:
            return
        count += 1
        try:
            minimise_failure(workspace, record, strategy="all", budget=MINIMIZE_RUNS, cancel=cancel)
        except FlowError:
            continue
        except CancelledRunError:
            return


def _draw_all(
    workspace: Workspace,
    report: Report,
    chosen: list[CaseFailure],
    deadline: float,
    cancel: threading.Event,
) -> Iterator[tuple[Key, Picture]]:
    workspace.cache.create()
    tasks = workspace.graph.tasks
    with Pool(SESSIONS_PER_EVALUATOR, staging=workspace.cache.staging) as pool:
        for number, failure in enumerate(chosen):
            key = report.key(failure)
            if failure.result.verdict is not Verdict.FAILED:
                yield key, Picture(note="the case ended in an error: there is no output to draw")
            elif f"op:{failure.op}:{failure.case.dtype}" not in tasks:
                yield key, Picture(note="the op is run by clients only")
            elif number >= MAX_PICTURES:
                yield key, Picture(note=f"only the worst {MAX_PICTURES} failures are drawn")
            elif time.monotonic() > deadline:
                yield key, Picture(note=NOT_DRAWN)
            else:
                subject = op_subject(workspace, failure.op, failure.case.dtype).subject
                try:
                    with open_ordered(workspace, pool, subject, cancel) as evaluator:
                        picture = _picture(evaluator, failure)
                    yield key, picture
                except CancelledRunError:
                    yield key, Picture(note=NOT_DRAWN)
                except FlowError as error:
                    yield key, Picture(note=f"it could not be run again: {error.problems[0]}")


def _picture(evaluator: CaseEvaluator, failure: CaseFailure) -> Picture:
    evaluated = evaluator.judge(failure.case)
    if evaluated.result.verdict is not Verdict.FAILED:
        return Picture(note=f"run again, the case {evaluated.result.verdict.value}")
    actual = {name: array.copy() for name, array in evaluated.actual.items()}
    wrong = [f.output for f in evaluated.result.failures if f.output in actual]
    prepared = evaluator.prepare(failure.case)
    inputs, expected = prepared.inputs, prepared.expected
    criteria = evaluator.judge_of(prepared).criteria(failure.case, expected, inputs, actual)
    name = wrong[0] if wrong else next(iter(actual))
    return draw(name, actual, expected, inputs, criteria)


def _smallest_inputs(
    workspace: Workspace, report: Report, chosen: Iterable[CaseFailure]
) -> dict[Key, dict[str, str]]:
    """Return, as text, the inputs of each failure's minimised case, or else of the failing case."""
    store = FailureStore(workspace.cache)
    found = {}
    for failure in chosen:
        key = report.key(failure)
        known = report.known.get(key)
        try:
            if known is not None and known.minimized is not None:
                inputs = stored_inputs(store, store.get(known.minimized.id))
            else:
                inputs = dict(materialise(failure.case))
        except FlowError:
            continue
        found[key] = {name: values_text(array) for name, array in inputs.items()}
    return found
