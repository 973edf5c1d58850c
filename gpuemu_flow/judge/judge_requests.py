"""Requests to the judge in the reference's worker, as work that a supervisor can retry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace
from numpy.typing import NDArray

from gpuemu_flow.cases.generate import materialise
from gpuemu_flow.judge.protocol import (
    Ask,
    EvaluateReference,
    Expected,
    GiveExpected,
    Judged,
    JudgePrepared,
    JudgeThere,
    Prepare,
    Setup,
    Slots,
)
from gpuemu_flow.judge.subject import PLAIN
from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.types import Case, Failure
from gpuemu_flow.numerics.operand import Rounding
from gpuemu_flow.numerics.single import Single
from gpuemu_flow.workers.api import Outcome, Slot
from gpuemu_flow.workers.arena import Arena, changed_inputs
from gpuemu_flow.workers.attempt import MALFORMED, Attempt, WorkerClient

Arrays = Mapping[str, NDArray[Any]]

SERVICE = "gpuemu_flow.judge.judge_service:JudgeService"
EVALUATIONS = 36  # most evaluations of the reference for one case


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
    widens: bool = True
    slots: list[dict[str, Slot]] = field(default_factory=list)

    @property
    def index(self) -> int:
        """Return the index of the first case, under which outcomes of the request are reported."""
        return self.cases[0].index


def _post(
    worker_client: WorkerClient,
    ask: Ask,
    setup: Setup,
    arrays: Arrays,
    *,
    index: int = 0,
    fds: Sequence[int] = (),
    cases: Sequence[Case] = (),
) -> Attempt | None:
    """Send a request to a worker; return an attempt only if sending fails.

    The first request of a session also carries the settings of the worker's service. The worker
    makes, or works on, the inputs of the `cases` that the request holds.
    """
    message = {"type": "serve", "index": index, **to_builtins(ask)}
    if worker_client.setup is not setup:
        worker_client.setup = setup
        message.update(target=SERVICE, setup=to_builtins(setup))
    there = isinstance(ask, JudgeThere)
    return worker_client.post(
        message,
        index,
        checks=PLAIN,
        arrays=arrays,
        fds=fds,
        calls=EVALUATIONS * (len(cases) if there else 1),
        idle=there or isinstance(ask, Prepare),
        made=0 if there else max((case.nbytes for case in cases), default=0),
    )


class Evaluation:
    """A request for the outputs of the reference, or of its float32 shadow, on given inputs."""

    def __init__(
        self, setup: Setup, inputs: Arrays, *, shadow: bool, rounding: Rounding | None = None
    ) -> None:
        self.outputs: dict[str, NDArray[Any]] = {}
        self._setup = setup
        self._inputs = inputs
        is_single = any(isinstance(array, Single) for array in inputs.values())
        self._ask = EvaluateReference(shadow=shadow, single=is_single, rounding=rounding)

    def begin(self, worker_client: WorkerClient) -> Attempt | None:
        """Send the request to the worker; see `Work.begin`."""
        return _post(worker_client, self._ask, self._setup, self._inputs)

    def finish(self, worker_client: WorkerClient) -> Attempt:
        """Wait for the outcome; see `Work.finish`."""
        attempt, answer = worker_client.collect(0)
        if attempt.outcome.ok:
            try:
                self.outputs = worker_client.shared().read(convert(answer["result"], Slots))
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
        self.submitted = False
        self.actual: Arrays = {}
        self.places: Sequence[Slots] | None = None
        self.judged = Judged()
        self.expected = Expected()
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
        ask = Prepare(
            cases=tuple(about.cases),
            by_seed=about.arrays is None,
            give=about.give and has_peer,
            widens=about.widens,
        )
        fds = []
        if about.peer is not None and has_peer and about.peer is not current.peer:
            fds.append(about.peer.fd)
            current.peer = about.peer
        arrays = about.arrays or {}
        failed = _post(
            worker_client, ask, self._setup, arrays, index=about.index, fds=fds, cases=about.cases
        )
        if failed is None:
            current.about, current.gave = about, ask.give
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
            slots = convert(answer["result"] or (), list[Slots])
            if _current(worker_client).gave:  # else an earlier process has written them
                self.about.slots = slots
        except MALFORMED:
            self._failed = worker_client.broken(self.about.index)

    def finish(self, worker_client: WorkerClient) -> Attempt:
        """Send the actual request, and store its answer; see `Work.finish`."""
        self.wait_prepared()
        if self._failed is not None:
            return self._failed
        current, index = _current(worker_client), self.about.index
        places = self.places if current.peer is self.about.peer else None
        if places is None and len(self.about.cases) > 1:  # the outputs are not in shared memory
            return Attempt(Outcome(index, ok=True))
        ask: Ask = GiveExpected(bring=self.bring)
        if self.method == "judge":
            ask = JudgePrepared(
                places=places,
                explain=self.explain,
                watch=self.watch and places is not None and current.gave,
                submitted=self.submitted,
            )
        arrays = self.actual if places is None and self.method == "judge" else {}
        failed = _post(worker_client, ask, self._setup, arrays, index=index)
        if failed is not None:
            return failed
        attempt, answer = worker_client.collect(index)
        if not attempt.outcome.ok:
            return attempt
        try:
            if self.method == "judge":
                self.judged = convert(answer["result"], Judged)
                if not current.gave:
                    self.judged = replace(self.judged, changed=self.find_changes())
            else:
                self.expected = convert(answer["result"], Expected)
                if self.bring:
                    self.outputs = worker_client.shared().read(self.expected.slots)
        except MALFORMED:
            return worker_client.broken(index)
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


def _current(worker_client: WorkerClient) -> _Current:
    if not isinstance(worker_client.current, _Current):
        worker_client.current = _Current()
    return worker_client.current


class GivenCase(Struct, frozen=True):
    """A case whose inputs and outputs are given.

    With `expected`, the reference's outputs, the inputs are values that are not laid out yet.
    """

    case: Case
    inputs: Arrays
    outputs: Arrays
    violations: Sequence[Failure] = ()
    expected: Arrays | None = None


class ThereRequest:
    """A request, in one message, to judge cases whose outputs are there; see `JudgeThere`."""

    def __init__(self, setup: Setup, given: Sequence[GivenCase]) -> None:
        self.judged = Judged()
        self._setup = setup
        self._cases = [one.case for one in given]
        self._arrays: dict[str, NDArray[Any]] = {}
        self._ask = JudgeThere(
            cases=tuple(self._cases),
            inputs=[self._keys(one.inputs) for one in given],
            outputs=[self._keys(one.outputs) for one in given],
            expected=[self._keys(one.expected) for one in given if one.expected is not None],
        )

    def _keys(self, arrays: Arrays) -> dict[str, str]:
        """Add tensors to those of the message, and return the keys by which it names them."""
        keys = {name: str(len(self._arrays) + n) for n, name in enumerate(arrays)}
        self._arrays.update({keys[name]: array for name, array in arrays.items()})
        return keys

    def begin(self, worker_client: WorkerClient) -> Attempt | None:
        """Send all cases to the worker; see `Work.begin`."""
        _current(worker_client).about = None  # it forgets what it prepared
        index = self._cases[0].index
        return _post(
            worker_client, self._ask, self._setup, self._arrays, index=index, cases=self._cases
        )

    def finish(self, worker_client: WorkerClient) -> Attempt:
        """Wait for the verdicts; see `Work.finish`."""
        index = self._cases[0].index
        attempt, answer = worker_client.collect(index)
        if attempt.outcome.ok:
            try:
                self.judged = convert(answer["result"], Judged)
                if len(self.judged.results) != len(self._cases):
                    raise ValueError("other verdicts than were asked for")
            except MALFORMED:
                return worker_client.broken(index)
        return attempt
