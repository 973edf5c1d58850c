"""Build the results of ops that only clients run, from the clients' submissions."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from datetime import datetime, timezone

from msgspec import Struct

from gpuemu_flow.build.files import stamp_of
from gpuemu_flow.build.graph import Skip
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.judge.results import Absence, CaseVerdict, OpResult
from gpuemu_flow.judge.verdicts import WORST, tallied
from gpuemu_flow.model.decoding import plain
from gpuemu_flow.model.errors import Problem, RunnerError, UsageError
from gpuemu_flow.model.types import BAD, Json, MeasuredErrors, Verdict
from gpuemu_flow.model.verdicts import Tally
from gpuemu_flow.report.report import result_of_summary
from gpuemu_flow.store.failures import FailureStore
from gpuemu_flow.store.keys import digest_json
from gpuemu_flow.store.results import FOLDER, STAMP, CountedResult, ResultStore, StoredResult

SHOWN = 3


def submitted_results(
    workspace: Workspace, skips: Iterable[Skip]
) -> dict[tuple[str, str], OpResult]:
    """Return the results, by op and dtype, of skipped ops for which clients submitted outputs. A
    submission is valid under three conditions. It was judged by the present reference,
    configuration and environment. It set no tolerance or arguments. It belongs to the newest batch
    of its op and dtype (see `of_newest_batch`). An op and dtype without a valid submission stays
    skipped, with a reason that says so. If `skips` contains all declared dtypes of an op,
    undeclared dtypes with valid submissions get results, too, so that failures in these dtypes are
    reported."""
    return {
        (one.op, one.dtype): _result(workspace, one) if one.valid else _outdated(one)
        for one in _submissions(workspace, skips, undeclared=True)
    }


def submitted_summaries(
    workspace: Workspace, results: Iterable[OpResult]
) -> dict[tuple[str, str], dict[str, Json]]:
    """Summarise the valid submissions by op and dtype, in the form of ``compare`` tasks."""
    ops = {skip.op for skip in workspace.graph.skips if skip.dtype}
    skips = [Skip(r.op, r.dtype, "") for r in results if r.cases and r.op in ops]
    found = {}
    for one in _submissions(workspace, skips):
        if one.valid:
            # Several codes, or outputs that differ, give a case several results: a failure counts.
            bad_last = sorted(one.valid, key=lambda stored: stored.judged.verdict in BAD)
            verdicts = {str(stored.seed): stored.judged.verdict.value for stored in bad_last}
            by_verdict: dict[str, list[str]] = {}
            for seed, verdict in verdicts.items():
                by_verdict.setdefault(verdict, []).append(seed)
            found[one.op, one.dtype] = {
                **_figures(one),
                "case_verdicts": by_verdict,
                "cases_digest": digest_json(sorted(stored.seed for stored in one.valid)),
            }
    return found


def submitted_errors(workspace: Workspace, op: str, cases: int) -> list[MeasuredErrors]:
    """Return the errors of the newest valid submissions of an op, up to `cases` of each dtype.
    Raises RunnerError: ``calibration-failed``: there are none, or all of a dtype are wrong."""
    from gpuemu_flow.fuzz.measures import refuse_wrong  # noqa: PLC0415 - brings numpy

    skips = [skip for skip in workspace.graph.skips if skip.op == op]
    found: list[MeasuredErrors] = []
    for one in _submissions(workspace, skips):
        verdicts = Tally()
        newest = sorted(one.valid, key=lambda stored: stored.key)[-cases:]
        for stored in newest:
            verdicts.count(stored.judged.verdict, stored.judged.elements, chosen=False)
            found += stored.judged.measured
        refuse_wrong(op, one.dtype, verdicts)
    if not found:
        text = f"no submission of {op} by a client counts that has errors to measure"
        hint = "run your client, with the reference and configuration as they are now"
        raise RunnerError(Problem("calibration-failed", text, hint))
    return found


class _Submitted(Struct, frozen=True):
    """Submissions of clients for an op and dtype."""

    op: str
    dtype: str
    valid: list[StoredResult]
    others: int
    earlier: int = 0
    lost: str = ""
    skipped: str = ""


def _submissions(
    workspace: Workspace, skips: Iterable[Skip], *, undeclared: bool = False
) -> list[_Submitted]:
    """Return a `_Submitted` for each op and dtype in `skips` for which there are submissions. An op
    and dtype without submissions is left out, unless there are submissions that belong to no op:
    its `_Submitted.lost` then describes these. If `undeclared` is true, dtypes that an op does not
    declare are included if they have valid submissions; see `submitted_results`."""
    skips = list(skips)
    if not skips:
        return []
    folder = workspace.config.results_folder(workspace.cache.folder)
    # Taken before the results are read, so that a submission that arrives meanwhile is noticed next
    # time.
    workspace.watch({str(folder / STAMP): stamp_of(folder / STAMP)})
    if not (folder / FOLDER).exists():
        return []
    from gpuemu_flow.fuzz.wire_ops import Query, Subjects  # noqa: PLC0415 - brings numpy

    store = ResultStore(workspace.cache, folder, max_results=0)
    try:
        subjects = Subjects(workspace)
        everything = store.everything()
        current = of_newest_batch(everything)
        latest = newest_of_each(current)
        lost = _of_no_op(workspace, latest)
        found = []
        others = _of_other_dtypes(workspace, skips, latest) if undeclared else []
        for skip in (*skips, *others):
            stored = [s for s in latest if (s.op, s.dtype) == (skip.op, skip.dtype)]
            if not stored:
                if lost:
                    found.append(_Submitted(skip.op, skip.dtype, [], 0, 0, lost, skip.reason))
                continue
            now = subjects.judged_by(Query(skip.op, skip.dtype, {}))
            workspace.watch(subjects.stamps(skip.op, skip.dtype))
            mine = [s for s in current if (s.op, s.dtype) == (skip.op, skip.dtype)]
            valid = newest_judged_by(mine, now)
            if skip in others and not valid:
                continue
            every = sum((s.op, s.dtype) == (skip.op, skip.dtype) for s in everything)
            earlier, outdated = every - len(mine), len(stored) - len(valid)
            found.append(_Submitted(skip.op, skip.dtype, valid, outdated, earlier))
        return found
    finally:
        store.close()


def of_newest_batch(stored: Iterable[StoredResult]) -> list[StoredResult]:
    """Return the results of the newest batch of each op and dtype, oldest first. A batch is what
    one command submitted, with all of its processes. A batch that ended before another one began is
    obsolete: so an op that was mended need not be judged on the old cases again. Of batches that
    overlap in time, such as those of two checkouts, all count."""
    ordered = sorted(stored, key=lambda one: one.key)
    spans: dict[tuple[str, str], dict[str, tuple[str, str]]] = defaultdict(dict)
    for one in ordered:
        of_op = spans[one.op, one.dtype]
        of_op[one.batch] = of_op.get(one.batch, (one.key, one.key))[0], one.key
    live = set()
    for place, of_op in spans.items():
        begin = max(first for first, _ in of_op.values())
        live |= {(*place, batch) for batch, (_, last) in of_op.items() if last >= begin}
    return [one for one in ordered if (one.op, one.dtype, one.batch) in live]


def newest_of_each(stored: Iterable[StoredResult]) -> list[StoredResult]:
    """Return the newest result for each case and function; `stored` has the oldest first. A pass of
    one function, or of another command that runs at the same time, must not hide a failure of
    another, so both results are returned. If a client made the inputs of a case, up to two results
    are returned for the case: the newest failure, and the newest result that is no failure. An op
    that fails and later passes on the same inputs is not correct."""
    return list({_case(one): one for one in stored}.values())


def newest_judged_by(stored: Iterable[StoredResult], now: str) -> list[StoredResult]:
    """Return the newest results that were judged by `now`, chosen as in `newest_of_each`. If the
    newest result of a case was judged otherwise, an older one takes its place; but of a client that
    does not say to which command it belongs only an older failure, as its code may have changed
    meanwhile."""
    found: dict[tuple[object, ...], StoredResult] = {}
    for one in stored:
        case = _case(one)
        if one.judged_by == now:
            found[case] = one
        elif not one.batch:
            case = (*case[:-1], False)
            known = found.get(case)
            if known is not None and known.judged.verdict not in BAD:
                del found[case]
    return list(found.values())


def _case(one: StoredResult) -> tuple[object, ...]:
    failed = one.source == "validate" and one.judged.verdict in BAD
    return one.op, one.dtype, one.seed, one.batch, one.origin, failed


def _of_other_dtypes(
    workspace: Workspace, skips: Iterable[Skip], latest: Iterable[StoredResult]
) -> list[Skip]:
    given = {(skip.op, skip.dtype): skip for skip in skips}
    declared = [(skip.op, skip.dtype) for skip in workspace.graph.skips]
    part = {op for op, dtype in declared if (op, dtype) not in given}
    reasons = {op: skip.reason for (op, _), skip in given.items() if op not in part}
    found = {(s.op, s.dtype) for s in latest if s.op in reasons} - {*declared}
    return [Skip(op, dtype, reasons[op]) for op, dtype in sorted(found)]


def _of_no_op(workspace: Workspace, latest: Iterable[StoredResult]) -> str:
    """Return a text about submissions for ops that are not configured; empty if there are none."""
    known = {op.name for op in workspace.config.ops}
    counts = Counter(stored.op for stored in latest if stored.op not in known)
    if not counts:
        return ""
    parts = [
        f"{n} submission{'s' if n > 1 else ''} of {name}" for name, n in sorted(counts.items())
    ]
    verb = "are no ops" if len(counts) > 1 else "is no op"
    return f"{', '.join(parts[:SHOWN])}, which {verb} here (any more)"


def _outdated(one: _Submitted) -> OpResult:
    if one.lost:
        reason = f"{one.skipped}; {one.lost}"
        return OpResult(one.op, one.dtype, Verdict.SKIPPED, reason=reason)
    text = "submissions, all judged by another reference or configuration than now"
    reason = f"{one.others} {text}; submit again"
    return OpResult(one.op, one.dtype, Verdict.SKIPPED, reason=reason, absence=Absence.OUTDATED)


def _result(workspace: Workspace, one: _Submitted) -> OpResult:
    figures = _figures(one)
    failures = [_failure(workspace, stored) for stored in one.valid if stored.judged.verdict in BAD]
    more = f"{one.earlier} of earlier commands do not count" if one.earlier else ""
    return result_of_summary(
        one.op,
        one.dtype,
        figures,
        reason="; ".join(filter(None, (figures["reason"], _who_and_when(one.valid), more))),
        cached=True,
        failures=tuple(
            sorted((f for f in failures if f is not None), key=lambda failure: failure.case.numel)
        ),
    )


def _who_and_when(valid: list[StoredResult]) -> str:
    last = max(valid, key=lambda stored: stored.key)
    when = datetime.fromtimestamp(last.time_ns // 10**9, tz=timezone.utc)
    text = f"{len(valid)} submitted by clients, the last {when:%Y-%m-%d %H:%M:%S} UTC"
    client = last.client
    if not client:
        return f"{text} by a client that gave no name"
    place = ", ".join(
        f"{word} {client[key]}" for key, word in (("user", "user"), ("host", "host"))
        if client.get(key)
    )  # fmt: skip
    return f"{text} by {client.get('name', 'a client')} (pid {client.get('pid', '?')}, {place})"


def forget_submissions(workspace: Workspace, ops: Collection[str] | None = None) -> int:
    folder = workspace.config.results_folder(workspace.cache.folder)
    if not (folder / FOLDER).exists():
        return 0
    store = ResultStore(workspace.cache, folder, max_results=0)
    try:
        return store.forget(ops)
    finally:
        store.close()


def _figures(one: _Submitted) -> dict[str, Json]:
    """Return the counts per verdict and the worst errors of the valid submissions in `one`. `one`
    holds the submissions for one op and dtype. The keys of the result are those of
    `judge.verdicts.summarise`."""
    tally = Tally()
    for stored in one.valid:
        chosen = stored.source != "submit"  # else the daemon drew the inputs
        tally.count(stored.judged.verdict, stored.judged.elements, chosen=chosen)
    worst = {name: max(_figure(stored.judged, name) for stored in one.valid) for name in WORST}
    return {
        **tallied(tally),
        **plain(worst),
    }


def _figure(judged: CountedResult, name: str) -> float:
    """Return a figure as a number that can be compared: NaN counts as infinity, the worst value."""
    value = float(getattr(judged, name))
    return math.inf if math.isnan(value) else value


def _failure(workspace: Workspace, stored: StoredResult) -> CaseVerdict | None:
    try:
        known = FailureStore(workspace.cache).get(stored.judged.failure_id)
    except UsageError:
        return None
    case, result = known.case, known.result
    return CaseVerdict(stored.op, case, result, known.reproduce)
