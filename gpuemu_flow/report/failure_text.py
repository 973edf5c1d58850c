"""Format recorded failures, reproductions and minimisations as lines and as JSON."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from gpuemu_flow.judge.fuzz_results import Minimization, Reproduction
from gpuemu_flow.judge.results import Minimal
from gpuemu_flow.model.plain_text import clipped
from gpuemu_flow.model.types import Verdict
from gpuemu_flow.report.text import (
    Style,
    described,
    minimal_lines,
    note_lines,
    number,
    plural,
    printable,
    table,
)
from gpuemu_flow.store.failures import FailureRecord

_FIELD = re.compile(r"\b(dtype|shape|max_diff|seed|id):")
_HEADINGS = ("id", "op", "dtype", "shape", "kind", "max abs")
_WIDTHS = (16, 29, 13, 22, 21, 9)
"""Maximum number of characters of each cell; with two blanks between cells, 120 in total."""


def failure_lines(failure: FailureRecord, minimal: Minimal) -> list[str]:
    """Describe a recorded failure: what is shown first, then its case and its cause."""
    case = failure.case
    target = f" of {failure.target}" if failure.target else ""
    said = printable(minimal.says)
    lines = [
        *minimal_lines(minimal, failure.reproduce),
        f"{failure.id}  {failure.dtype}  {printable(described(case))}  layout {failure.layout}  "
        f"strategy {failure.strategy}{target}  seed {failure.seed}",
        *(line for line in printable(failure.message).splitlines() if line != said),
    ]
    if failure.cause:
        lines.append(f"cause: {printable(failure.cause)}")
    return lines


def failure_row(failure: FailureRecord) -> str:
    """Format one line of ``failures``: id, op, dtype, first shape, kind, largest error. The line
    has at most 120 characters; with names of usual length, at most 80."""
    return "  ".join(_cells(failure)).rstrip()


def _cells(failure: FailureRecord) -> list[str]:
    shape = str(list(failure.shape))
    error = "" if failure.verdict == Verdict.ERROR.value else number(failure.max_abs)
    cells = (failure.id, failure.op, failure.dtype, shape, failure.kind, error)
    return [clipped(printable(cell), width) for cell, width in zip(cells, _WIDTHS, strict=True)]


def render_list(failures: Sequence[FailureRecord], mended: Collection[str]) -> list[str]:
    """List failures, newest first, with a separate table of fixed failures."""
    standing = [failure for failure in failures if failure.id not in mended]
    rest = [failure for failure in failures if failure.id in mended]
    seldom = [failure for failure in standing if failure.intermittent]
    standing = [failure for failure in standing if not failure.intermittent]
    lines = _listed(standing) if standing else []
    if seldom:
        told = "intermittent, in equal runs they fail now and then:"
        lines += [*([""] if lines else []), told, *_listed(seldom)]
    lines = lines or ["nothing that is recorded still fails"]
    if rest:
        lines += ["", "mended, their cases passed when they last ran:", *_listed(rest)]
    return lines


def _listed(failures: Sequence[FailureRecord]) -> list[str]:
    return table(_HEADINGS, [_cells(failure) for failure in failures], range(5))


def published_row(failure: FailureRecord) -> str:
    """Format one line of ``failures`` for the published VS Code extension, which parses it. ``SEED
    OP [KIND] MESSAGE dtype: D shape: [a, b] max_diff: E seed: SEED id: ID`` The extension reads the
    first word in brackets as the kind, so the kind precedes the message, which may contain an index
    in brackets. For names such as ``shape:``, it reads the value after the first occurrence, so the
    names are removed from the message."""
    message = _FIELD.sub(r"\1", " ".join(printable(failure.message).split()))
    row = (
        f"{failure.seed} {failure.op} [{failure.kind}] {message} "
        f"dtype: {failure.dtype} shape: {list(failure.shape)} max_diff: {number(failure.max_abs)} "
        f"seed: {failure.seed} id: {failure.id}"
    )
    return " ".join(printable(row).splitlines())


def render_failure(record: FailureRecord, minimal: Minimal, style: Style) -> str:
    verdict = style.verdict(Verdict(record.verdict))
    seen = f"last seen {record.time} by {record.source}"
    lines = [f"{verdict} {printable(f'{record.op}: {record.kind}, {seen}')}"]
    lines += [f"  {line}" for line in failure_lines(record, minimal)]
    if record.verdict != Verdict.ERROR.value:  # otherwise nothing was measured
        lines.append(
            f"  max abs {number(record.max_abs)}, max rel {number(record.max_rel)}, "
            f"max ulp {number(record.max_ulp)}"
        )
    result = record.result
    lines += [f"  {line}" for line in note_lines(result)]
    if record.inputs_dropped:
        lines.append("  its stored inputs were deleted to make room")
    if record.minimized:
        lines.append(f"  minimized: {record.minimized}")
    if record.minimized_from:
        lines.append(f"  minimized from: {record.minimized_from}")
    return "\n".join(lines)


def outcome_of(found: Reproduction) -> tuple[Verdict, str]:
    verdict = found.result.verdict
    if found.still_fails:
        return verdict, "still fails"
    if found.did_not_show:
        word = "did not show again, though neither code nor configuration changed: no verdict"
        return Verdict.INCONCLUSIVE, word
    if verdict is not Verdict.PASSED:
        return verdict, "has no verdict now"
    if found.disallowed:
        word = f"passes; the op's schema does not allow its sizes {found.disallowed}"
        return Verdict.INCONCLUSIVE, word
    return verdict, "no longer fails" if found.known else "passes; no failure of it is recorded"


def render_reproduction(
    found: Reproduction, minimal: Minimal, style: Style, *, verbose: bool
) -> str:
    """Describe whether a failure still occurs; with `verbose` show its tensors."""
    record, result = found.record, found.result
    verdict, word = outcome_of(found)
    lines = [f"{style.verdict(verdict)} {printable(record.op)}: {record.id} {word}"]
    known = failure_lines(record, minimal)
    lines += [f"  {line}" for line in known]
    now = [line for f in result.failures for line in printable(f.message).splitlines()]
    lines += [f"  now: {line}" for line in now if line not in known]
    lines += [f"  {line}" for line in note_lines(result)]
    if verbose:
        for title, tensors in (
            ("input", found.inputs),
            ("actual", found.actual),
            ("expected", found.expected),
        ):
            for name, array in tensors.items():
                lines.append(f"  {title} {name} {array.dtype.name}{list(array.shape)}")
                lines += [f"    {line}" for line in str(array).splitlines()[:20]]
    return "\n".join(lines)


def render_minimization(found: Minimization, minimal: Minimal | None, style: Style) -> str:
    original = found.original
    case = printable(described(original.case))
    whence = f"{original.dtype}  {case}  layout {original.layout}"
    if found.minimized is None or minimal is None:
        told = "it did not fail again, so there is nothing to minimise"
        return f"original: {original.id}  {whence}\n{told}"
    lines = ["minimized:", render_failure(found.minimized, minimal, style), f"original: {whence}"]
    lines += [f"  {line}" for line in found.log]
    rest = "" if found.one_minimal else "; the budget ended before nothing could be made smaller"
    lines.append(f"{plural(found.steps, 'step')}, {plural(found.calls, 'run')} of the op{rest}")
    return "\n".join(lines)
