"""A fuzz command: fuzz each op, record its failures, group them by cause, and shrink them."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import Event

from msgspec import to_builtins
from msgspec.structs import replace

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.cases.coverage import CountedCell, Coverage, Gap, Row
from gpuemu_flow.fuzz.case_queue import Cluster
from gpuemu_flow.fuzz.causes import cause_budget, causes_of
from gpuemu_flow.fuzz.failures import FailureLog
from gpuemu_flow.fuzz.fuzzing import Fuzzer, FuzzOptions
from gpuemu_flow.fuzz.minimizing import minimise_failure
from gpuemu_flow.fuzz.outcome import ONE_TIMEOUT, Judged, OpFuzzOutcome
from gpuemu_flow.fuzz.subjects import OpSubject, dtypes_of, op_subject, select_ops
from gpuemu_flow.judge.case_evaluator import SESSIONS_PER_EVALUATOR
from gpuemu_flow.judge.fuzz_results import CauseGroup, CoverageReport, FuzzReport
from gpuemu_flow.judge.results import most_telling
from gpuemu_flow.judge.verdicts import is_special, reason
from gpuemu_flow.model.decoding import convert, plain
from gpuemu_flow.model.errors import CancelledRunError, Problem, RunnerError, StoreError
from gpuemu_flow.model.types import Case, CheckResult, Verdict
from gpuemu_flow.model.verdicts import Cause, case_id
from gpuemu_flow.store.failures import FailureRecord
from gpuemu_flow.store.keys import digest_json
from gpuemu_flow.tasks.base import read_result
from gpuemu_flow.workers.pool import Pool

MINIMIZE_BUDGET = 1000
_ATTEMPTS = 3


def fuzz_ops(
    workspace: Workspace,
    ops: Iterable[str],
    options: FuzzOptions,
    *,
    minimize: bool = False,
    minimize_seconds: float = math.inf,
    on_start: Callable[[str, int | None], None] = lambda *_: None,
    on_case: Callable[[Judged], None] = lambda _: None,
    cancel: Event | None = None,
    cluster: Cluster | None = None,
) -> list[FuzzReport]:
    """Fuzz ops one after another.

    Raises UsageError: Unknown ops, dtypes, strategies, layouts or shapes.
    """
    cancel = cancel or Event()
    workspace.cache.create()
    configured = options.iterations is None and options.time_limit is None
    iterations = workspace.settings.fuzz_iterations if configured else {}
    reports: list[FuzzReport] = []
    try:
        for op in select_ops(workspace, ops):
            if reports and reports[-1].interrupted:
                break
            wanted = replace(options, iterations=int(iterations[op])) if configured else options
            on_start(op, wanted.iterations)
            sessions = SESSIONS_PER_EVALUATOR * max(2, options.jobs)
            sessions *= len(dtypes_of(workspace, op, options.dtypes))
            with Pool(sessions) as pool:
                report = _fuzz_op(
                    workspace,
                    op,
                    wanted,
                    minimize=minimize,
                    minimize_seconds=minimize_seconds,
                    on_case=on_case,
                    cancel=cancel,
                    cluster=cluster,
                    pool=pool,
                )
            reports.append(report)
    finally:
        workspace.cache.close()
    return reports


def _fuzz_op(
    workspace: Workspace,
    op: str,
    options: FuzzOptions,
    *,
    minimize: bool,
    minimize_seconds: float,
    on_case: Callable[[Judged], None],
    cancel: Event,
    cluster: Cluster | None,
    pool: Pool,
) -> FuzzReport:
    log = FailureLog(workspace)

    def on_failure(subject: OpSubject, judged: Judged) -> None:
        log.add(op, judged.case, judged.result, source="fuzz", subject=subject.subject)

    for _ in range(_ATTEMPTS):
        fuzzer = Fuzzer(
            workspace,
            op,
            options,
            on_case=on_case,
            on_failure=on_failure,
            cancel=cancel,
            cluster=cluster,
            pool=pool,
        )
        outcome = fuzzer.run()
        # The op could read files that the reference was just seen to load, so these verdicts do not
        # count.
        if outcome.interrupted or not fuzzer.is_outdated():
            break
    else:
        raise RunnerError(
            Problem(
                "sources-changing",
                f"{op}: its reference loaded other files in each of {_ATTEMPTS} attempts",
                "name what it loads with `depends`, or with `shared` in the op",
            )
        )
    causes = _causes(workspace, op, outcome, options, cancel)
    groups = _groups(log, op, outcome, causes)
    if minimize and outcome.gave_up != ONE_TIMEOUT:
        end = time.monotonic() + minimize_seconds
        shrunk = [_minimized(workspace, log, cause, end, cancel, pool) for cause in groups]
        groups = _merged(shrunk)
    add_fuzz_coverage(workspace, outcome.coverage)
    verdict, why = outcome.tally.verdict()
    return FuzzReport(
        op=op,
        seed=outcome.seed,
        iterations=outcome.cases,
        passed=outcome.count(Verdict.PASSED),
        failed=outcome.count(Verdict.FAILED),
        inconclusive=outcome.count(Verdict.INCONCLUSIVE),
        errors=outcome.count(Verdict.ERROR),
        verdict=verdict,
        reason=why,
        unjudged=outcome.tally.unjudged,
        cached=outcome.cached,
        duration_s=outcome.duration_s,
        worst_margin=outcome.worst_margin,
        margins=tuple(outcome.margins),
        coverage={what: dict(counts) for what, counts in outcome.counted().items()},
        gaps=tuple(_gaps(fuzzer.subjects, outcome)),
        groups=tuple(groups),
        left_out=outcome.left_out,
        interrupted=cancel.is_set(),
        stopped_early=_stopped_early(outcome, options, cancel),
        not_run=outcome.count(Verdict.SKIPPED),
    )


def _gaps(subjects: Iterable[OpSubject], outcome: OpFuzzOutcome) -> Iterator[str]:
    """Yield, as text, the dtypes, shape classes, layouts and strategies that the run left out."""
    for subject in subjects:
        known = (subject.subject.dtype, subject.layouts, subject.strategies)
        for gap in outcome.coverage.gaps(
            outcome.op, subject.schema, [known[0]], known[1], known[2]
        ):
            if " × " not in gap.aspect:
                names = ", ".join(gap.missing)
                yield f"{gap.dtype}: {gap.aspect.replace('_', ' ')} {names}"


def _stopped_early(outcome: OpFuzzOutcome, options: FuzzOptions, cancel: Event) -> str:
    count = outcome.cases
    if outcome.interrupted:
        return f"interrupted after {count} cases; what was judged is kept: run again to go on"
    if cancel.is_set():
        return "interrupted once all cases were judged; run again to search for causes"
    if options.iterations is not None and count < options.iterations:
        why = "its first failure" if options.fail_fast and outcome.failures else "its time limit"
        why = outcome.gave_up or why
        return f"stopped at {why} after {count} of {options.iterations} cases"
    return ""


def _causes(
    workspace: Workspace, op: str, outcome: OpFuzzOutcome, options: FuzzOptions, cancel: Event
) -> Sequence[Cause]:
    """Return causes of the failures, confirmed by new cases; empty if `cancel` is set meanwhile."""
    if not outcome.failures or outcome.gave_up or cancel.is_set() or options.fail_fast:
        return ()
    budget = cause_budget(workspace, confirm=options.confirm)
    failing = [(judged.case, judged.result) for judged in outcome.failures]
    try:
        return causes_of(workspace, op, failing, outcome.passing, budget=budget, cancel=cancel)
    except CancelledRunError:
        return ()


def _groups(
    log: FailureLog, op: str, outcome: OpFuzzOutcome, causes: Sequence[Cause]
) -> list[CauseGroup]:
    """Group failures by cause or else by kind, smallest case first; store causes in the records.
    Cases in which only NaN and Inf were expected come last."""
    of_case = {member: cause for cause in reversed(causes) for member in cause.members}
    groups: dict[tuple[Cause | None, str], list[Judged]] = {}
    for judged in sorted(
        outcome.failures, key=lambda j: (is_special(j.result), j.case.numel, j.number)
    ):
        cause = of_case.get(case_id(judged.case))
        if cause is not None or judged.result.failures:
            kind = "" if cause is not None else reason(judged.result.failures[0])
            groups.setdefault((cause, kind), []).append(judged)
    known = _recorded(log, op, outcome.failures)
    found = []
    for (cause, _), members in groups.items():
        text = "" if cause is None else cause.text
        smallest = members[0].result
        most = most_telling([(each.case, each.result) for each in members])
        records = tuple(_record(log, known, op, judged, text) for judged in members)
        group = CauseGroup(
            smallest.failures[0].kind.value,
            text,
            records,
            notes=_notes(members[most].result),
            telling=records[most] if most else None,
            shape_classes=_shape_classes(members, outcome),
            cause=cause,
        )
        found.append(group)
    return found


def _shape_classes(failing: Iterable[Judged], outcome: OpFuzzOutcome) -> dict[str, tuple[int, int]]:
    """Map each class of shapes to its numbers of failing and passing cases; empty if unknown.

    The numbers are unknown if the outcome left failures out.
    """
    if outcome.left_out:
        return {}
    passed = outcome.passed_classes
    failed = Counter(judged.case.shape_class for judged in failing)
    return {name: (failed[name], passed[name]) for name in sorted({*failed, *passed})}


def _recorded(log: FailureLog, op: str, failing: Sequence[Judged]) -> dict[str, str]:
    """Map the digest of each failing case to the id of the case's newest record."""
    wanted = {digest_json(to_builtins(judged.case)) for judged in failing}
    newest: dict[str, tuple[str, str]] = {}
    for record in log.store if wanted else ():
        if record.op == op and record.source != "minimize":
            case = digest_json(to_builtins(record.case))
            if case in wanted:
                newest[case] = max(newest.get(case, ("", "")), (record.time, record.id))
    return {case: failure_id for case, (_, failure_id) in newest.items()}


