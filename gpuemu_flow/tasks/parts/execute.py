"""Run an op or a reference on cases, with an action-cache entry for each case."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from msgspec import Struct, field, to_builtins

from gpuemu_flow.judge.verdicts import input_error
from gpuemu_flow.model.observed import Observation
from gpuemu_flow.model.types import Json
from gpuemu_flow.store.discovered import Discovered, KnownInputs
from gpuemu_flow.store.keys import digest_json
from gpuemu_flow.tasks.base import Interrupted, Progress, StageContext, TaskSpec
from gpuemu_flow.workers.api import Checks, Outcome, Program, Request


class BatchOutcomes(Struct, frozen=True):
    """The outcomes of a batch of requests."""

    requests: list[Request]
    outcomes: list[Outcome]
    executed: int
    duration_s: float
    used: Discovered = field(default_factory=Discovered)

    def records(self) -> list[dict[str, Json]]:
        """Return the outcomes in the form of a result."""
        pairs = zip(self.requests, self.outcomes, strict=True)
        return [outcome_record(request, outcome) for request, outcome in pairs]


def outcome_record(request: Request, outcome: Outcome) -> dict[str, Json]:
    """Return an outcome as results contain it: with its input dtype, without its duration.

    Equal results therefore have equal records.
    """
    record = outcome.to_json()
    del record["duration_s"]
    record["input_dtype"] = request.input_dtype
    return record


def execute(
    spec: TaskSpec,
    context: StageContext,
    *,
    program: Program,
    code: Mapping[str, str],
    requests: Sequence[Request],
    checks: Checks,
) -> BatchOutcomes:
    """Run `program` on every request that the action cache does not answer.

    Raises Interrupted: The run was cancelled. Finished cases are in the action cache.
    """
    begin = time.perf_counter()
    base = {
        "stage": f"{spec.stage}/{spec.version}",
        "code": dict(code),
        "params": spec.params,
        "env": {**context.environment, **context.packages},
        "checks": to_builtins(checks),
    }
    known = KnownInputs(context.cache.actions, digest_json(base), context.inputs)
    batch = _Batch(spec, context, program, requests, known)
    batch.leave_out()
    if not context.force:
        batch.look_up()
    missing = dict.fromkeys(n for n in range(len(requests)) if n not in batch.found)
    context.on_progress(Progress(spec.name, len(batch.found), len(requests), 0))
    if missing:
        context.about_to_run()
        batch.run(list(missing), checks)
    batch.share()
    elapsed = time.perf_counter() - begin
    restored = sum(batch.found[n].duration_s for n in range(len(requests)) if n not in missing)
    return BatchOutcomes(
        list(requests),
        [batch.found[n] for n in range(len(requests))],
        len(missing),
        restored + elapsed if missing else restored or elapsed,
        batch.used,
    )


class _Batch:
    """The cases of one call of `execute`, with their outcomes and observed inputs."""

    def __init__(
        self,
        spec: TaskSpec,
        context: StageContext,
        program: Program,
        requests: Sequence[Request],
        known: KnownInputs,
    ) -> None:
        self._spec = spec
        self._context = context
        self._program = program
        self._requests = requests
        self._known = known
        sources = frozenset(str(context.root / path) for path in spec.sources)
        self._static = context.inputs.discover(Observation(files=sources), program.given)
        self._cached_under: dict[int, Discovered] = {}
        self._begun = context.inputs.now()
        self._is_shared = False
        self.found: dict[int, Outcome] = {}
        self.used = Discovered()

    def leave_out(self) -> None:
        """Record an error for each case with an input that could not be made."""
        for n, request in enumerate(self._requests):
            error = input_error(request.case)
            if error is not None:
                self.found[n] = Outcome(request.case.index, ok=False, error=error)

    def look_up(self) -> None:
        """Take outcomes for the present inputs from the action cache, then from a shared cache."""
        for names, shared in self._known.candidates():
            self._take(names, shared)
            if self._is_complete():
                return
        self._look_up_shared()

    def _take(self, names: Discovered, shared: str) -> bool:
        """Take the action cache's outcomes for one set of inputs; return True if it has any.

        `names` are the inputs. `shared` is the part of the cache keys that all cases have in
        common.
        """
        before = len(self.found)
        for n, request in enumerate(self._requests):
            if n in self.found:
                continue
            outcome = _cached(self._context, _case_key(shared, request), request)
            if outcome is not None:
                self.found[n] = outcome
                self._cached_under[n] = names
                self.used |= names
        return len(self.found) > before

    def _is_complete(self) -> bool:
        return len(self.found) == len(self._requests)

    def _look_up_shared(self) -> None:
        """Take outcomes for the present inputs from a shared cache, if there is one."""
        cache = self._context.shared
        if cache is None:
            return
        for names in cache.sets(self._known.place, self._program.given.names):
            shared = self._known.key(names)
            whole = cache.fetch([_case_key(shared, request) for request in self._requests])
            if self._take(names, shared):
                self._known.add(names)
                self._is_shared = whole
            if self._is_complete():
                return

    def run(self, missing: Sequence[int], checks: Checks) -> None:
        """Run the requests whose indices are in `missing`, and cache their outcomes if possible.

        The key of an outcome covers all inputs that the program was seen to use before the outcome
        arrived.
        """
        context, requests = self._context, self._requests
        places = iter(missing)  # several requests may be for one case, in other dtypes
        cached, fresh = len(self.found), 0
        begun = self._begun
        names, shared = self._static, ""

        def on_observed(seen: Observation) -> None:
            nonlocal names, shared
            more = names | context.inputs.discover(seen, self._program.given)
            if not shared or more != names:
                names, shared = more, self._known.add(more)

        def on_outcome(outcome: Outcome) -> None:
            nonlocal fresh
            fresh += 1
            n = next(places)
            if outcome.ok and context.unchanged() and not context.inputs.moved(names, begun):
                self._keep(n, outcome, names, shared)
            context.on_progress(Progress(self._spec.name, cached + fresh, len(requests), fresh))

        outcomes = context.pool.run(
            self._program,
            [requests[n] for n in missing],
            checks=checks,
            on_outcome=on_outcome,
            on_observed=on_observed,
            publish=context.cache.blobs.publish,
            cancel=context.cancel,
        )
        self.found.update(zip(missing, outcomes, strict=False))  # fewer after a cancellation
        self.used |= names
        if any(n not in self.found for n in missing):
            raise Interrupted
        if self._cached_under and any(slot != self.used for slot in self._cached_under.values()):
            self._join(begun)

    def share(self) -> None:
        """Store the outcomes in a shared cache if it is writable.

        Results of a program that may have used unobserved inputs are not shared, since only the
        user of this machine knows when these inputs change.
        """
        cache, context, names = self._context.shared, self._context, self.used
        if cache is None or not cache.writes or self._is_shared or not self._cached_under:
            return
        if names.untracked or not context.unchanged() or context.inputs.moved(names, self._begun):
            return
        shared = self._known.key(names)
        found = {n: self.found[n] for n in self._cached_under}
        cache.store_set(self._known.place, names, self._program.given.names)
        cache.store(
            [_case_key(shared, request) for request in self._requests],
            {_case_key(shared, self._requests[n]): out.to_json() for n, out in found.items()},
            [outcome.blob for outcome in found.values()],
        )

    def _keep(self, n: int, outcome: Outcome, names: Discovered, shared: str) -> None:
        self._context.cache.actions.put(_case_key(shared, self._requests[n]), outcome.to_json())
        self._cached_under[n] = names

    def _join(self, begun: int) -> None:
        """Store cached outcomes again, under keys that cover all inputs of the batch's cases.

        These inputs are everything, such as files, that the program was seen to use in one or more
        cases. An outcome that is already stored under such a key is left out. Nothing is stored if
        one of the inputs was changed after the time `begun`.
        """
        context = self._context
        if not context.unchanged() or context.inputs.moved(self.used, begun):
            return
        shared = self._known.add(self.used)
        context.cache.actions.put_many(
            (_case_key(shared, self._requests[n]), self.found[n].to_json())
            for n, names in self._cached_under.items()
            if names != self.used
        )


def _case_key(shared: str, request: Request) -> str:
    return digest_json([shared, request.case.identity(), request.input_dtype])


def _cached(context: StageContext, key: str, request: Request) -> Outcome | None:
    """Return an outcome from the action cache; None if it is missing, or its blob is lost."""
    record = context.cache.actions.get(key)
    if record is None:
        return None
    try:
        outcome = Outcome.from_json({**record, "index": request.case.index})
        there = context.cache.blobs.has(outcome.blob)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        return None
    promised = context.shared is not None and context.shared.promises(outcome.blob)
    return outcome if there or promised else None
