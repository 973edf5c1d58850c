"""Run a case with checks: make several calls, and compare them in another process.

The inputs are in memory that a worker shares with the coordinator. The coordinator keeps copies
that the worker cannot reach. From the shared memory and the outputs, it detects changes to the
inputs and to the memory around them, differences between identical calls, and elements that nobody
wrote. For these checks, it trusts no statement of the op's process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gpuemu_flow.cases.generate import decoy_case
from gpuemu_flow.model.types import Case, Failure, FailureKind, Json, failure_from_json
from gpuemu_flow.numerics.contract import Mask
from gpuemu_flow.numerics.contract_views import mask_of
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, dtype_name, to_float64
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
    Slot,
)
from gpuemu_flow.workers.arena import Arena, InputBuffers, as_number, same_bytes
from gpuemu_flow.workers.attempt import MALFORMED, Attempt, WorkerClient, read_slots
from gpuemu_flow.workers.execute import converted, make_inputs
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

Arrays = Mapping[str, np.ndarray]


def watches(checks: Checks) -> bool:
    """Tell whether any check needs more than the outputs of one call."""
    return checks.inputs_unchanged or checks.guards or checks.decoy or checks.repeat


class CheckedInputs(Struct, frozen=True):
    """The inputs of one case."""

    index: int
    seed: int
    case: Case | None = None
    values: Arrays | None = None
    dtype: str = ""
    input_dtype: str | None = None
    decoy_values: Arrays | None = None

    @property
    def float_dtype(self) -> str:
        """Return the dtype that the float inputs have in a call."""
        return self.input_dtype or (self.dtype if self.case is None else self.case.dtype)

    def judged(self, *, guards: bool) -> dict[str, np.ndarray]:
        """Make the inputs of the call that is judged."""
        if self.case is not None:
            return make_inputs(self.case, self.input_dtype, guards=guards, values=self.values)
        return converted(dict(self.values or {}), self.dtype, self.input_dtype)

    def decoy(self, judged: Arrays, *, guards: bool) -> dict[str, np.ndarray]:
        """Make the inputs of the decoy call, which precedes the judged call."""
        assert self.case is not None  # noqa: S101 - else there are no decoys
        made = make_inputs(
            decoy_case(self.case), self.input_dtype, guards=guards, values=self.decoy_values
        )
        resemble(made, judged, self.case)
        return made


class _Call(Struct, frozen=True):
    """The attempt to make one call, and the call's outputs."""

    attempt: Attempt
    outputs: dict[str, np.ndarray]


