"""Run cases with checks: make several calls of each, and compare them in another process.

The inputs are in memory that a worker shares with the coordinator. The coordinator keeps copies
that the worker cannot reach. From the shared memory and the outputs, it detects changes to the
inputs and to the memory around them, differences between identical calls, and elements that nobody
wrote. For these checks, it trusts no statement of the op's process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gpuemu_flow.cases.generate import decoy_values, make_inputs
from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.types import Case, Failure, FailureKind, Json, Observation
from gpuemu_flow.numerics.contract import Mask
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, dtype_name, to_float64
from gpuemu_flow.numerics.layouts import FIRST_FILL
from gpuemu_flow.workers import limits
from gpuemu_flow.workers.api import (
    EMULATED,
    MOST_PRINTED,
    Checks,
    OpError,
    Outcome,
    OutputInfo,
    Program,
    Request,
    RunError,
    Slot,
    end_of,
)
from gpuemu_flow.workers.arena import Arena, InputBuffers, same_bytes
from gpuemu_flow.workers.attempt import MALFORMED, Attempt, WorkerClient, hinted, read_slots
from gpuemu_flow.workers.sightings import Sightings
from gpuemu_flow.workers.supervise import Supervisor, Work
from gpuemu_flow.workers.tensors import demand_bools, element_type

# Make decoy calls, which expose an op that remembers results or counts its calls.


_KEPT = 64  # elements at each end, at most
_ONE_IN = 8


def resemble(decoy: Arrays, judged: Arrays, case: Case) -> None:
    """Copy the first and last elements of the judged inputs into the decoy, in half of the cases.

    An op that looks up stored results by a digest of those elements then returns the decoy's result
    for the judged inputs. In the other cases, all elements of the decoy differ, so that a stored
    result is wrong everywhere. Inputs whose elements depend on each other, such as offsets, are
    left as they are.
    """
    if case.seed % 2 == 0:
        return
    whole = {spec.name for spec in case.inputs if spec.rule and spec.rule.concerns_whole}
    whole |= {spec.rule.other for spec in case.inputs if spec.rule and spec.rule.relation}
    for name, array in decoy.items():
        if name in whole:
            continue
        kept = min(_KEPT, array.size // 3)
        if kept and array.flags.writeable:
            array.flat[:kept] = judged[name].flat[:kept]
            array.flat[-kept:] = judged[name].flat[-kept:]


def comes_again(seed: int, earlier_cases: int) -> bool:
    """Tell whether the decoy call is repeated after the judged calls.

    This is done for the first case of a process, since no other check covers a process's first
    call. It is also done for some other cases, chosen by seed so that an op cannot predict them by
    counting its calls.
    """
    return earlier_cases == 0 or seed % _ONE_IN == 0


def told(failures: Sequence[Failure]) -> list[Failure]:
    """Return the failures, each with a note that it was found in the decoy calls."""
    place = "in the call before the judged one and in one after it, on other inputs: "
    return [replace(failure, message=place + failure.message) for failure in failures]


_REPEAT_SEED = 0x5DEECE66D
_ALIGNMENT = 64

Arrays = Mapping[str, np.ndarray]
Draw = Callable[[Case], Arrays]


def watches(checks: Checks) -> bool:
    """Tell whether any check needs more than the outputs of one call."""
    return checks.inputs_unchanged or checks.guards or checks.decoy or checks.repeat


class SharedInputs(Struct, frozen=True):
    """Inputs that are already in a worker's shared memory; `again` makes them for another one."""

    arena: Arena
    slots: Mapping[str, Slot]
    again: Callable[[], Arrays]