def _record(
    log: FailureLog, known: Mapping[str, str], op: str, judged: Judged, cause: str
) -> FailureRecord:
    """Store the cause in a failing case's record; make a record if there is none."""
    failure_id = known.get(digest_json(to_builtins(judged.case)))
    if failure_id is None:
        failure_id = log.add(op, judged.case, judged.result, source="fuzz", cause=cause)
    return log.store.explain(failure_id, cause)


def _notes(result: CheckResult) -> tuple[str, ...]:
    """Return the notes on a result, then what its programs printed, whose lines begin with |."""
    found = [line for note in result.notes for line in note.splitlines()[-12:]]
    for each in result.all_notes[len(result.notes) :]:
        what, *lines = each.splitlines()
        found += [what, *(f"| {line}" for line in lines[-11:])]
    return tuple(found)


def _merged(groups: Iterable[CauseGroup]) -> list[CauseGroup]:
    """Join groups whose shrunk cases have the same inputs and fail in the same way. Notes are on
    one case, so those of the first group remain."""
    found: dict[object, CauseGroup] = {}
    for number, group in enumerate(groups):
        least = group.minimized
        key = number if least is None else (group.kind, least.inputs)
        known = found.get(key)
        found[key] = (
            group
            if known is None
            else replace(
                known,
                failures=(*known.failures, *group.failures),
                shape_classes={},
            )
        )
    return list(found.values())