class CheckedCase:
    """Makes the calls of one checked case in a worker."""

    def __init__(self, worker_client: WorkerClient, inputs: CheckedInputs, checks: Checks) -> None:
        self._client = worker_client
        self._program = worker_client.program
        self._inputs = inputs
        self._checks = checks
        self._shared: _SharedInputs | None = None
        self._posted = False
        remembers = inputs.case is not None and _keeps_state(self._program)
        self._decoys = checks.decoy and remembers
        self._again = checks.repeat and comes_again(inputs.seed, worker_client.cases)
        self._judged: dict[str, np.ndarray] = {}

    def begin(self) -> Attempt | None:
        """Request the first call, and do not wait for its answer.

        Returns None, or the failed attempt if the program cannot be loaded.
        """
        inputs, guards = self._inputs, self._checks.guards
        self._judged = inputs.judged(guards=guards)
        self._lay(inputs.decoy(self._judged, guards=guards) if self._decoys else self._judged)
        fill = FIRST_FILL if self._decoys or self._checks.repeat else limits.NO_FILL
        self._posted = True
        return self._post(inputs.seed, fill)

    def finish(self) -> tuple[Attempt, dict[str, np.ndarray]]:
        """Return the attempt with all violations in its outcome, and the judged outputs.

        Raises CancelledRunError.
        """
        inputs, checks, judged = self._inputs, self._checks, self._judged
        if not self._decoys:
            return self._judge()
        before = self._call(inputs.seed, FIRST_FILL, keep=self._again)
        if before.attempt.ended:
            return before.attempt, {}
        self._restore()
        self._lay(judged)
        attempt, outputs = self._judge()
        if not before.attempt.outcome.ok or not self._again or not attempt.outcome.ok:
            return attempt, outputs
        if attempt.outcome.violations:
            return attempt, outputs
        self._restore()
        self._lay(inputs.decoy(judged, guards=checks.guards))
        after = self._call(inputs.seed ^ _REPEAT_SEED, SECOND_FILL, keep=False)
        if after.attempt.ended:
            return after.attempt, {}
        assert self._shared is not None  # noqa: S101 - laid out before
        pristine = self._shared.buffers.pristine()
        found = _compared(self._program, pristine, before.outputs, after.outputs)
        return _with_violations(attempt, told(found)), outputs

    def _judge(self) -> tuple[Attempt, dict[str, np.ndarray]]:
        """Make the judged call, repeat it if required, and return the attempt and the outputs."""
        checks, inputs, shared = self._checks, self._inputs, self._shared
        assert shared is not None  # noqa: S101 - laid out before
        fill = FIRST_FILL if checks.repeat else limits.NO_FILL
        first = self._call(inputs.seed, fill)
        if not first.attempt.outcome.ok:
            return first.attempt, {}
        found: list[Failure] = []
        if checks.inputs_unchanged or checks.guards:
            mutates = self._program.mutates
            names = mutates if checks.inputs_unchanged else self._program.input_names
            found += shared.buffers.violations(names)
        if checks.repeat:
            shared.buffers.restore()
            second = self._call(inputs.seed ^ _REPEAT_SEED, SECOND_FILL, keep=False)
            if not second.attempt.outcome.ok:
                return second.attempt, {}
            found += _compared(
                self._program, shared.buffers.pristine(), first.outputs, second.outputs
            )
        own = list(first.attempt.outcome.violations)
        attempt = replace(first.attempt, outcome=replace(first.attempt.outcome, violations=()))
        return _with_violations(attempt, [*found, *own]), first.outputs

    def _lay(self, arrays: Arrays) -> None:
        """Write inputs to the worker's memory, over the previous inputs if they fit."""
        if self._shared is None or not self._shared.take(arrays):
            self._shared = _SharedInputs(self._client.shared(), arrays)
        self._shared.buffers.remember()

    def _restore(self) -> None:
        """Restore memory that a call changed, including the guard zones."""
        if self._shared is not None:
            self._shared.buffers.restore()

    def _post(self, seed: int, fill: int) -> Attempt | None:
        shared = self._shared
        assert shared is not None  # noqa: S101 - laid out before
        message: dict[str, Json] = {
            "type": "call",
            "case": None,
            "index": self._inputs.index,
            "seed": seed,
            "dtype": "",
            "input_dtype": None,
            "float": self._inputs.float_dtype,
            "fill": fill,
            "reserved": shared.end,
        }
        index = self._inputs.index
        return self._client.post(message, index, checks=self._checks, slots=shared.slots, calls=1)

    def _call(self, seed: int, fill: int, *, keep: bool = True) -> _Call:
        """Make a call, and return the `Attempt` and the outputs as a `_Call`.

        If `keep` is False, the outputs are not copied, and are valid only until the next call.
        Outputs that will be judged have to be copied, since a thread that the program left running
        could change them. Outputs that are only compared with earlier ones need no copy: by such a
        late change, the program gains no more than by returning the changed values at once.
        """
        failed = None if self._posted else self._post(seed, fill)
        self._posted = False
        if failed is not None:
            return _Call(failed, {})
        index = self._inputs.index
        attempt, answer = self._client.collect(index)
        if not attempt.outcome.ok:
            return _Call(attempt, {})
        try:
            views = self._client.shared().read(read_slots(answer))
            outputs = {n: views[n].copy() if keep else views[n] for n in sorted(views)}
            demand_bools(outputs)
        except (ValueError, OpError):  # outside the shared memory, or no tensors
            return _Call(self._client.broken(index), {})
        for array in outputs.values():
            array.flags.writeable = False
        return _Call(attempt, outputs)


def _compared(program: Program, inputs: Arrays, first: Arrays, second: Arrays) -> list[Failure]:
    """Report differences between the outputs of two identical calls.

    In an output for which the program declares a mask, only the elements that the mask selects are
    compared.
    """
    counting = {}
    for name, mask in program.masks.items():
        if name in first and mask["input"] in inputs:
            test = Mask(**{**mask, "axes": tuple(mask["axes"])})
            counting[name] = mask_of(test, inputs, first[name].shape)
    return compare_calls(first, second, deterministic=program.deterministic, counting=counting)


class _SharedInputs:
    """Inputs in a worker's shared memory, as whole allocations with guard zones."""

    def __init__(self, arena: Arena, arrays: Arrays, start: int = 0) -> None:
        self.slots, memories, self.end = arena.lay(arrays, start)
        self.buffers = InputBuffers(arena.views(self.slots), memories)

    def take(self, arrays: Arrays) -> bool:
        """Overwrite the inputs with new values.

        Return False, and change nothing, if a name, shape, stride or dtype differs.
        """
        mine = self.buffers.arrays
        fits = mine.keys() == arrays.keys() and all(
            (mine[n].shape, mine[n].strides, mine[n].dtype) == (a.shape, a.strides, a.dtype)
            for n, a in arrays.items()
        )
        if fits:
            self.buffers.overwrite(arrays)
        return fits


