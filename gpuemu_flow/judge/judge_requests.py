"""Requests to the judge in the reference's worker, as work that a supervisor can retry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct, field
from msgspec.structs import asdict, replace
from numpy.typing import NDArray

from gpuemu_flow.cases.generate import materialise
from gpuemu_flow.judge.subject import PLAIN, CompareParams
from gpuemu_flow.judge.verdicts import StoredCase, input_error, run_error_result, with_violations
from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.types import Case, CheckResult, Failure, FailureKind, Json, failure_from_json
from gpuemu_flow.numerics.operand import Rounding
from gpuemu_flow.numerics.single import Single
from gpuemu_flow.workers.api import OpError, Outcome, RunError, Slot
from gpuemu_flow.workers.arena import Arena, changed_inputs
from gpuemu_flow.workers.attempt import MALFORMED, Attempt, WorkerClient
from gpuemu_flow.workers.tensors import as_plain_array, demand_bools

Arrays = Mapping[str, NDArray[Any]]

SERVICE = "gpuemu_flow.judge.judge_service:JudgeService"
EVALUATIONS = 36  # most evaluations of the reference for one case


class Setup(Struct):
    """Settings with which a worker's `judge_service.JudgeService` is made."""

    dtype: str
    widens: bool
    compare: CompareParams
    samples: list[dict[str, Json]]
    probes: bool = True
    facts: dict[str, Json] = field(default_factory=lambda: {"traits": None, "allowed": None})

    def to_json(self) -> dict[str, Json]:
        """Return the settings as plain JSON."""
        return {**asdict(self), "compare": self.compare.to_json()}


class _Current(Struct):
    """The cases that a judge service has prepared last, and the memory that it shares with
    the op.
    """

    peer: Arena | None = None
    about: PreparedBatch | None = None
    gave: bool = False


class PreparedBatch(Struct, eq=False):
    """The cases of a request to the judge service, and the positions of their tensors."""

    cases: Sequence[Case]
    arrays: Arrays | None = None
    peer: Arena | None = None
    give: bool = False
    bring: bool = False
    known: Sequence[str | None] = ()
    stage: Sequence[str] = ()
    widens: bool = True
    slots: list[dict[str, Slot]] = field(default_factory=list)
    brought: list[Arrays] = field(default_factory=list)

    @property
    def index(self) -> int:
        """Return the index of the first case, under which outcomes of the request are reported."""
        return self.cases[0].index


def post(
    worker_client: WorkerClient,
    message: dict[str, Json],
    setup: Setup,
    arrays: Arrays,
    fds: Sequence[int] = (),
    *,
    cases: int = 1,
    made: int = 0,
) -> Attempt | None:
    """Send a request about cases to a worker; return an attempt only if sending fails.

    A worker's first request also carries the settings of its service. The worker makes inputs of up
    to `made` bytes for each case.
    """
    if worker_client.cases == 0:
        message.update(target=SERVICE, setup=setup.to_json())
    return worker_client.post(
        {"type": "serve", **message},
        message["index"],
        checks=PLAIN,
        arrays=arrays,
        fds=fds,
        calls=EVALUATIONS * cases,
        idle=message["method"] in ("prepare", "given", "stored"),
        made=made,
    )


def _slots(data: Mapping[str, Json]) -> dict[str, Slot]:
    return convert(data, dict[str, Slot])


class Evaluation:
    """A request for the outputs of the reference, or of its float32 shadow, on given inputs."""

    def __init__(
        self, setup: Setup, inputs: Arrays, *, shadow: bool, rounding: Rounding | None = None
    ) -> None:
        self.outputs: dict[str, NDArray[Any]] = {}
        self._setup = setup
        self._inputs = inputs
        self._shadow = shadow
        self._rounding = None if rounding is None else msgspec.to_builtins(rounding)

    def begin(self, worker_client: WorkerClient) -> Attempt | None:
        """Send the request to the worker; see `Work.begin`."""
        message = {
            "method": "evaluate",
            "index": 0,
            "shadow": self._shadow,
            "single": any(isinstance(array, Single) for array in self._inputs.values()),
            "rounding": self._rounding,
        }
        return post(worker_client, message, self._setup, self._inputs)

    def finish(self, worker_client: WorkerClient) -> Attempt:
        """Wait for the outcome; see `Work.finish`."""
        attempt, answer = worker_client.collect(0)
        if attempt.outcome.ok:
            try:
                self.outputs = worker_client.shared().read(_slots(answer["result"]))
            except MALFORMED:
                return worker_client.broken(0)
        return attempt


