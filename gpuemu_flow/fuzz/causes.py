"""Find one condition that all failing cases of an op share, and confirm it by a few new cases."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING

import msgspec

from gpuemu_flow.engine.signals import unwrapped_interrupts
from gpuemu_flow.engine.workspace import Workspace
from gpuemu_flow.errors import CancelledRunError, FlowError, Problem
from gpuemu_flow.judging.verdicts import UNSTEADY, reason
from gpuemu_flow.results.model import OpResult, RunReport
from gpuemu_flow.runners.api import TIMEOUT
from gpuemu_flow.store.keys import digest_json
from gpuemu_flow.types import BAD, Case, CheckResult, FailureKind, Verdict
from gpuemu_flow.value_rules import GENERATOR_SLUGS

if TYPE_CHECKING:
    from gpuemu_flow.cases.cause import Cause
    from gpuemu_flow.fuzz.subjects import OpSubject
    from gpuemu_flow.runners.pool import Pool

VERSION = 8
MOST_KNOWN = 100
"""Maximum number of failing cases, and of passing ones, that are compared."""

WRONG_VALUES = (FailureKind.TOLERANCE, FailureKind.NAN, FailureKind.INF, FailureKind.INVARIANT)

Judged = tuple[Case, CheckResult]


def cause_budget(workspace: Workspace, *, confirm: bool = True) -> int:
    """Return the number of new cases per op to confirm causes with; 0 if `confirm` is False."""
    return workspace.settings.cause_budget if confirm else 0


def with_causes(
    workspace: Workspace,
    report: RunReport,
    *,
    budget: int,
    known_only: bool = False,
    announce: Callable[[str], None] = lambda _: None,
    pool: Pool | None = None,
) -> RunReport:
    """Return a run's report with the causes of its failures.

    If a signal interrupts the search, the report lacks only the causes that were not yet found, and
    is marked as interrupted.
    """
    if not report.failures or report.interrupted:
        return report
    by_op: dict[str, list[OpResult]] = {}
    for result in report.results:
        if any(f.result.verdict in BAD for f in result.failures):
            by_op.setdefault(result.op, []).append(result)
    found: dict[str, tuple[Cause, ...]] = {}
    stopped: tuple[Problem, ...] = ()
    try:
        with unwrapped_interrupts(), _Workers(workspace, pool) as workers:
            for op, results in by_op.items():
                failing = [(f.case, f.result) for r in results for f in r.failures]
                passing = [case for r in results for case in r.passing]
                found[op] = causes_of(
                    workspace,
                    op,
                    failing,
                    passing,
                    budget=budget,
                    known_only=known_only,
                    announce=announce,
                    workers=workers,
                )
    except (KeyboardInterrupt, CancelledRunError):
        message = "the search for causes was interrupted; the verdicts are complete"
        stopped = (Problem("causes-cut-short", message, "run again to go on", warning=True),)
    workspace.cache.close()
    told = tuple(
        replace(r, causes=found[r.op]) if r.failures and r.op in found else r
        for r in report.results
    )
    problems = (*report.problems, *stopped)
    return replace(report, results=told, problems=problems, interrupted=bool(stopped))


def causes_of(
    workspace: Workspace,
    op: str,
    failing: Sequence[Judged],
    passing: Sequence[Case],
    *,
    budget: int,
    known_only: bool = False,
    cancel: Event | None = None,
    announce: Callable[[str], None] = lambda _: None,
    workers: _Workers | None = None,
) -> tuple[Cause, ...]:
    """Return the causes of one op's failures: at most one for each kind; empty if none is found.

    New cases are run in one dtype. Failing cases of another dtype are members of a cause if the
    cases at hand of that dtype agree with it, too. Parameters are those of `with_causes`.
    """
    from gpuemu_flow.cases.cause import Cause  # noqa: PLC0415
    from gpuemu_flow.fuzz.cause_search import CauseSearch  # noqa: PLC0415 - brings numpy
    from gpuemu_flow.fuzz.subjects import dtypes_of, op_names, op_subject  # noqa: PLC0415

    if budget <= 0 or op not in op_names(workspace):
        return ()
    dtypes = dtypes_of(workspace, op)
    causes: list[Cause] = []
    for kind, cases in _by_kind(failing).items():
        dtype = next((case.dtype for case in cases if case.dtype in dtypes), None)
        if dtype is None:
            continue
        subject = op_subject(workspace, op, dtype, to_run=not known_only)
        bad, good = _known(cases, dtype), _known(passing, dtype)
        key = _key(subject, kind, budget, cases, passing)
        cached = workspace.cache.actions.get(key)
        if cached is not None:
            causes += [msgspec.convert(cause, Cause) for cause in cached]
        elif not known_only:
            search = CauseSearch(subject, bad, good, budget)
            cause: Cause | None = None
            if search.is_worthwhile:
                announce(op)
                try:
                    with (
                        workers or _Workers(workspace) as opened,
                        _judge(opened.pool(), subject, kind, cancel) as fails,
                    ):
                        cause = search.cause(fails, cases, passing)
                except FlowError:
                    continue
            if cancel is None or not cancel.is_set():
                kept = [] if cause is None else [msgspec.to_builtins(cause)]
                workspace.cache.actions.put(key, kept)
            causes += [] if cause is None else [cause]
    return tuple(causes)


class _Workers:
    """Workers for new cases, started when they are first needed, closed at the context's end.

    An existing pool is used as it is, and not closed. The context may be entered again within.
    """

    def __init__(self, workspace: Workspace, pool: Pool | None = None) -> None:
        self._workspace = workspace
        self._pool = pool
        self._stack = ExitStack()
        self._depth = 0

    def __enter__(self) -> _Workers:
        self._depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._stack.close()

    def pool(self) -> Pool:
        from gpuemu_flow.judging.case_evaluator import SESSIONS_PER_EVALUATOR  # noqa: PLC0415
        from gpuemu_flow.runners.pool import Pool  # noqa: PLC0415

        if self._pool is None:
            self._pool = Pool(SESSIONS_PER_EVALUATOR, staging=self._workspace.cache.staging)
            self._stack.callback(self._pool.close)
        return self._pool


def _kind(result: CheckResult) -> str:
    """Return the kind of a failure: ``values`` for wrong values of any kind, else its reason."""
    if not result.failures:
        return ""
    first = result.failures[0]
    return "values" if first.kind in WRONG_VALUES else reason(first)


def _by_kind(failing: Sequence[Judged]) -> dict[str, list[Case]]:
    """Group the failing cases by kind of failure; leave out those for which no new case is run.

    These are cases whose inputs were not made or whose reference is unsteady, for which the op is
    not to blame, and cases that hang, since each new one would take the full time limit.
    """
    kinds: dict[str, list[Case]] = {}
    for case, result in failing:
        untold = not result.failures or result.failures[0].why in (*GENERATOR_SLUGS, UNSTEADY)
        if result.verdict in BAD and not untold:
            kinds.setdefault(_kind(result), []).append(case)
    return {kind: cases for kind, cases in kinds.items() if TIMEOUT not in kind}


def _known(cases: Sequence[Case], dtype: str) -> list[Case]:
    here = [case for case in cases if case.dtype == dtype]
    return here[:: -(-len(here) // MOST_KNOWN) or 1]


def _key(
    subject: OpSubject, kind: str, budget: int, failing: Sequence[Case], passing: Sequence[Case]
) -> str:
    keys = [subject.op_key, subject.reference_key, subject.judge_key, kind, budget]
    cases = [[case.identity() for case in cases] for cases in (failing, passing)]
    given = [repr(subject.schema), list(subject.strategies), list(subject.layouts)]
    return digest_json(["cause", VERSION, *keys, given, *cases])


@contextmanager
def _judge(
    pool: Pool, subject: OpSubject, kind: str, cancel: Event | None
) -> Iterator[Callable[[Case], bool | None]]:
    """Open a function that tells whether a case fails in the same way; None if in another way."""
    from gpuemu_flow.judging.case_evaluator import open_evaluator  # noqa: PLC0415
    from gpuemu_flow.judging.checks import FULL_CHECKS, PLAIN  # noqa: PLC0415

    checks = PLAIN if kind == "values" else FULL_CHECKS
    with open_evaluator(pool, subject.subject, cancel) as evaluator:

        def fails(case: Case) -> bool | None:
            result = evaluator.judge(case, checks).result
            if result.verdict is Verdict.PASSED:
                return False
            return True if result.verdict in BAD and _kind(result) == kind else None

        yield fails
