"""Find the causes of a report's failures by experiments, and store them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import field, replace
from threading import Event
from typing import TYPE_CHECKING, Any

from gpuemu_flow.engine.signals import unwrapped_interrupts
from gpuemu_flow.engine.workspace import Workspace
from gpuemu_flow.errors import CancelledRunError, FlowError, Problem
from gpuemu_flow.judging.verdicts import UNSTEADY
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.results.model import OpResult, RunReport
from gpuemu_flow.runners.timeouts import TIMEOUT
from gpuemu_flow.store.keys import digest_json
from gpuemu_flow.types import BAD, Case, CheckResult, FailureKind, Verdict
from gpuemu_flow.value_rules import GENERATOR_SLUGS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpuemu_flow.cases.cause import Cause
    from gpuemu_flow.fuzz.budget import Budget
    from gpuemu_flow.fuzz.relation_search import Tried
    from gpuemu_flow.fuzz.subjects import OpSubject
    from gpuemu_flow.judging.case_evaluator import CaseEvaluator
    from gpuemu_flow.runners.pool import Pool

VERSION = 6
WRONG_VALUES = (FailureKind.TOLERANCE, FailureKind.NAN, FailureKind.INF, FailureKind.INVARIANT)
RERUNS = 12
"""Maximum number of evaluations of the reference on other inputs per case of the budget."""

MOST_OPS = 8
"""Maximum budget of new cases of a whole report, as a multiple of the budget per op."""

LEAST_SECONDS, MOST_SECONDS, SHARE_OF_RUN = 30.0, 300.0, 0.5
"""Time after which a report with many failing ops begins no more experiments: a share of the run's
duration, within limits in seconds. A running experiment ends by its own limit."""

MOST_PASSING = 200
MOST_FAILING = 60
MOST_ELEMENTS = 1 << 15
"""Maximum number of elements of an experiment's tensors, unless all failing cases are larger."""

Judged = tuple[Case, CheckResult]


class _Workers:
    """Context manager for the workers of experiments.

    Workers are started when an experiment first needs them, and closed at the end of the context.

    Parameters
    ----------
    workspace : Workspace
    pool : Pool, optional
        Existing workers. If given, no other workers are started, and these are not closed.
    """

    def __init__(self, workspace: Workspace, pool: Pool | None = None) -> None:
        self._workspace = workspace
        self._pool = pool
        self._own: Pool | None = None

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *_: object) -> None:
        if self._own is not None:
            self._own.close()

    def pool(self) -> Pool:
        """Return the workers, which are made on first use."""
        from gpuemu_flow.judging.case_evaluator import SESSIONS_PER_EVALUATOR  # noqa: PLC0415
        from gpuemu_flow.runners.pool import Pool  # noqa: PLC0415

        if self._pool is None:
            staging = self._workspace.cache.staging
            self._pool = self._own = Pool(SESSIONS_PER_EVALUATOR, staging=staging)
        return self._pool


@dataclass
class ExperimentBudget:
    """The time and cases that remain for a report's experiments, and the ops that were cut short.

    Attributes
    ----------
    cases : int
        Number of new cases that may still be run.
    until : float
        Monotonic time after which no experiment begins.
    announce : callable
        Called with an op's name before its experiment begins.
    left_out, cut : set of str
        Ops for which no experiment was made because time or cases ran out, and ops whose experiment
        was ended by the time limit.
    """

    cases: int
    until: float
    announce: Callable[[str], None] = lambda _: None
    left_out: set[str] = field(default_factory=set)
    cut: set[str] = field(default_factory=set)

    @property
    def over(self) -> bool:
        """Tell whether no cases or no time are left for another experiment."""
        return self.cases <= 0 or time.monotonic() > self.until

    def problems(self) -> tuple[Problem, ...]:
        """Return the report's warnings about experiments that were left out or cut short."""
        found = []
        if self.left_out:
            names = ", ".join(sorted(self.left_out))
            message = f"no causes were searched for, as other ops took too long: {names}"
            hint = "run again: causes already found are kept, and the search continues"
            found.append(Problem("causes-cut-short", message, hint, warning=True))
        if self.cut:
            names = ", ".join(sorted(self.cut))
            message = f"the search for a cause was stopped by its time limit: {names}"
            found.append(Problem("causes-cut-short", message, warning=True))
        return tuple(found)