class JudgeRequest:
    """A request about cases, which prepares the service for them first if needed."""

    def __init__(self, setup: Setup, about: PreparedBatch, *, method: str = "judge") -> None:
        self.about = about
        self.method = method
        self.bring = True
        self.explain = True
        self.watch = False
        self.actual: Arrays = {}
        self.places: Sequence[Mapping[str, Slot]] | None = None
        self.results: list[CheckResult | None] = []
        self.changed: list[tuple[Failure, ...]] = []
        self.facts: dict[str, Json] = {}
        self.staged: list[str] = []
        self.answer: Mapping[str, Json] = {}
        self.outputs: dict[str, NDArray[Any]] = {}
        self._setup = setup
        self._begun_in: WorkerClient | None = None
        self._waiting = False
        self._failed: Attempt | None = None

    def begin(self, worker_client: WorkerClient) -> Attempt | None:
        """Ask the service to prepare the cases, unless it did already; see `Work.begin`."""
        self._begun_in = worker_client
        self._waiting = False
        self._failed = None
        current, about = _current(worker_client), self.about
        if current.about is about:
            return None
        has_peer = about.peer is not None and about.peer.fd >= 0
        none = [None] * len(about.cases)
        message = {
            "method": "prepare",
            "index": about.index,
            "cases": [case.to_json() for case in about.cases],
            "by_seed": about.arrays is None,
            "give": about.give and has_peer,
            "bring": about.bring,
            "known": list(about.known) or none,
            "stage": list(about.stage) or none,
            "widens": about.widens,
        }
        fds = []
        if about.peer is not None and has_peer and about.peer is not current.peer:
            fds.append(about.peer.fd)
            current.peer = about.peer
        made = max(case.nbytes for case in about.cases)
        failed = post(worker_client, message, self._setup, about.arrays or {}, fds, made=made)
        if failed is None:
            current.about, current.gave = about, about.give and has_peer
            self._waiting = True
        return failed

    def wait_prepared(self) -> None:
        """Wait until the service has prepared the cases; `finish` reports a failure."""
        worker_client = self._begun_in
        if not self._waiting or worker_client is None:
            return
        self._waiting = False
        attempt, answer = worker_client.collect(self.about.index)
        if not attempt.outcome.ok:
            _current(worker_client).about = None
            self._failed = attempt
            return
        try:
            slots = [_slots(slots) for slots in answer["result"] or ()]
            if self.about.bring:
                self.about.brought = [worker_client.shared().read(some) for some in slots]
            elif _current(worker_client).gave:  # else an earlier process has written them
                self.about.slots = slots
        except MALFORMED:
            self._failed = worker_client.broken(self.about.index)

    def finish(self, worker_client: WorkerClient) -> Attempt:
        """Send the actual request, and store its answer; see `Work.finish`."""
        self.wait_prepared()
        if self._failed is not None:
            return self._failed
        current = _current(worker_client)
        places = self.places if current.peer is self.about.peer else None
        if places is None and len(self.about.cases) > 1:  # the outputs are not in shared memory
            return Attempt(Outcome(self.about.index, ok=True))
        message = {
            "method": self.method,
            "index": self.about.index,
            "bring": self.bring,
            "explain": self.explain,
            "watch": self.watch and places is not None and current.gave,
            "places": None if places is None else [msgspec.to_builtins(place) for place in places],
        }
        arrays = self.actual if places is None and self.method == "judge" else {}
        failed = post(worker_client, message, self._setup, arrays)
        if failed is not None:
            return failed
        attempt, answer = worker_client.collect(self.about.index)
        if attempt.outcome.ok:
            try:
                self._take(answer["result"], worker_client)
                if self.method == "judge" and not current.gave:
                    self.changed = self.find_changes()
            except MALFORMED:
                return worker_client.broken(self.about.index)
        return attempt

    def find_changes(self) -> list[tuple[Failure, ...]]:
        """Compare inputs in the op's memory with newly made ones, and return the differences.

        Each case has a tuple with one failure per changed input. The list is empty if `watch` is
        False, or if the outputs are not in memory shared with the op.
        """
        about = self.about
        if not self.watch or self.places is None or about.peer is None:
            return []
        return [
            tuple(changed_inputs(materialise(case), about.peer.views(slots)))
            for case, slots in zip(about.cases, about.slots, strict=False)
        ]

    def _take(self, answer: Mapping[str, Json], worker_client: WorkerClient) -> None:
        if self.method == "judge":
            self.facts = {key: answer["facts"][key] for key in self._setup.facts}
            self.staged = [str(digest) for digest in answer["staged"]]
            self.results = [
                None if result is None else CheckResult.from_json(result)
                for result in answer["results"]
            ]
            self.changed = [
                tuple(failure_from_json(failure) for failure in found)
                for found in answer["changed"]
            ]
        elif self.bring:
            self.outputs = worker_client.shared().read(_slots(answer["slots"]))
        self.answer = answer