# Run many cases in one exchange.


class _LaidCase(Struct):
    """A case whose calls are all prepared in a worker's shared memory.

    The worker copies whole ranges of this memory: `image`, what the judged call gets, to the
    memory of the inputs before a call, and what the judged call left there to `left` after it.
    """

    inputs: CheckedInputs
    judged: _SharedInputs
    decoy: dict[str, np.ndarray] | None = None
    again: bool = False
    image: int = 0
    left: int = 0
    start: int = 0

    @property
    def size(self) -> int:
        return self.judged.end - self.start

    def count(self, *, repeat: bool) -> int:
        """Return how many calls the case has."""
        return 1 + (self.decoy is not None) + repeat + self.again

    def items(self, *, repeat: bool, fill: int) -> list[dict[str, Json]]:
        """Return the calls of the case, as a message names them."""
        seed, other = self.inputs.seed, self.inputs.seed ^ _REPEAT_SEED
        slots = msgspec.to_builtins(self.judged.slots)
        fresh = [self.start, self.image, self.size]
        calls: list[dict[str, Json]] = []
        if self.decoy is not None:
            calls.append({"seed": seed, "fill": fill})
        calls.append({"seed": seed, "fill": fill, "before": fresh if calls else None})
        calls[-1]["after"] = [self.left, self.start, self.size]
        if repeat:
            calls.append({"seed": other, "fill": SECOND_FILL, "before": fresh})
        if self.again:
            fresh = [self.start, self.left + self.size, self.size]
            calls.append({"seed": other, "fill": SECOND_FILL, "before": fresh})
        return [{"slots": slots, **call} for call in calls]