class CheckedInputs(Struct, frozen=True):
    """The inputs of one case: those of `case`, unless there are `values` or `shared` ones."""

    index: int
    seed: int
    case: Case | None = None
    values: Arrays | None = None
    input_dtype: str | None = None
    shared: SharedInputs | None = None

    @property
    def float_dtype(self) -> str:
        """Return the dtype that the float inputs have in a call."""
        return self.input_dtype or ("" if self.case is None else self.case.dtype)

    def given(self) -> Arrays | None:
        """Return the values; None if they are to be drawn from the case."""
        return self.values if self.shared is None else self.shared.again()

    def judged(self, *, guards: bool) -> dict[str, np.ndarray]:
        """Make the inputs of the call that is judged."""
        if self.case is not None:
            return make_inputs(self.case, self.input_dtype, guards=guards, values=self.given())
        return dict(self.given() or {})

    def decoy(self, judged: Arrays, *, guards: bool) -> dict[str, np.ndarray]:
        """Make the inputs of the decoy call, which precedes the judged call."""
        assert self.case is not None  # noqa: S101 - else there are no decoys
        values = decoy_values(self.case, judged)
        made = make_inputs(self.case, self.input_dtype, guards=guards, values=values)
        resemble(made, judged, self.case)
        return made


def _compared(program: Program, inputs: Arrays, first: Arrays, second: Arrays) -> list[Failure]:
    """Report differences between the outputs of two identical calls.

    In an output for which the program declares a mask, only the elements that the mask selects are
    compared.
    """
    counting = {}
    for name, mask in program.masks.items():
        from gpuemu_flow.numerics.contract_views import mask_of  # noqa: PLC0415 - few have masks

        if name in first and mask["input"] in inputs:
            test = Mask(**{**mask, "axes": tuple(mask["axes"])})
            counting[name] = mask_of(test, inputs, first[name].shape)
    return compare_calls(first, second, deterministic=program.deterministic, counting=counting)


def inputs_of(request: Request, draw: Draw | None) -> CheckedInputs:
    """Return the inputs that a request describes."""
    case = request.case
    values = None if draw is None else draw(case)
    return CheckedInputs(case.index, case.seed, case, values, request.input_dtype)


# Run cases in one exchange.