def _current(worker_client: WorkerClient) -> _Current:
    if not isinstance(worker_client.current, _Current):
        worker_client.current = _Current()
    return worker_client.current


def forget_prepared(worker_client: WorkerClient) -> None:
    """Record that the service is no longer prepared for the cases of the last `JudgeRequest`."""
    _current(worker_client).about = None


class GivenCase(Struct, frozen=True):
    """A case whose inputs and outputs are given."""

    case: Case
    inputs: Arrays
    outputs: Arrays
    violations: Sequence[Failure] = ()

    def form(self) -> tuple[object, ...]:
        """Return a key that is equal for cases whose tensors can be stacked."""
        return tuple(
            [
                (kind, name, array.shape, array.dtype)
                for kind, arrays in (("inputs", self.inputs), ("outputs", self.outputs))
                for name, array in arrays.items()
            ]
        )

    @property
    def in_order(self) -> bool:
        """Tell whether all tensors are in C order, so that stacking keeps their layout."""
        arrays = (*self.inputs.values(), *self.outputs.values())
        return all(array.flags.c_contiguous for array in arrays)


class GivenBatch:
    """A group of given cases, some of which are judged together by one request."""

    def __init__(self, setup: Setup, given: Sequence[GivenCase]) -> None:
        self.given = given
        self.results: list[CheckResult | None] = [None] * len(given)
        self.refused: dict[int, RunError] = {}
        self.plain: dict[int, GivenCase] = {}
        for number, one in enumerate(given):
            error = input_error(one.case)
            if error is not None:
                self.results[number] = run_error_result(FailureKind.GENERATOR, error)
                continue
            try:
                self.plain[number] = plain = _as_plain(one)
                demand_bools(plain.outputs)
            except OpError as refused:
                self.refused[number] = refused.error
                self.plain.pop(number, None)
        self.together = [number for number, one in self.plain.items() if one.in_order]
        cases = [self.plain[number] for number in self.together]
        self.request = GivenRequest(setup, cases) if cases else None
        self.attempt: Attempt | None = None

    @property
    def is_answered(self) -> bool:
        """Tell whether the reference's worker has answered the request."""
        return self.attempt is not None and self.attempt.outcome.ok

    @property
    def has_all(self) -> bool:
        """Tell whether the worker's answer, which is not read yet, has a result for every case."""
        together = len(self.together) == len(self.given)
        request = self.request
        return request is not None and together and self.is_answered and request.has_all

    def read(self) -> dict[str, Json]:
        """Set `results` from the worker's answer, and return the answer's facts; see `Setup`.

        Reading takes a while; the worker can process the next request meanwhile.

        Raises Exception: One of `MALFORMED`; no result is set.
        """
        assert self.request is not None  # noqa: S101 - it was answered
        found = self.request.results()
        for number, result in zip(self.together, found, strict=True):
            if result is not None:
                self.results[number] = with_violations(result, self.given[number].violations)
        return self.request.facts


def _as_plain(one: GivenCase) -> GivenCase:
    """Return a case with its outputs as plain arrays in C order; raise OpError if impossible."""
    outputs = {
        name: np.asarray(as_plain_array(array, name), order="C")
        for name, array in one.outputs.items()
    }
    return replace(one, outputs=outputs)


