"""FuzzOp, and requests about recorded results, baselines and failures."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

import msgspec
from msgspec import Struct
from numpy.typing import NDArray

from gpuemu_flow.cases.generate import materialise
from gpuemu_flow.cases.generated_values import is_made
from gpuemu_flow.fuzz.case_queue import checks_for
from gpuemu_flow.fuzz.failures import only_failure, reproduce, stored_inputs
from gpuemu_flow.fuzz.minimizing import minimise_failure
from gpuemu_flow.fuzz.wire_ops import Query, WireSubject
from gpuemu_flow.judge.known import read_verdict
from gpuemu_flow.model.decoding import plain
from gpuemu_flow.model.errors import UsageError
from gpuemu_flow.model.types import BAD, Case, CheckResult, Json, Shape, Verdict
from gpuemu_flow.model.verdicts import Tally
from gpuemu_flow.report import baselines as client_baselines
from gpuemu_flow.services.daemon.issuing import CaseMaker
from gpuemu_flow.services.daemon.replies import (
    Fields,
    RequestError,
    finite,
    invalid,
    reproduction_info,
    validation_result,
)
from gpuemu_flow.services.daemon.service import CancelledJobError, Configured, Job, Service
from gpuemu_flow.services.daemon.submissions import record_failure
from gpuemu_flow.store.baselines import BaselineStore, SubmittedResult, unknown_baseline
from gpuemu_flow.store.failures import ID_LENGTH, FailureRecord
from gpuemu_flow.store.keys import digest_json
from gpuemu_flow.wire.tensors import encode_tensors
from gpuemu_flow.workers.api import Checks

# FuzzOp: make cases, run and judge them; a client's retry reuses stored verdicts.

# Requests about recorded failures: ListFailures, Reproduce, Minimize.

MAX_ITERS = 1_000_000
STRATEGIES = {
    "BinarySearchDims": "binary-search-dims",
    "BinarySearchValues": "binary-search-values",
    "All": "all",
}


def list_failures(service: Service, fields: Fields, _job: Job) -> dict[str, Json]:
    records = service.failures.list(limit=fields.integer("limit", 0, MAX_LIMIT))
    return {"type": "Results", "results": [_as_result(record) for record in records]}


def reproduce_failure(service: Service, fields: Fields, job: Job) -> dict[str, Json]:
    """Answer ``Reproduce``: return the stored verdict and the exact inputs. With ``rerun``, which
    the protocol does not have, the op is run again on these inputs."""
    record = _find(service, fields)
    inputs = stored_inputs(service.failures, record)
    reply: dict[str, Json] = {
        "type": "ReproduceResult",
        "result": _as_result(record),
        "inputs": encode_tensors(inputs, fields.reply_exchange),
    }
    if fields.flag("rerun", default=False):
        cancel = threading.Event()
        with job.linked(cancel):
            again = reproduce(service.configured().workspace, [record], cancel=cancel)[0]
        reply["still_fails"] = None if again.did_not_show else again.still_fails
        reply["current"] = validation_result(record.op, wire_seed(record), again.result)
    return reply


def minimize(service: Service, fields: Fields, job: Job) -> dict[str, Json]:
    strategy = STRATEGIES[fields.choice("strategy", tuple(STRATEGIES))]
    budget = fields.integer("max_iters", 0, MAX_ITERS)
    record = _find(service, fields)
    cancel = threading.Event()
    with job.linked(cancel):
        found = minimise_failure(
            service.configured().workspace,
            record,
            strategy=strategy,
            budget=max(1, budget),
            cancel=cancel,
        )
    smallest = found.minimized or record
    return {
        "type": "MinimizeResult",
        "original_seed": wire_seed(record),
        "minimized_seed": wire_seed(smallest),
        "minimized_shape": list(smallest.shape),
        "result": _as_result(smallest),
        "still_fails": found.minimized is not None,
        "steps": found.steps,
        "one_minimal": found.one_minimal,
    }


def wire_seed(record: FailureRecord) -> int:
    """Return the seed that names a failure on the wire. The record of a shrunk case has the same
    seed as its original's record. On the wire, a shrunk case is therefore named by a number made
    from its record's id, so that clients can request either failure."""
    return record.seed if record.minimized_from is None else int(record.id[:ID_LENGTH], 16)


def _find(service: Service, fields: Fields) -> FailureRecord:
    """Return the failure that a request names by its id or its seed. The seed of a shrunk case is a
    number that is made from the failure's id; see `wire_seed`. Raises RequestError: ``NotFound``.
    Raises UsageError: ``ambiguous-failure``."""
    wanted = fields.optional_name("failure_id")
    if wanted is not None:
        try:
            return service.failures.get(wanted)
        except UsageError as error:
            raise RequestError("NotFound", error.problems[0].message) from None
    seed = fields.u64("seed")
    named = service.failures.find(seed)
    if named:
        return only_failure(named, seed)
    if seed < 1 << (4 * ID_LENGTH):
        try:
            return service.failures.get(f"{seed:0{ID_LENGTH}x}")
        except UsageError:
            pass
    raise RequestError("NotFound", f"no failure has the seed {seed}")