def family(result: CheckResult) -> str:
    """Return the group of a failure: ``values`` for wrong values of any kind, else its reason."""
    from gpuemu_flow.judging.verdicts import reason  # noqa: PLC0415

    first = result.failures[0] if result.failures else None
    if first is None:
        return ""
    return "values" if first.kind in WRONG_VALUES else reason(first)


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

    Parameters
    ----------
    workspace : Workspace
    report : RunReport
    budget : int
        New cases per op; 0 makes no experiment.
    known_only : bool
        True to add only causes that earlier experiments found, without new experiments.
    announce : callable, optional
        Called with an op's name before an experiment on its failures begins.
    pool : Pool, optional
        Workers for the experiments, of at least `SESSIONS_PER_EVALUATOR` sessions.
    """
    if not report.failures or report.interrupted:
        return report
    by_op: dict[str, list[OpResult]] = {}
    for result in report.results:
        if any(f.result.verdict in BAD for f in result.failures):
            by_op.setdefault(result.op, []).append(result)
    found: dict[str, tuple[Cause, ...]] = {}
    seconds = min(MOST_SECONDS, max(LEAST_SECONDS, SHARE_OF_RUN * report.duration_s))
    effort = ExperimentBudget(MOST_OPS * budget, time.monotonic() + seconds, announce)
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
                    effort=effort,
                    workers=workers,
                )
    except (KeyboardInterrupt, CancelledRunError):
        message = "the search for causes was interrupted; the verdicts are complete"
        hint = "run again: the search continues"
        stopped = (Problem("causes-cut-short", message, hint, warning=True),)
    workspace.cache.close()
    told = tuple(
        replace(r, causes=found[r.op]) if r.failures and r.op in found else r
        for r in report.results
    )
    problems = (*report.problems, *effort.problems(), *stopped)
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
    effort: ExperimentBudget | None = None,
    workers: _Workers | None = None,
) -> tuple[Cause, ...]:
    """Return the causes of one op's failures, confirmed causes first; empty if none is found.

    Parameters
    ----------
    failing : sequence of (Case, CheckResult)
    passing : sequence of Case
        Cases of the op that passed, which the experiments compare with the failing ones.
    budget : int
        Number of new cases that may be run; no cause is returned if it is 0.
    known_only : bool
        True to return only causes that earlier experiments found.
    cancel : Event, optional
        Ends the experiments when it is set.
    effort : ExperimentBudget, optional
        Limits on the experiments of all ops of a report; what is used is subtracted.
    workers : _Workers, optional
        Workers shared by the experiments of several ops; by default each experiment starts its own.
    """
    from gpuemu_flow.cases.cause import Cause  # noqa: PLC0415
    from gpuemu_flow.fuzz.budget import Budget  # noqa: PLC0415
    from gpuemu_flow.fuzz.subjects import dtypes_of, op_names, op_subject  # noqa: PLC0415

    if budget <= 0 or op not in op_names(workspace):
        return ()
    families = _families(failing)
    known = dtypes_of(workspace, op)
    causes: list[Cause] = []
    for kind, members in families.items():
        dtype = next((case.dtype for case, _ in members if case.dtype in known), None)
        if dtype is None:
            continue
        subject = op_subject(workspace, op, dtype, to_run=not known_only)
        here = [case for case, _ in members if case.dtype == dtype][:MOST_FAILING]
        others = [case for case in passing if case.dtype == dtype]
        others = others[:: max(1, len(others) // MOST_PASSING)]
        # Each case that hangs would take the op's full time limit.
        share = 0 if TIMEOUT in kind else budget // len(families)
        key = _key(subject, kind, share, here, others)
        cached = workspace.cache.actions.get(key)
        if cached is not None:
            found = [Cause.from_json(each) for each in cached]
        elif known_only:
            continue
        elif effort is not None and effort.over:
            effort.left_out.add(op)
            continue
        else:
            if effort is not None and share:
                effort.announce(op)
            allowance = Budget(share)
            try:
                with _Workers(workspace) if workers is None else nullcontext(workers) as opened:
                    pool = opened.pool()
                    found = _found(pool, subject, kind, members, here, others, allowance, cancel)
            except FlowError:
                continue
            if effort is not None:
                effort.cases -= allowance.used
                effort.cut |= {op} if allowance.cut else set()
            if cancel is None or not cancel.is_set():
                workspace.cache.actions.put(key, [cause.to_json() for cause in found])
        causes += [_with_members(cause, [case for case, _ in members]) for cause in found]
    return tuple(sorted(causes, key=lambda cause: not cause.stated))


def _families(failing: Sequence[Judged]) -> dict[str, list[Judged]]:
    """Group the failing cases by kind of failure; leave out cases that need no experiment.

    No experiment is made for a case if the user's function that makes its inputs failed, or if the
    reference's outputs differ between calls. A function that failed might also hang, and use up
    an experiment's time.
    """
    families: dict[str, list[Judged]] = {}
    for case, result in failing:
        untold = (*GENERATOR_SLUGS, UNSTEADY)
        made = not result.failures or result.failures[0].why not in untold
        if made and result.verdict in BAD and result.failures:
            families.setdefault(family(result), []).append((case, result))
    return families


def _key(
    subject: OpSubject, kind: str, budget: int, failing: Iterable[Case], passing: Iterable[Case]
) -> str:
    keys = [subject.op_key, subject.reference_key, subject.judge_key, kind, budget]
    schema = repr(subject.schema)
    cases = [[case.identity() for case in cases] for cases in (failing, passing)]
    given = [schema, list(subject.strategies), list(subject.layouts)]
    return digest_json(["cause", VERSION, *keys, given, *cases])


def _with_members(cause: Cause, failing: Sequence[Case]) -> Cause:
    """Return the cause, with the ids of the failing cases that it explains as its members."""
    from gpuemu_flow.cases.cause import case_id  # noqa: PLC0415
    from gpuemu_flow.cases.hypotheses import holds  # noqa: PLC0415
    from gpuemu_flow.cases.measured import facts_of  # noqa: PLC0415

    if not cause.predicates:
        members = list(failing)
    else:
        members = [case for case in failing if holds(cause.predicates, facts_of(case))]
    return replace(cause, members=tuple(case_id(case) for case in members))


def _found(
    pool: Pool,
    subject: OpSubject,
    kind: str,
    members: Sequence[Judged],
    failing: Sequence[Case],
    passing: Sequence[Case],
    budget: Budget,
    cancel: Event | None,
) -> list[Cause]:
    from gpuemu_flow.cases.variants import Variants  # noqa: PLC0415
    from gpuemu_flow.fuzz.experiment import Experiment  # noqa: PLC0415
    from gpuemu_flow.fuzz.relation_search import RelationSearch  # noqa: PLC0415
    from gpuemu_flow.judging.case_evaluator import open_evaluator  # noqa: PLC0415

    smallest = min(_largest(case) for case in failing)
    variants = Variants(
        subject.schema,
        subject.subject.dtype,
        subject.strategies,
        subject.layouts,
        subject.seed,
        max(MOST_ELEMENTS, 2 * smallest),
    )
    watched = any(r.failures[0].kind not in WRONG_VALUES for _, r in members)
    with open_evaluator(pool, subject.subject, cancel) as evaluator:
        judge = _Judge(evaluator, kind, watched=watched)
        relations = RelationSearch(subject.schema, _Reference(evaluator, budget).ask)
        experiment = Experiment(variants, judge.run, relations, budget, failing, passing)
        cause = experiment.cause()
        return [cause] if cause is not None else experiment.seen_with()


def _largest(case: Case) -> int:
    largest = 0
    for spec in case.inputs:
        count = 1
        for size in spec.shape:
            count *= size
        largest = max(largest, count)
    return largest


class _Judge:
    """Runs the cases of an experiment, and judges them."""

    def __init__(self, evaluator: CaseEvaluator, kind: str, *, watched: bool) -> None:
        from gpuemu_flow.judging.checks import FULL_CHECKS, PLAIN  # noqa: PLC0415

        self._evaluator = evaluator
        self._kind = kind
        self._checks = FULL_CHECKS if watched else PLAIN

    def run(self, case: Case, inputs: Mapping[str, NDArray[Any]] | None = None) -> Tried:
        """Judge one case, on the given inputs or, without any, on those that the case describes."""
        from gpuemu_flow.fuzz.relation_search import Tried  # noqa: PLC0415

        evaluated = (
            self._evaluator.judge(case, self._checks)
            if inputs is None
            else self._evaluator.judge_arrays(case, inputs, self._checks)
        )
        verdict = evaluated.result.verdict
        failed: bool | None = None
        if verdict is Verdict.PASSED:
            failed = False
        elif verdict in BAD and family(evaluated.result) == self._kind:
            failed = True
        contracts = self._evaluator.subject.compare.outputs
        plain = failed is not None and self._kind == "values"
        plain = plain and all(contract.plain for contract in contracts)
        actual = {name: array.copy() for name, array in evaluated.actual.items()} if plain else {}
        expected = {n: a.copy() for n, a in evaluated.expected.items()} if plain else {}
        return Tried(case, failed, evaluated.inputs, actual, expected)


class _Reference:
    """Evaluates the reference on inputs of an experiment, within limits on calls and time."""

    def __init__(self, evaluator: CaseEvaluator, budget: Budget) -> None:
        self._evaluator = evaluator
        self._budget = budget
        self._left = RERUNS * budget.left

    def ask(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]] | None:
        """Return the reference's outputs; None if the reference fails or a limit is reached."""
        from gpuemu_flow.numerics.dtypes import to_float64  # noqa: PLC0415

        if self._left <= 0 or self._budget.late():
            return None
        self._left -= 1
        try:
            given = self._evaluator(inputs)
        except FlowError:
            return None
        return {name: to_float64(array) for name, array in given.items()}
