"""Add drawings of the worst failures to a report, by running cases again."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from gpuemu_flow.build.signals import on_signals
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.fuzz.exporting import judge_of
from gpuemu_flow.fuzz.subjects import op_subject, open_ordered
from gpuemu_flow.judge.case_evaluator import SESSIONS_PER_EVALUATOR, CaseEvaluator
from gpuemu_flow.judge.judge import Criteria
from gpuemu_flow.judge.results import CaseVerdict
from gpuemu_flow.model.errors import CancelledRunError, FlowError
from gpuemu_flow.model.types import Verdict
from gpuemu_flow.numerics.checked_output import CheckedOutput, SpecialInputs, compare_output
from gpuemu_flow.numerics.compare import tolerance_of
from gpuemu_flow.numerics.dtypes import to_float64
from gpuemu_flow.numerics.judge import AffineBound, Judgement, judge
from gpuemu_flow.report.document import Picture, Report
from gpuemu_flow.workers.pool import Pool

MAX_PICTURES = 20
SECONDS = 60.0
"""Time limit in seconds for all drawings together; a missing drawing has a note."""

NOT_DRAWN = "it was not drawn: its time was over, or a signal interrupted the drawing"
Key = tuple[str, int, str]


def with_pictures(workspace: Workspace, report: Report, seconds: float = SECONDS) -> Report:
    """Return the report with drawings of its worst failures, one for each op, dtype and kind. For
    the drawings, ops and references are run again, as by `reproduce`, but no verdict changes. After
    `seconds`, nothing more is run. If a signal interrupts the drawing, the report counts as
    interrupted, although only drawings are missing from it."""
    chosen = report.representatives()
    if not chosen:
        return report
    deadline = time.monotonic() + seconds
    with _cancel_at(seconds) as cancel, _interrupting(cancel) as interrupted:
        pictures = dict(_draw_all(workspace, report, chosen, deadline, cancel))
    if interrupted.is_set():
        report = replace(report, run=replace(report.run, interrupted=True))
    return replace(report, pictures=pictures)


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


def _draw_all(
    workspace: Workspace,
    report: Report,
    chosen: list[CaseVerdict],
    deadline: float,
    cancel: threading.Event,
) -> Iterator[tuple[Key, Picture]]:
    workspace.cache.create()
    tasks = workspace.graph.tasks
    with Pool(SESSIONS_PER_EVALUATOR) as pool:
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


def _picture(evaluator: CaseEvaluator, failure: CaseVerdict) -> Picture:
    evaluated = evaluator.judge(failure.case)
    if evaluated.result.verdict is not Verdict.FAILED:
        return Picture(note=f"run again, the case {evaluated.result.verdict.value}")
    actual = {name: array.copy() for name, array in evaluated.actual.items()}
    wrong = [f.output for f in evaluated.result.failures if f.output in actual]
    prepared = evaluator.prepare(failure.case)
    inputs, expected = prepared.inputs, prepared.expected
    criteria = judge_of(evaluator, prepared).criteria(failure.case, expected, inputs, actual)
    name = wrong[0] if wrong else next(iter(actual))
    return draw(name, actual, expected, inputs, criteria)


# Summarise the errors of a failing case's output by a map.

Arrays = Mapping[str, NDArray[Any]]

MAX_ROWS, MAX_COLUMNS = 32, 64
MAX_ELEMENTS = 1 << 24
_LEVEL_ENDS = (0.0, 0.1, 0.5, 1.0, 10.0, 1000.0)


def draw(
    name: str, actual: Arrays, expected: Arrays, inputs: Arrays, criteria: Criteria
) -> Picture:
    """Compare an output with its expected values, and return the figures to draw."""
    contracts = criteria.contracts
    dtypes = criteria.dtypes
    if contracts:
        if contracts.refused or name not in contracts.expected:
            return Picture(name, note="the output is not compared element by element")
        actual, expected = contracts.views(actual), contracts.expected
        dtypes = contracts.dtypes(dtypes)
    output = actual[name]
    if output.size > MAX_ELEMENTS:
        return Picture(name, output.shape, note=f"{output.size} elements are too many to draw")
    if not output.size:
        return Picture(name, output.shape, note="an output without elements")
    special = SpecialInputs(inputs)
    checked = compare_output(
        name,
        output,
        expected[name],
        dtypes[name],
        tolerance_of(name, dtypes[name], criteria.tolerance, contracts),
        criteria.policy,
        special,
    )
    judgement = _judge(checked)
    share = np.where(judgement.failed, np.maximum(judgement.share, np.nextafter(1.0, 2.0)),
                     np.minimum(judgement.share, 1.0))  # fmt: skip
    rows, fold = heat_map(share.reshape(output.shape))
    return Picture(
        output=name,
        shape=output.shape,
        rows=rows,
        fold=fold,
        elements=output.size,
        failing=int(judgement.failed.sum()),
    )


def _judge(checked: CheckedOutput) -> Judgement:
    allowed = checked.tolerance
    bound = (
        AffineBound(allowed.atol, allowed.rtol)
        if checked.envelope is None
        else checked.envelope.final(checked.name)
    )
    flat = slice(0, checked.actual.size)
    values = to_float64(checked.actual).ravel().copy(), to_float64(checked.expected).ravel().copy()
    return judge(*values, bound, flat, checked.rules)


def heat_map(share: NDArray[np.float64]) -> tuple[tuple[str, ...], str]:
    """Return a tensor as rows of characters, and a text that describes how it was folded. There are
    at most `MAX_ROWS` rows of at most `MAX_COLUMNS` cells. The last dim runs to the right, all
    others downward; a long vector continues in the next row. A cell is one character, which shows
    the level of the worst element in it; see `LEVELS`."""
    shape = share.shape or (1,)
    columns = shape[-1]
    grid = share.reshape(-1, columns)
    if grid.shape[0] == 1 and columns > MAX_COLUMNS:  # a long vector is shown as lines of text are
        width = max(MAX_COLUMNS, math.ceil(columns / MAX_ROWS))
        padded = np.zeros(math.ceil(columns / width) * width)
        padded[:columns] = grid[0]
        grid = padded.reshape(-1, width)
        what = f"each row is {width} elements in a row"
    else:
        leading = " x ".join(map(str, shape[:-1]))
        right_words = f"the last dim ({columns}) to the right" if leading else "from left to right"
        what = f"{leading} downward, {right_words}" if leading else right_words
    levels = np.searchsorted(np.array(_LEVEL_ENDS), grid, side="left")
    down = _edges(grid.shape[0], MAX_ROWS)
    right = _edges(grid.shape[1], MAX_COLUMNS)
    levels = np.maximum.reduceat(np.maximum.reduceat(levels, down, axis=0), right, axis=1)
    tall, wide = grid.shape[0] / len(down), grid.shape[1] / len(right)
    if tall > 1 or wide > 1:
        what += f"; a cell is the worst of up to {math.ceil(tall)} x {math.ceil(wide)} elements"
    return tuple("".join(map(str, row)) for row in levels.tolist()), what


def _edges(size: int, most: int) -> NDArray[np.intp]:
    count = min(size, most)
    return np.arange(count, dtype=np.intp) * size // count