class StoredRequest:
    """A request to judge outputs of op and reference in blob files; see `workers.work.Work`."""

    def __init__(
        self, setup: Setup, stored: Sequence[StoredCase], locate: Callable[[str], Path]
    ) -> None:
        self.results: list[CheckResult] = []
        self.facts: dict[str, Json] = {}
        self._setup = setup
        self._cases = [one.case for one in stored]
        self._files = [
            [str(locate(record["blob"])) for record in (one.op, one.reference)] for one in stored
        ]

    def begin(self, worker_client: WorkerClient) -> Attempt | None:
        """Send all cases to the worker; see `Work.begin`."""
        forget_prepared(worker_client)
        message = {
            "method": "stored",
            "index": self._cases[0].index,
            "cases": [case.to_json() for case in self._cases],
            "files": self._files,
        }
        made = max(case.nbytes for case in self._cases)
        return post(worker_client, message, self._setup, {}, cases=len(self._cases), made=made)

    def finish(self, worker_client: WorkerClient) -> Attempt:
        """Wait for the verdicts; see `Work.finish`."""
        index = self._cases[0].index
        attempt, answer = worker_client.collect(index)
        if attempt.outcome.ok:
            try:
                found, facts = answer["result"]["results"], answer["result"]["facts"]
                self.facts = {key: facts[key] for key in self._setup.facts}
                self.results = [
                    CheckResult.from_json(result)
                    for _, result in zip(self._cases, found, strict=True)
                ]
            except MALFORMED:
                return worker_client.broken(index)
        return attempt


class GivenRequest:
    """A request, sent in one message, to judge given outputs; see `workers.work.Work`."""

    def __init__(self, setup: Setup, given: Sequence[GivenCase]) -> None:
        self._found: list[tuple[list[int], list[Json]]] = []
        self.facts: dict[str, Json] = {}
        self._setup = setup
        self._given = given
        self._index = given[0].case.index
        forms: dict[tuple[object, ...], list[int]] = {}
        for number, one in enumerate(given):
            forms.setdefault(one.form(), []).append(number)
        self._groups = list(forms.values())
        self._arrays: dict[str, NDArray[Any]] = {}
        self._message = [self._group(numbers, self._arrays) for numbers in self._groups]

    def begin(self, worker_client: WorkerClient) -> Attempt | None:
        """Send all cases to the worker; see `Work.begin`."""
        forget_prepared(worker_client)
        message = {"method": "given", "index": self._index, "groups": self._message}
        return post(worker_client, message, self._setup, self._arrays, cases=len(self._given))

    def _group(self, numbers: Sequence[int], arrays: dict[str, NDArray[Any]]) -> dict[str, Json]:
        """Stack the tensors of cases with equal shapes, since each tensor in a message
        costs time.
        """
        some = [self._given[number] for number in numbers]

        def stacked(of: Sequence[Arrays]) -> dict[str, str]:
            places = {}
            for name in of[0]:
                place = places[name] = str(len(arrays))
                first = of[0][name]
                arrays[place] = (
                    first[np.newaxis] if len(of) == 1 else np.stack([one[name] for one in of])
                )
            return places

        return {
            "cases": [one.case.to_json() for one in some],
            "inputs": stacked([one.inputs for one in some]),
            "outputs": stacked([one.outputs for one in some]),
        }

    def finish(self, worker_client: WorkerClient) -> Attempt:
        """Wait for the worker's answer, and store it unread; see `Work.finish`."""
        attempt, answer = worker_client.collect(self._index)
        if attempt.outcome.ok:
            try:
                self._take(answer["result"])
            except MALFORMED:
                return worker_client.broken(self._index)
        return attempt

    def _take(self, answer: Mapping[str, Json]) -> None:
        self.facts = {key: answer["facts"][key] for key in self._setup.facts}
        self._found = [
            (numbers, [result for _, result in zip(numbers, found, strict=True)])
            for numbers, found in zip(self._groups, answer["groups"], strict=True)
        ]

    @property
    def has_all(self) -> bool:
        """Tell whether the answer that `finish` stored has a result for every case."""
        return all(result is not None for _, found in self._found for result in found)

    def results(self) -> list[CheckResult | None]:
        """Return the results in the answer that `finish` stored.

        Raises Exception: One of `MALFORMED`, if the answer does not consist of results.
        """
        results: list[CheckResult | None] = [None] * len(self._given)
        for numbers, found in self._found:
            for number, result in zip(numbers, found, strict=True):
                results[number] = None if result is None else CheckResult.from_json(result)
        return results