def _as_result(record: FailureRecord) -> dict[str, Json]:
    case = record.case
    provenance = record.provenance or {}
    info = reproduction_info(case, record.shape, provenance.get("fuzz_config"))
    reply = validation_result(
        record.op,
        wire_seed(record),
        record.result,
        output_shapes={n: tuple(shape) for n, shape in provenance.get("output_shapes", {}).items()},
        repro_info=info,
        timestamp=_unix(record.time),
    )
    return {**reply, "failure_id": record.id, "cause": record.cause}


def _unix(text: str) -> int:
    try:
        parsed = datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ")
    except ValueError:
        return 0
    return int(parsed.replace(tzinfo=timezone.utc).timestamp())


# Requests for past validations: results, baselines, failures.


MAX_LIMIT = (1 << 63) - 1


def get_result(service: Service, fields: Fields, _job: Job) -> dict[str, Json]:
    seed = fields.u64("seed")
    stored = service.results.find(seed)
    if stored is None:
        raise RequestError("NotFound", f"no result has the seed {seed}")
    return {"type": "ValidationResult", "result": stored.result}


def list_results(service: Service, fields: Fields, _job: Job) -> dict[str, Json]:
    found = service.results.newest(fields.integer("limit", 0, MAX_LIMIT))
    return {"type": "Results", "results": [stored.result for stored in found]}


def store_baseline(service: Service, fields: Fields, _job: Job) -> dict[str, Json]:
    workspace = service.configured().workspace
    with service.baselines_lock:
        latest = service.results.latest().values()
        count = client_baselines.store_submitted(workspace, fields.name("tag"), latest)
    return {"type": "Ok", "results": count}


def compare_baseline(service: Service, fields: Fields, _job: Job) -> dict[str, Json]:
    tag = fields.name("tag")
    known = _submitted(service, tag)
    threshold = service.configured().workspace.config.policies.regression_threshold
    comparisons = []
    for (op, seed), stored in service.results.latest().items():
        passed, now = stored.judged.verdict is Verdict.PASSED, finite(stored.judged.max_abs)
        then = known.get((op, seed))
        before = None if then is None else finite(then.max_abs)
        change = None if before is None else _relative_change(before, now)
        worse = then is not None and (
            (then.passed and not passed) or (change is not None and change > threshold)
        )
        comparisons.append(
            {
                "op_name": op,
                "seed": seed,
                "current_max_diff": now,
                "baseline_max_diff": before,
                "current_passed": passed,
                "baseline_passed": None if then is None else then.passed,
                "relative_change": change,
                "is_regression": worse,
            }
        )
    return {
        "type": "BaselineComparison",
        "baseline_tag": tag,
        "comparisons": comparisons,
        "has_regressions": any(c["is_regression"] for c in comparisons),
    }


def _submitted(service: Service, tag: str) -> dict[tuple[str, int], SubmittedResult]:
    known = BaselineStore(service.cache)
    found = known.get(tag).submitted
    if found is None:
        tags = [baseline.tag for baseline in known.list() if baseline.submitted is not None]
        raise unknown_baseline(tag, tags)
    return {(result.op, result.seed): result for result in found}


def _relative_change(then: float, now: float) -> float | None:
    if then == 0:
        return 0.0 if now == 0 else None
    change = (now - then) / then
    return change if math.isfinite(change) else None


MAX_ITERATIONS = 1_000_000
MAX_CASE_BYTES = 1 << 31
VERSION = 1


class _Judged(Struct, frozen=True):
    """One judged case of a fuzz request."""

    case: Case
    result: CheckResult
    reply: dict[str, Json] | None


