"""FuzzOp: make cases, run and judge them; a client's retry reuses stored verdicts."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct
from numpy.typing import NDArray

from gpuemu_flow.cases.generate import materialise
from gpuemu_flow.cases.generated_values import is_made
from gpuemu_flow.fuzz.case_queue import checks_for
from gpuemu_flow.fuzz.wire_ops import Query, WireSubject
from gpuemu_flow.judge.known import read_verdict
from gpuemu_flow.model.types import BAD, Case, CheckResult, Json, Shape, Verdict
from gpuemu_flow.model.verdicts import Tally
from gpuemu_flow.services.daemon.fields import Fields, invalid
from gpuemu_flow.services.daemon.issuing import CaseMaker
from gpuemu_flow.services.daemon.jobs import CancelledJobError, Job
from gpuemu_flow.services.daemon.replies import reproduction_info, validation_result
from gpuemu_flow.services.daemon.service import Configured, Service
from gpuemu_flow.services.daemon.validating import record_failure
from gpuemu_flow.store.keys import digest_json
from gpuemu_flow.workers.api import Checks

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
                self._service.cache.actions.put(_key(subject, checks, planned), result.to_json())
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
    """Answer ``FuzzOp``: run an op on cases, and judge its outputs.

    An op that the daemon cannot run is refused. ``time_limit_s``, which the protocol does not have,
    ends the run early; the reply then covers the cases judged so far.
    """
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