class _LaidCase(Struct):
    """A case whose calls are all prepared in a worker's shared memory.

    The worker copies whole ranges of this memory: `image`, what the judged call gets, to the
    memory of the inputs before a call, and what the judged call left there to `left` after it.
    """

    inputs: CheckedInputs
    buffers: InputBuffers
    slots: Mapping[str, Slot]
    start: int
    size: int
    decoy: dict[str, np.ndarray] | None = None
    again: bool = False

    @property
    def image(self) -> int:
        return -(-(self.start + self.size) // _ALIGNMENT) * _ALIGNMENT

    @property
    def left(self) -> int:
        return self.image + self.size

    @property
    def other_image(self) -> int:
        """Return where the decoy's inputs lie, if its call is repeated."""
        return self.left + self.size

    @property
    def end(self) -> int:
        return self.other_image + (self.size if self.again else 0)

    def calls(self, *, repeat: bool) -> list[dict[str, Json]]:
        """Return the calls of the case, as a message describes them."""
        seed, other = self.inputs.seed, self.inputs.seed ^ _REPEAT_SEED
        fill = FIRST_FILL if repeat or self.decoy is not None else limits.NO_FILL
        fresh = [self.start, self.image, self.size]
        left = [self.left, self.start, self.size]
        calls: list[dict[str, Json]] = []
        if self.decoy is not None:
            calls.append({"seed": seed, "fill": fill, "may_fail": True})
        fill = FIRST_FILL if repeat else limits.NO_FILL
        calls.append({"seed": seed, "fill": fill, "before": fresh, "after": left})
        if repeat:
            calls.append({"seed": other, "fill": SECOND_FILL, "before": fresh})
        if self.again:
            fresh = [self.start, self.other_image, self.size]
            calls.append({"seed": other, "fill": SECOND_FILL, "before": fresh, "may_fail": True})
        return calls


class CheckedCases:
    """Runs cases with their checks, in one exchange with a worker.

    Of several cases, `done` has the outcomes and outputs of the first ones, up to one that has to
    be run alone: it raised, or the process ended. `hung` is the number of the case that took too
    long, and its outcome. A worker that was started for several cases is asked nothing.

    Outputs are copied, since a thread that the program left running could change them. Without
    `copies` and checks, they are views of `arena`, at `slots`, and valid until the next exchange.
    """

    def __init__(
        self, inputs: Sequence[CheckedInputs], checks: Checks, *, copies: bool = True
    ) -> None:
        self.arena: Arena | None = None
        self.slots: dict[str, Slot] = {}
        self._copies = copies or watches(checks)
        self.done: list[tuple[Outcome, Arrays]] = []
        self.hung: tuple[int, Outcome] | None = None
        self._inputs = inputs
        self._checks = checks
        self._laid: list[_LaidCase] = []
        self._counts: list[int] = []

    def begin(self, worker_client: WorkerClient) -> Attempt | None:
        """Send the calls of all cases; see `Work.begin`."""
        first = self._inputs[0]
        if worker_client.cases == 0 and len(self._inputs) > 1:
            return Attempt(Outcome(first.index, ok=True))
        self._client = worker_client
        self.done, self._laid, self._counts = [], [], []
        items: list[dict[str, Json]] = []
        position = 0
        for inputs in self._inputs:
            if watches(self._checks):
                laid = self._lay(inputs, position)
                slots, position = laid.slots, laid.end
                calls = laid.calls(repeat=self._checks.repeat)
                self._laid.append(laid)
            else:
                slots = self._placed(inputs, position)
                position = max(position, end_of(slots))
                calls = [{"seed": inputs.seed}]
            self._counts.append(len(calls))
            place = msgspec.to_builtins(slots)
            items.append({"slots": place, "float": inputs.float_dtype, "calls": calls})
        message: dict[str, Json] = {"type": "calls", "items": items, "reserved": position}
        return worker_client.post(
            message, first.index, checks=self._checks, slots={}, calls=sum(self._counts)
        )

    def _placed(self, inputs: CheckedInputs, position: int) -> Mapping[str, Slot]:
        """Write inputs to the shared memory, unless they are there."""
        arena, shared = self._client.shared(), inputs.shared
        if shared is not None and shared.arena is arena:
            return shared.slots
        return arena.write(inputs.judged(guards=False), start=position, keep_layout=True)

    def _lay(self, inputs: CheckedInputs, position: int) -> _LaidCase:
        """Write what a case's calls get to the shared memory."""
        checks, arena = self._checks, self._client.shared()
        judged = inputs.judged(guards=checks.guards)
        slots, memories, end = arena.lay(judged, position)
        buffers = InputBuffers(arena.views(slots), memories)
        buffers.remember()
        laid = _LaidCase(inputs, buffers, slots, position, end - position)
        arena.move(laid.image, position, laid.size)
        if checks.decoy and inputs.case is not None and _keeps_state(self._client.program):
            decoy = inputs.decoy(judged, guards=checks.guards)
            if buffers.overwrite(decoy):
                laid.decoy = decoy
                laid.again = checks.repeat and comes_again(inputs.seed, self._client.cases)
                if laid.again:
                    arena.move(laid.other_image, position, laid.size)
        return laid

    def finish(self, worker_client: WorkerClient) -> Attempt:
        """Wait for the outputs, and compare; see `Work.finish`."""
        index = self._inputs[0].index
        attempt, answer = worker_client.collect(index)
        if attempt.timed_out:
            self.hung = self._where_it_hangs(attempt.outcome)
        if not attempt.outcome.ok:
            return attempt
        try:
            calls, error = read_calls(answer), convert(answer["error"], RunError | None)
            for number, count in enumerate(self._counts):
                if len(calls) < count:
                    break
                self.done.append(self._judged(number, calls[:count]))
                del calls[:count]
        except (*MALFORMED, OpError):
            self.done = []
            return worker_client.broken(index)
        if len(self._inputs) > 1:
            return attempt
        if self.done:
            return replace(attempt, outcome=self.done[0][0])
        if error is None:
            return worker_client.broken(index)
        error = hinted(error, worker_client.program)
        return replace(attempt, outcome=Outcome(index, ok=False, error=error))

    def _where_it_hangs(self, outcome: Outcome) -> tuple[int, Outcome]:
        begun = [number for number, count in enumerate(self._counts) for _ in range(count)]
        case = begun[min(self._client.place, len(begun) - 1)]
        return case, replace(outcome, index=self._inputs[case].index)

    def _judged(self, number: int, calls: Sequence[CallResult | None]) -> tuple[Outcome, Arrays]:
        """Return the outcome of the judged call with all violations, and its outputs."""
        program, checks = self._client.program, self._checks
        laid = self._laid[number] if self._laid else None
        decoyed = laid is not None and laid.decoy is not None
        judged = calls[decoyed]
        if judged is None:
            raise ValueError("no answer to the judged call")
        # Those that are only compared need no copy: by a late change, the program gains no more
        # than by returning the changed values at once.
        outputs = self._outputs(judged, keep=self._copies)
        if laid is None:
            self.arena, self.slots = self._client.arena, dict(judged.slots)
        found: list[Failure] = []
        if laid is not None and (checks.inputs_unchanged or checks.guards):
            # The inputs' memory has been written to since: look at what the judged call left.
            self._client.shared().move(laid.start, laid.left, laid.size)
            mutates = program.mutates if checks.inputs_unchanged else program.input_names
            found += laid.buffers.violations(mutates)
        if laid is not None and checks.repeat:
            second = self._outputs(calls[decoyed + 1])
            found += _compared(program, laid.buffers.pristine(), outputs, second)
        unsuspected = calls[0] is not None and not (found or judged.violations)
        if laid is not None and laid.again and laid.decoy is not None and unsuspected:
            first, last = (self._outputs(calls[n]) for n in (0, -1))
            found += told(_compared(program, laid.decoy, first, last))
        violations = (*found, *judged.violations)
        outcome = judged.outcome(self._inputs[number].index, outputs)
        return replace(outcome, violations=violations), outputs

    def _outputs(self, call: CallResult | None, *, keep: bool = False) -> dict[str, np.ndarray]:
        """Return the outputs of a call; none if it failed."""
        views = {} if call is None else self._client.shared().read(call.slots)
        outputs = {n: views[n].copy() if keep else views[n] for n in sorted(views)}
        demand_bools(outputs)
        for array in outputs.values():
            array.flags.writeable = False
        return outputs


class CallResult(Struct, frozen=True):
    """The result of one of several calls, with its outputs' positions in shared memory."""

    slots: Mapping[str, Slot]
    violations: tuple[Failure, ...]
    duration_s: float
    printed: str = ""

    def outcome(self, index: int, outputs: Arrays) -> Outcome:
        """Return the outcome of the case whose call it was."""
        return Outcome(
            index,
            ok=True,
            outputs=infos_of(outputs),
            violations=self.violations,
            duration_s=self.duration_s,
            printed=self.printed,
        )


def read_calls(answer: Mapping[str, Json]) -> list[CallResult | None]:
    """Return the results of several calls; raise one of `MALFORMED` for a bad answer.

    A call that might fail, and did, has None.
    """
    return [
        None
        if item is None
        else CallResult(
            read_slots(item),
            convert(item["violations"], tuple[Failure, ...], strict=False),
            float(item["seconds"]),
            str(item["printed"])[:MOST_PRINTED],
        )
        for item in answer["items"]
    ]


def _keeps_state(program: Program) -> bool:
    """Tell whether state of a program can outlive a call."""
    return program.kind not in (*EMULATED, "command") and not program.python


def infos_of(outputs: Arrays) -> tuple[OutputInfo, ...]:
    """Return the name, shape and dtype of each output."""
    return tuple(OutputInfo(n, a.shape, element_type(a)) for n, a in sorted(outputs.items()))


# Compare two identical calls bit by bit, to detect hidden state and unwritten elements.


# Fresh memory is filled with this before the repeated call, and with `FIRST_FILL` before the judged
# one, where the allocator allows it.
SECOND_FILL = 0xA4


NONE: Mapping[str, np.ndarray] = {}


def _bytes_of(array: np.ndarray) -> np.ndarray:
    """Return one row of bytes per element."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).reshape(flat.size, array.itemsize)


def compare_calls(
    first: Mapping[str, np.ndarray],
    second: Mapping[str, np.ndarray],
    *,
    deterministic: bool,
    counting: Mapping[str, np.ndarray] = NONE,
) -> list[Failure]:
    """Compare the outputs of two identical calls, and report differences."""
    found = []
    for name, array in first.items():
        again = second.get(name)
        if again is None or again.shape != array.shape or again.dtype != array.dtype:
            message = f"an identical call gave output {name!r} another shape or dtype"
            found.append(Failure(FailureKind.NON_DETERMINISTIC, message, name))
            continue
        rows, rows_again = _bytes_of(array), _bytes_of(again)
        if same_bytes(rows, rows_again):
            continue
        differs = (rows != rows_again).any(axis=1)
        if name in counting and counting[name].shape == array.shape:
            differs &= counting[name].reshape(-1)
        if not differs.any():  # or no longer, if a thread of the program still writes
            continue
        unwritten = differs & (rows == FIRST_FILL).all(axis=1)
        unwritten &= (rows_again == SECOND_FILL).all(axis=1)
        if unwritten.any():
            found.append(_failure(FailureKind.UNWRITTEN, name, unwritten, array, again))
        elif deterministic:
            found.append(_failure(FailureKind.NON_DETERMINISTIC, name, differs, array, again))
    return found


ROUNDINGS, MOST_ROUNDED = 256.0, 2.0**-4
"""Largest difference that another order of additions may make, relative to the largest value: in
units of the output's rounding, and at all."""


def _remedy(first: np.ndarray, second: np.ndarray) -> str:
    """Name the key that allows differences by roundings; empty for larger ones."""
    limits = FLOAT_LIMITS.get(dtype_name(first.dtype) or "")
    if limits is None:
        return ""
    with np.errstate(all="ignore"):
        apart = np.abs(to_float64(first) - to_float64(second)).max()
        small = apart <= min(ROUNDINGS * limits.eps, MOST_ROUNDED) * np.abs(to_float64(first)).max()
    told = ", by roundings only: if it adds in any order (atomics), `deterministic = false`"
    return told if small else ""


def _failure(
    kind: FailureKind, name: str, where: np.ndarray, first: np.ndarray, second: np.ndarray
) -> Failure:
    flat = int(np.flatnonzero(where)[0])
    index = tuple(int(i) for i in np.unravel_index(flat, first.shape))
    count = int(np.count_nonzero(where))
    told = (
        f"{count} of {first.size} elements of output {name!r} were never written"
        if kind is FailureKind.UNWRITTEN
        else f"an identical call changed {count} of {first.size} elements of output {name!r}"
        f"{_remedy(first[where.reshape(first.shape)], second[where.reshape(first.shape)])}"
    )
    return Failure(kind, told, name, index)


# Units of work for a worker besides cases, and the session in which fuzzing calls a program.


class CallMany:
    """Several calls in one message, whose inputs are all in the worker's shared memory."""

    def __init__(
        self,
        arena: Arena,
        cases: Sequence[Case],
        slots: Sequence[Mapping[str, Slot]],
        checks: Checks,
    ) -> None:
        self.done: list[CallResult] = []
        self._arena = arena
        self._cases = cases
        self._slots = slots
        self._checks = checks

    def begin(self, worker_client: WorkerClient) -> Attempt | None:
        """Send the calls to the worker that holds the inputs; see `Work.begin`."""
        here = worker_client.arena is self._arena
        pairs = list(zip(self._cases, self._slots, strict=True)) if here else []
        message: dict[str, Json] = {
            "type": "calls",
            "items": [
                {
                    "slots": msgspec.to_builtins(slots),
                    "float": case.dtype,
                    "calls": [{"seed": case.seed}],
                }
                for case, slots in pairs
            ],
        }
        message["reserved"] = max((end_of(slots) for _, slots in pairs), default=0)
        return worker_client.post(
            message, self._cases[0].index, checks=self._checks, slots={}, calls=len(self._cases)
        )

    def finish(self, worker_client: WorkerClient) -> Attempt:
        """Wait for the outcome; see `Work.finish`."""
        index = self._cases[0].index
        attempt, answer = worker_client.collect(index)
        if attempt.outcome.ok:
            try:
                self.done = [call for call in read_calls(answer) if call is not None]
            except MALFORMED:
                return worker_client.broken(index)
        return attempt


# Call a program repeatedly, with its tensors in shared memory, as fuzzing does.


class ProgramSession:
    """One program in a warm worker, which is replaced after a failure. Not thread-safe.

    Made by `Pool.session`.
    """

    def __init__(self, supervisor: Supervisor, sightings: Sightings) -> None:
        self._supervisor = supervisor
        self._sightings = sightings
        self._begun: CheckedCases | None = None
        self._index = 0
        self.done: CheckedCases | None = None

    def call(
        self,
        inputs: Case | Mapping[str, np.ndarray],
        *,
        checks: Checks | None = None,
        index: int = 0,
        seed: int = 0,
    ) -> tuple[dict[str, np.ndarray], Outcome]:
        """Run the program once."""
        self.begin(inputs, checks=checks, index=index, seed=seed)
        return self.finish()

    def observed(self) -> Observation:
        """Return everything that the program was seen to use since it was loaded, loading included.

        The result only grows; while nothing new is seen, the same object is returned. Records of a
        lost worker are kept.
        """
        return self._sightings.observation()

    def arena(self) -> Arena | None:
        """Return the shared memory that the next call will use; None if that is not known yet.

        It is not known if each call gets a separate worker, or if the program could not be loaded.
        """
        worker_client = self._supervisor.next_worker()
        return None if worker_client is None else worker_client.shared()

    def ask(self, work: Work) -> Attempt:
        """Run work other than a call in the worker, and supervise it like a call."""
        return self._supervisor.run(work)

    def begin_work(self, work: Work) -> None:
        """Start work in the worker as `ask` does, but return at once.

        `finish_work` must be called next, with the same work.
        """
        self._supervisor.begin(work)

    def finish_work(self, work: Work) -> Attempt:
        """Finish an `ask` that `begin_work` began."""
        return self._supervisor.finish(work)

    def abandon(self) -> None:
        """Give up the call that was begun, and replace the worker."""
        self._begun = None
        self._supervisor.abandon()

    def begin(
        self,
        inputs: Case | Mapping[str, np.ndarray] | SharedInputs,
        *,
        checks: Checks | None = None,
        index: int = 0,
        seed: int = 0,
        case: Case | None = None,
    ) -> None:
        """Start a call as `call` does, but return at once; `finish` returns the result.

        If `inputs` are arrays, `case` may be the case that they belong to. Without a case, the
        checks `decoy` and `guards` are impossible.

        Calls begun in two sessions run at the same time.
        """
        if self._begun is not None:
            raise RuntimeError("finish the call that was begun first")
        values: Arrays | None = None
        shared: SharedInputs | None = None
        if isinstance(inputs, Case):
            case, index, seed = inputs, inputs.index, inputs.seed
        elif isinstance(inputs, SharedInputs):
            shared = inputs
        elif inputs or case is None:
            values = {name: np.asarray(array) for name, array in inputs.items()}
        one = CheckedInputs(index, seed, case, values, shared=shared)
        self._begun = CheckedCases([one], checks if checks is not None else Checks(), copies=False)
        self._index = index
        self._supervisor.begin(self._begun)

    def finish(self) -> tuple[dict[str, np.ndarray], Outcome]:
        """Finish the call that was begun, and return its result."""
        work = self._begun
        if work is None:
            raise RuntimeError("no call was begun")
        self._begun = None
        self.done = work
        outcome = self._supervisor.finish(work).outcome
        if outcome.index != self._index:
            outcome = replace(outcome, index=self._index)
        return dict(work.done[0][1]) if outcome.ok else {}, outcome
