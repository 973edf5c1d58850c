"""Find one condition that all failing cases of an op share, and confirm it by a few new cases."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from itertools import islice
from threading import Event

import msgspec
from msgspec.structs import replace

from gpuemu_flow.build.signals import unwrapped_interrupts
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.cases.conditions import (
    Facts,
    Rule,
    as_written,
    necessary,
    separating,
)
from gpuemu_flow.cases.generated_values import unmade
from gpuemu_flow.cases.op_schema import allows_size
from gpuemu_flow.cases.plan import companion_strategy, expand_strategies
from gpuemu_flow.fuzz.subjects import OpSubject, dtypes_of, op_names, op_subject
from gpuemu_flow.judge.case_evaluator import SESSIONS_PER_EVALUATOR, open_evaluator
from gpuemu_flow.judge.results import OpResult, RunReport
from gpuemu_flow.judge.subject import FULL_CHECKS, PLAIN
from gpuemu_flow.judge.verdicts import UNSTEADY, reason
from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.errors import CancelledRunError, FlowError, Problem
from gpuemu_flow.model.types import (
    ABSENT,
    BAD,
    GENERATOR_SLUGS,
    PLAIN_STRATEGIES,
    STRATEGIES,
    Case,
    CheckResult,
    FailureKind,
    Verdict,
)
from gpuemu_flow.model.verdicts import Cause, Counts, case_id
from gpuemu_flow.numerics.rng import derive_seed
from gpuemu_flow.store.keys import digest_json
from gpuemu_flow.workers.api import TIMEOUT
from gpuemu_flow.workers.pool import Pool

VERSION = 11
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
    """Return a run's report with the causes of its failures. If a signal interrupts the search, the
    report lacks only the causes that were not yet found, and is marked as interrupted."""
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
    cases at hand of that dtype agree with it, too. Parameters are those of `with_causes`."""
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
        if isinstance(cached, list):
            causes += [convert(cause, Cause) for cause in cached]
        elif not known_only:
            search = CauseSearch(subject, bad, good, budget)
            cause: Cause | None = None
            judged: dict[str, bool | None] = dict(cached or {})
            if search.is_worthwhile:
                announce(op)
                try:
                    with (
                        workers or _Workers(workspace) as opened,
                        _judge(opened.pool(), subject, kind, cancel, judged) as fails,
                    ):
                        cause = search.cause(fails, cases, passing)
                except FlowError:
                    continue
            if cancel is None or not cancel.is_set():
                # Where the time was over, which tells of the machine, the next search goes on.
                kept = [] if cause is None else [msgspec.to_builtins(cause)]
                workspace.cache.actions.put(key, judged if search.is_cut_short else kept)
            causes += [] if cause is None else [cause]
    return tuple(causes)