def _minimized(
    workspace: Workspace, log: FailureLog, cause: CauseGroup, end: float, cancel: Event, pool: Pool
) -> CauseGroup:
    if cancel.is_set() or time.monotonic() >= end:
        return cause
    smallest = log.store.get(cause.failures[0].id)
    try:
        found = minimise_failure(
            workspace,
            smallest,
            strategy="all",
            budget=MINIMIZE_BUDGET,
            seconds=end - time.monotonic(),
            cancel=cancel,
            pool=pool,
        )
    except CancelledRunError:
        return cause
    except RunnerError as error:
        why = error.problems[0].message
    else:
        if found.minimized is not None:
            return replace(cause, minimized=found.minimized)
        why = "the case did not fail again when it was run by itself"
    return replace(cause, notes=(*cause.notes, f"not minimized: {why}"))


# Measure how runs and fuzzing cover a workspace's ops, and find the gaps.


COVERAGE_KEY = "coverage:fuzz"


def fuzz_coverage(workspace: Workspace) -> Coverage:
    """Return the coverage of all fuzz runs so far."""
    record = workspace.cache.state.get(COVERAGE_KEY)
    try:
        return Coverage.of(convert(record or [], list[CountedCell]))
    except ValueError:
        return Coverage()


def add_fuzz_coverage(workspace: Workspace, fresh: Coverage) -> None:
    """Add the coverage of one more fuzz run to the stored coverage."""
    merged = fuzz_coverage(workspace).merge(fresh)
    workspace.cache.state.put(COVERAGE_KEY, plain(merged.counted))


def measure_coverage(workspace: Workspace, ops: Iterable[str] = ()) -> CoverageReport:
    """Measure which combinations of op, dtype, shape class, layout and strategy were judged.

    Raises UsageError: ``unknown-op``.
    """
    coverage = fuzz_coverage(workspace)
    chosen = select_ops(workspace, ops)
    for spec in workspace.graph.tasks.values():
        if spec.stage == "compare" and spec.subject in chosen:
            with contextlib.suppress(StoreError, KeyError):
                result = read_result(workspace.cache, spec.name, "compare")
                for item in result["cases"]:
                    verdict = Verdict(item["result"]["verdict"])
                    coverage.add(spec.subject, convert(item["case"], Case), verdict)
    rows: list[Row] = []
    gaps: list[Gap] = []
    for op in chosen:
        for dtype in dtypes_of(workspace, op):
            subject = op_subject(workspace, op, dtype, to_run=False)
            layouts, strategies = subject.layouts, subject.strategies
            rows.append(coverage.row(op, dtype, subject.schema, layouts, strategies))
            gaps += [
                gap
                for gap in coverage.gaps(op, subject.schema, [dtype], layouts, strategies)
                if " × " not in gap.aspect
            ]
    return CoverageReport(coverage, tuple(rows), tuple(gaps))