class _Run:
    """One fuzz request, whose cases a few threads share."""

    def __init__(
        self,
        service: Service,
        configured: Configured,
        maker: CaseMaker,
        job: Job,
        *,
        iterations: int,
        fail_fast: bool,
        deadline: float | None,
    ) -> None:
        self._service = service
        self._configured = configured
        self._maker = maker
        self._op = maker.op
        self._job = job
        self._fail_fast = fail_fast
        self._deadline = deadline
        self._lock = threading.Lock()
        self._next = 0
        self._end = iterations
        self._judged: dict[int, _Judged] = {}
        self._errors: list[BaseException] = []

    def run(self, threads: int) -> list[_Judged]:
        """Judge the cases, and return them in order; with fail-fast, up to the first failure."""
        workers = [
            threading.Thread(target=self._work, name=f"fuzz-{n}", daemon=True)
            for n in range(min(threads, max(1, self._end)))
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if self._errors:
            raise self._errors[0]
        self._job.check()
        return [self._judged[number] for number in sorted(self._judged) if number < self._end]

    def _work(self) -> None:
        try:
            while (number := self._take()) is not None:
                judged = self._judge(number)
                with self._lock:
                    self._judged[number] = judged
                    self._job.progress = (len(self._judged), self._end)
                    if self._fail_fast and judged.result.verdict in BAD:
                        self._end = min(self._end, number + 1)
        except BaseException as error:
            with self._lock:
                self._errors.append(error)
                self._end = 0

    def _take(self) -> int | None:
        self._job.check()
        late = self._deadline is not None and time.monotonic() >= self._deadline
        with self._lock:
            if late or self._next >= self._end:
                return None
            self._next += 1
            return self._next - 1

    def _judge(self, number: int) -> _Judged:
        begin = time.perf_counter()
        planned = case = self._maker.case(number)
        if case.nbytes > MAX_CASE_BYTES:
            raise invalid(f"case {number} takes over {MAX_CASE_BYTES} bytes of inputs")
        subject = self._configured.subjects.make(Query(self._op.name, case.dtype, {}), case)
        checks = checks_for(number)
        key = _key(subject, checks, case)
        result = known = read_verdict(self._service.cache.actions.get(key))
        if known is not None and known.verdict in BAD and not is_made(case):
            result = None  # a cached result lacks the inputs, which the record needs
        shapes: dict[str, Shape] = {}
        inputs: Mapping[str, NDArray[Any]] | None = None
        if result is None:
            with self._service.references.checkout(subject, self._job) as session:
                evaluated = session.judge(case, checks)
                case = evaluated.case
                result, inputs = evaluated.result, evaluated.inputs
                shapes = {name: array.shape for name, array in evaluated.actual.items()}
            self._job.check()
            # Only now does the key cover all files that the programs used. A result is not stored
            # if one of these files was edited meanwhile.
            if result.verdict is not Verdict.ERROR and subject.seen.hold():
                self._service.cache.actions.put(_key(subject, checks, planned), plain(result))
        if result.verdict not in BAD:
            return _Judged(case, result, None)
        return _Judged(case, result, self._failed(subject, case, result, inputs, shapes, begin))

    def _failed(
        self,
        subject: WireSubject,
        case: Case,
        result: CheckResult,
        inputs: Mapping[str, NDArray[Any]] | None,
        shapes: dict[str, Shape],
        begin: float,
    ) -> dict[str, Json]:
        config = self._maker.config.to_json()
        if inputs is None:
            inputs = materialise(case)
        failure = record_failure(
            self._service, subject, case, result, inputs, output_shapes=shapes, fuzz_config=config
        )
        reply = validation_result(
            self._op.name,
            case.seed,
            result,
            output_shapes=shapes,
            duration_s=time.perf_counter() - begin,
            repro_info=reproduction_info(case, self._maker.shape(case), config),
        )
        return {**reply, "failure_id": failure}


def fuzz_op(service: Service, fields: Fields, job: Job) -> dict[str, Json]:
    """Answer ``FuzzOp``: run an op on cases, and judge its outputs. An op that the daemon cannot
    run is refused. ``time_limit_s``, which the protocol does not have, ends the run early; the
    reply then covers the cases judged so far."""
    configured, op = service.op(fields.name("op_name"))
    maker = CaseMaker.of(service, op, fields)
    iterations = fields.integer("iterations", 0, MAX_ITERATIONS)
    fail_fast = fields.flag("fail_fast", default=False)
    limit = fields.integer("time_limit_s", 1, 86_400) if fields.has("time_limit_s") else None
    if op.op is None:
        # Comparing the reference with itself would always pass.
        raise invalid(
            f"{op.name} cannot be run by the daemon: {op.skip_reason}; run it in your own process "
            "with fuzz_op_client_side, or give it an op in gpuemu.toml"
        )
    run = _Run(
        service,
        configured,
        maker,
        job,
        iterations=iterations,
        fail_fast=fail_fast,
        deadline=None if limit is None else time.monotonic() + limit,
    )
    try:
        judged = run.run(service.fuzz_threads)
    except CancelledJobError:
        job.check()
        raise
    failures = [one.reply for one in judged if one.reply is not None]
    tally = Tally()
    for one in judged:
        tally.add(one.result)
    passed = tally.counts.get(Verdict.PASSED, 0)
    verdict, why = tally.verdict()
    return {
        "type": "FuzzResults",
        "seed": maker.config.seed,
        "total": len(judged),
        "passed": passed,
        "failed": len(failures),
        "inconclusive": len(judged) - passed - len(failures),
        "verdict": verdict.value,
        "reason": why,
        "unjudged": tally.unjudged,
        "failures": failures,
    }


def _key(subject: WireSubject, checks: Checks, case: Case) -> str:
    return digest_json(
        ["wire-fuzz", VERSION, subject.judged_by, msgspec.to_builtins(checks), case.identity()]
    )