class CheckedCases:
    """Runs several cases with their checks, in one exchange with a worker that ran some before.

    `done` has the outcomes and outputs of the first cases, up to one that has to be run alone: it
    raised, or the process ended. `hung` is the number of the case that took too long, and its
    outcome. A worker that was started for these cases is asked nothing.
    """

    def __init__(self, requests: Sequence[Request], checks: Checks) -> None:
        self.done: list[tuple[Outcome, Arrays]] = []
        self.hung: tuple[int, Outcome] | None = None
        self._requests = requests
        self._checks = checks
        self._laid: list[_LaidCase] = []

    def begin(self, worker_client: WorkerClient) -> Attempt | None:
        """Send the calls of all cases; see `Work.begin`."""
        first = self._requests[0].case
        if worker_client.cases == 0:
            return Attempt(Outcome(first.index, ok=True))
        self._client = worker_client
        self._laid, position = [], 0
        items: list[dict[str, Json]] = []
        fill = FIRST_FILL if self._checks.repeat else limits.NO_FILL
        for request in self._requests:
            if not watches(self._checks):
                case = request.case.to_json()
                items.append({"slots": {}, "case": case, "input_dtype": request.input_dtype})
                continue
            laid = self._lay(request, position)
            if laid is None:
                break
            self._laid.append(laid)
            position = laid.left + (1 + laid.again) * laid.size
            items += laid.items(repeat=self._checks.repeat, fill=fill)
        message: dict[str, Json] = {
            "type": "calls",
            "float": self._requests[0].input_dtype or first.dtype,
            "items": items,
            "reserved": position,
        }
        return worker_client.post(
            message,
            first.index,
            checks=self._checks,
            slots={},
            calls=len(items),
            made=max(request.case.nbytes for request in self._requests),
        )

    def _lay(self, request: Request, position: int) -> _LaidCase | None:
        """Write what a case's calls get to the shared memory; None if it has to run alone."""
        checks, case, arena = self._checks, request.case, self._client.shared()
        inputs = CheckedInputs(case.index, case.seed, case, input_dtype=request.input_dtype)
        judged = inputs.judged(guards=checks.guards)
        shared = _SharedInputs(arena, judged, position)
        shared.buffers.remember()
        laid = _LaidCase(inputs, shared, start=position)
        laid.image = -(-shared.end // 64) * 64
        laid.left = laid.image + laid.size
        arena.move(laid.image, position, laid.size)
        if checks.decoy and _keeps_state(self._client.program):
            laid.decoy = inputs.decoy(judged, guards=checks.guards)
            laid.again = checks.repeat and comes_again(case.seed, self._client.cases)
            if not shared.take(laid.decoy):
                return None
            if laid.again:
                arena.move(laid.left + laid.size, position, laid.size)
        return laid

    def finish(self, worker_client: WorkerClient) -> Attempt:
        """Wait for the outputs, and compare; see `Work.finish`."""
        index = self._requests[0].case.index
        attempt, answer = worker_client.collect(index)
        place = worker_client.place
        if attempt.timed_out:
            self.hung = self._where_it_hangs(attempt.outcome, place)
        if not attempt.outcome.ok:
            return attempt
        try:
            calls = read_calls(answer)
            if not self._laid:
                self.done = [
                    self._plain(request.case.index, call)
                    for request, call in zip(self._requests, calls, strict=False)
                ]
                return attempt
            for laid in self._laid:
                some = laid.count(repeat=self._checks.repeat)
                if len(calls) < some:
                    break
                self.done.append(self._judged(laid, calls[:some]))
                del calls[:some]
        except (*MALFORMED, OpError):
            self.done = []
            return worker_client.broken(index)
        return attempt

    def _where_it_hangs(self, outcome: Outcome, place: int) -> tuple[int, Outcome]:
        counts = [laid.count(repeat=self._checks.repeat) for laid in self._laid]
        begun = [number for number, count in enumerate(counts) for _ in range(count)]
        case = begun[min(place, len(begun) - 1)] if begun else place
        case = min(case, len(self._requests) - 1)
        return case, replace(outcome, index=self._requests[case].case.index)

    def _plain(self, index: int, call: CallResult) -> tuple[Outcome, Arrays]:
        outputs = self._outputs(call, keep=True)
        return call.outcome(index, outputs), outputs

    def _judged(self, laid: _LaidCase, calls: Sequence[CallResult]) -> tuple[Outcome, Arrays]:
        """Return the outcome of the judged call with all violations, and its outputs."""
        program, checks = self._client.program, self._checks
        decoyed = laid.decoy is not None
        judged = calls[decoyed]
        outputs = self._outputs(judged, keep=True)
        found: list[Failure] = []
        buffers = laid.judged.buffers
        if checks.inputs_unchanged or checks.guards:
            # The worker's memory has been written to since: look at what the judged call left.
            self._client.shared().move(laid.start, laid.left, laid.size)
            mutates = program.mutates if checks.inputs_unchanged else program.input_names
            found += buffers.violations(mutates)
        if checks.repeat:
            second = self._outputs(calls[decoyed + 1], keep=False)
            found += _compared(program, buffers.pristine(), outputs, second)
        if laid.again and laid.decoy is not None and not (found or judged.violations):
            first, last = (self._outputs(calls[n], keep=False) for n in (0, -1))
            found += told(_compared(program, laid.decoy, first, last))
        violations = (*found, *judged.violations)
        return replace(judged.outcome(laid.inputs.index, outputs), violations=violations), outputs

    def _outputs(self, call: CallResult, *, keep: bool) -> dict[str, np.ndarray]:
        views = self._client.shared().read(call.slots)
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


def read_calls(answer: Mapping[str, Json]) -> list[CallResult]:
    """Return the results of several calls; raise one of `MALFORMED` for a bad answer."""
    return [
        CallResult(
            read_slots(item),
            tuple(failure_from_json(f) for f in item["violations"]),
            float(item["seconds"]),
            str(item["printed"])[:MOST_PRINTED],
        )
        for item in answer["items"]
    ]


def _keeps_state(program: Program) -> bool:
    """Tell whether state of a program can outlive a call."""
    return program.kind not in (*EMULATED, "command") and not program.python


def _with_violations(attempt: Attempt, found: list[Failure]) -> Attempt:
    outcome = attempt.outcome
    return replace(attempt, outcome=replace(outcome, violations=(*outcome.violations, *found)))


def infos_of(outputs: Arrays) -> tuple[OutputInfo, ...]:
    """Return the name, shape and dtype of each output."""
    return tuple(OutputInfo(n, a.shape, element_type(a)) for n, a in sorted(outputs.items()))


# Compare two identical calls bit by bit, to detect hidden state and unwritten elements.


# Fresh memory is filled with one of these before the judged call and with the other before the
# repeated one, where the allocator allows it.
FIRST_FILL, SECOND_FILL = 0x5B, 0xA4


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


BY_ROUNDING = 2.0**-10
"""Largest difference, relative to the largest value, that another order of additions may make."""


def _remedy(first: np.ndarray, second: np.ndarray) -> str:
    """Name the key that allows differences by roundings; empty for larger ones."""
    if dtype_name(first.dtype) not in FLOAT_LIMITS:
        return ""
    with np.errstate(all="ignore"):
        apart = np.abs(to_float64(first) - to_float64(second)).max()
        small = apart <= BY_ROUNDING * np.abs(to_float64(first)).max()
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
    return Failure(kind, told, name, index, as_number(first[index]), as_number(second[index]))
