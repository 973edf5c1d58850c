"""Run a case with checks: make several calls, and compare them in another process.

The inputs are in memory that a worker shares with the coordinator. The coordinator keeps copies
that the worker cannot reach. From the shared memory and the outputs, it detects changes to the
inputs and to the memory around them, differences between identical calls, and elements that nobody
wrote. For these checks, it trusts no statement of the op's process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gpuemu_flow.cases.generate import decoy_case
from gpuemu_flow.model.types import Case, Failure, FailureKind, Json
from gpuemu_flow.numerics.contract import Mask
from gpuemu_flow.numerics.contract_views import mask_of
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, dtype_name, to_float64
from gpuemu_flow.workers import limits
from gpuemu_flow.workers.api import EMULATED, Checks, OpError, OutputInfo, Program
from gpuemu_flow.workers.arena import Arena, InputBuffers, as_number, same_bytes
from gpuemu_flow.workers.attempt import Attempt, WorkerClient, read_slots
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
        found = self._compare(before.outputs, after.outputs)
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
            found += self._compare(first.outputs, second.outputs)
        own = list(first.attempt.outcome.violations)
        attempt = replace(first.attempt, outcome=replace(first.attempt.outcome, violations=()))
        return _with_violations(attempt, [*found, *own]), first.outputs

    def _compare(self, first: Arrays, second: Arrays) -> list[Failure]:
        """Report differences between the outputs of two identical calls.

        In an output for which the program declares a mask, only the elements that the mask selects
        are compared.
        """
        assert self._shared is not None  # noqa: S101 - laid out before
        inputs = self._shared.buffers.pristine()
        counting = {}
        for name, mask in self._program.masks.items():
            if name in first and mask["input"] in inputs:
                test = Mask(**{**mask, "axes": tuple(mask["axes"])})
                counting[name] = mask_of(test, inputs, first[name].shape)
        deterministic = self._program.deterministic
        return compare_calls(first, second, deterministic=deterministic, counting=counting)

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


class _SharedInputs:
    """Inputs in a worker's shared memory, as whole allocations with guard zones."""

    def __init__(self, arena: Arena, arrays: Arrays) -> None:
        self.slots, memories, self.end = arena.lay(arrays)
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
    return Failure(kind, told, name, index, as_number(first[index]), as_number(second[index]))