class _Workers:
    """Workers for new cases, started when they are first needed, closed at the context's end. An
    existing pool is used as it is, and not closed. The context may be entered again within."""

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
        if self._pool is None:
            self._pool = Pool(SESSIONS_PER_EVALUATOR)
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
    not to blame, and cases that hang, since each new one would take the full time limit."""
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
    pool: Pool,
    subject: OpSubject,
    kind: str,
    cancel: Event | None,
    judged: dict[str, bool | None],
) -> Iterator[Callable[[Case], bool | None]]:
    """Judge only the cases that `judged` lacks, and add them."""
    checks = PLAIN if kind == "values" else FULL_CHECKS
    with open_evaluator(pool, subject.subject, cancel) as evaluator:

        def fails(case: Case) -> bool | None:
            name = f"{case.seed} {case.to_text()}"
            if name not in judged:
                result = evaluator.judge(case, checks).result
                same = result.verdict in BAD and _kind(result) == kind
                judged[name] = False if result.verdict is Verdict.PASSED else same or None
            return judged[name]

        yield fails


# Confirm one condition of an op's failures by new cases, each of which could refute it.


ENOUGH = 4
"""Number of new cases that meet a condition, and of new cases that do not, which confirm it."""

MOST_NARROWING = 4
"""Maximum number of new cases with a size between those that fail and those that pass."""

MOST_SECONDS = 20.0
"""Time after which no further new case of an op is run; the next search goes on from there."""

DRAWN = 150
"""Number of planned cases, of all values and of ordinary ones, from which new cases are chosen."""

MOST_ELEMENTS = 1 << 15
"""Maximum number of elements of a new case, unless all failing cases are larger."""

SIZES = (2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 20, 24, 31, 32, 33, 40, 48, 63, 64, 65, 80, 96,
         127, 128, 129, 160, 192, 255, 256, 257, 320, 384, 512, 768, 1024)  # fmt: skip
"""Sizes that distinguish conditions on sizes; new cases have them in one dim."""


class CauseSearch:
    """The search for the condition of one op's failures in one dtype. Each new case is the one on
    which the conditions that are still possible disagree most."""

    def __init__(
        self, subject: OpSubject, failing: Sequence[Case], passing: Sequence[Case], budget: int
    ) -> None:
        self._subject = subject
        self._budget = budget
        self._failing = failing
        self._strategies = expand_strategies(subject.strategies) or STRATEGIES
        companion = companion_strategy(self._strategies)
        self._ordinary = [s for s in PLAIN_STRATEGIES if s in self._strategies] or [companion]
        self._limit = max(MOST_ELEMENTS, 2 * min(case.numel for case in failing))
        self._known = [
            (self._facts(case), failed)
            for cases, failed in ((failing, True), (passing, False))
            for case in cases
        ]
        self.is_cut_short = False
        self._right: Counter[object] = Counter()
        """New cases that a rule predicted rightly, by its key and whether they failed."""

    def _facts(self, case: Case) -> Facts:
        return Facts(case, self._ordinary)

    @property
    def is_worthwhile(self) -> bool:
        if self._budget < 2 * ENOUGH:
            return False
        return any(rule.may_be_stated for rule in separating(self._known))

    def cause(
        self,
        fails: Callable[[Case], bool | None],
        failing: Sequence[Case],
        passing: Sequence[Case],
    ) -> Cause | None:
        """Return the confirmed cause; None if there is none. `fails` runs a new case. The cause's
        members are among `failing`, cases of all dtypes: those of another dtype than the search's
        are members if the dtype's cases at hand agree, too."""
        rule = self._confirmed(fails)
        if rule is None:
            return None
        members = []
        for dtype in dict.fromkeys(case.dtype for case in failing):
            bad = [case for case in failing if case.dtype == dtype]
            good = [case for case in passing if case.dtype == dtype]
            if dtype == self._subject.subject.dtype or self._agree(rule, bad, good):
                members += [case_id(case) for case in bad]
        condition = rule.condition(
            whole=self._is_whole(rule.subject), listed=self._listed(rule.subject)
        )
        inside, outside = self._right[rule.key, True], self._right[rule.key, False]
        return Cause(
            condition.sentence,
            f"fails when {condition.sentence}, confirmed by {inside} of {inside} new cases inside, "
            f"0 of {outside} outside",
            (condition,),
            Counts(inside, inside, 0, outside),
            tuple(members),
        )

    def _agree(self, rule: Rule, failing: Sequence[Case], passing: Sequence[Case]) -> bool:
        return not any(
            rule.predicts(self._facts(case)) is (not failed)
            for cases, failed in ((failing, True), (passing, False))
            for case in cases
        )

    def _is_whole(self, subject: str) -> bool:
        """Tell whether a condition's numbers are whole: sizes, or the values of a whole scalar."""
        dtypes = {spec.name: spec.dtype for spec in self._failing[0].inputs}
        return "int" in dtypes.get(subject, "int")

    def _listed(self, subject: str) -> dict[float, str]:
        """Return the values that a scalar has if the schema lists them, each as it is written
        there; else nothing."""
        specs = (spec for spec in self._failing[0].inputs if spec.name == subject)
        rules = (spec.rule for spec in specs if not spec.shape and spec.rule is not None)
        return {
            float(number): str(rule.choices[int(number)]) if rule.choices else as_written(number)
            for rule in rules
            for number in sorted(rule.numbers)
        }

    def _confirmed(self, fails: Callable[[Case], bool | None]) -> Rule | None:
        """Run new cases until they confirm one condition and refute all that differ from it."""
        until = time.monotonic() + MOST_SECONDS
        unused = [self._facts(case) for case in self._new_cases()]
        narrowed = 0
        for left in range(self._budget, -1, -1):
            rules = separating(self._known)
            rule = next((rule for rule in rules if rule.may_be_stated), None)
            if rule is None:
                return None
            facts = self._between(rule)
            if facts is not None and narrowed == MOST_NARROWING:
                return None  # chance, which makes no sharp border, or a border that takes long
            narrowed += facts is not None
            facts = facts or self._most_telling(rule, rules, unused)
            if facts is None:
                alone = not any(rule.may_be_taken_for(each) for each in rules)
                return rule if alone and min(self._counts(rule)) >= ENOUGH else None
            self.is_cut_short = left > 0 and time.monotonic() > until
            if not left or self.is_cut_short:
                return None
            failed = fails(facts.case)
            if failed is None:
                continue
            for each in rules:
                if each.predicts(facts) is failed:
                    self._right[each.key, failed] += 1
            self._known.append((facts, failed))
        return None

    def _counts(self, rule: Rule) -> tuple[int, int]:
        return self._right[rule.key, True], self._right[rule.key, False]

    def _most_telling(self, rule: Rule, rules: Sequence[Rule], unused: list[Facts]) -> Facts | None:
        """Take the next case out of `unused`; None if `rule` is settled or no case is left. It is
        one that `rule` predicts, and that as few of the other rules as possible predict in the same
        way. One that should fail lacks what else all failing cases have in common. Of numbers, the
        second half of the cases is near the border and large, where chance shows. Once enough cases
        were run, only one counts that another rule predicts otherwise."""
        inside, outside = self._counts(rule)
        enough = min(inside, outside) >= ENOUGH
        wanted = inside <= outside
        near = not enough and min(inside, outside) >= ENOUGH // 2
        common = necessary(self._known)
        most, chosen = 0.0 if enough else -math.inf, None
        for facts in unused:
            told = rule.predicts(facts)
            if told is None or (not enough and told is not wanted):
                continue
            others = [each.predicts(facts) for each in rules]
            score = 2.0 * others.count(not told)
            if not enough:
                score += others.count(None)
            if told and not enough:
                score += sum(each.predicts(facts) is False for each in common)
            if near and rule.is_border:
                score = facts.case.numel / (2.0 * self._limit) - rule.distance(facts)
            if score > most:
                most, chosen = score, facts
        if chosen is not None:
            unused.remove(chosen)
        return chosen

    # New cases

    def _new_cases(self) -> Iterator[Case]:
        """Yield cases with chosen sizes, planned ones of ordinary values, and of all values."""
        yield from self._planned("ordinary", self._ordinary)
        for dim in self._subject.schema.dims:
            for n, size in enumerate(SIZES):
                for base in (*self._bases[n % 3 :], *self._bases)[:3]:
                    case = self._resized(base, dim.name, size)
                    if case is not None:
                        yield case
                        break
        yield from self._planned("all", self._strategies)

    @cached_property
    def _bases(self) -> list[Case]:
        """Cases that may be changed: those of ordinary values with sizes above 1, if there are."""
        planned = self._planned("ordinary", self._ordinary)
        facts = [self._facts(case) for case in planned]
        plain = [f for f in facts if f.ordinary and not f.repeats]
        large = [f.case for f in plain if min(f.sizes.values(), default=2) > 1]
        return large or [f.case for f in plain] or planned

    def _planned(self, name: str, strategies: Sequence[str]) -> list[Case]:
        seed = derive_seed(self._subject.seed, f"causes_{name}")
        cases = islice(self._subject.cases(seed=seed, strategies=strategies), DRAWN)
        return [replace(case, index=0) for case in cases if case.numel <= self._limit]

    def _between(self, rule: Rule) -> Facts | None:
        """Make a case whose size lies between those that fail and those that pass; None if none.
        Borders are mostly whole tiles: the size tried is the one with the largest power of two as a
        factor, or the size after it if that one is known to be on the other side."""
        if rule.kind not in ("above", "at_most"):
            return None
        low, high = sorted((int(rule.value), int(rule.other)))
        tile = 1
        while 2 * tile < high and (high - 1) // (2 * tile) * (2 * tile) >= low:
            tile *= 2
        border = (high - 1) // tile * tile
        size = border if border > low else low + 1
        if not low < size < high:
            return None
        cases = (self._resized(base, rule.subject, size) for base in self._bases)
        return next((self._facts(case) for case in cases if case is not None), None)

    def _resized(self, case: Case, name: str, size: int) -> Case | None:
        """Return a case with another size of one dim; None where this is not allowed."""
        schema = self._subject.schema
        known = dict(case.dims)
        dim = next((dim for dim in schema.dims if dim.name == name), None)
        sizes = {dim.name: known[dim.name] for dim in schema.dims if dim.name in known} | {
            name: size
        }
        if dim is None or name not in known or not allows_size(dim, size):
            return None
        if not schema.allows(sizes):
            return None
        named = schema.all_sizes(sizes)
        specs = tuple(
            spec if spec.strategy == ABSENT else replace(spec, shape=shape)
            for spec, shape in zip(unmade(case).inputs, schema.shapes(named), strict=True)
        )
        seed = derive_seed(case.seed, f"{name}_{size}")
        found = replace(case, inputs=specs, dims=tuple(named.items()), seed=seed)
        return found if found.numel <= self._limit else None
