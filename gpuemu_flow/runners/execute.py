"""One case in the worker: inputs made, the program called and watched, outputs brought home."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from gpuemu_flow.cases.generate import decoy_case, materialise, materialise_guarded
from gpuemu_flow.numerics.contract import Mask
from gpuemu_flow.numerics.contract_views import mask_of
from gpuemu_flow.numerics.dtypes import dtype_name, numpy_dtype
from gpuemu_flow.runners import decoys, malloc
from gpuemu_flow.runners.api import Checks, OpError, Program, Request, RunError
from gpuemu_flow.runners.buffers import InputBuffers
from gpuemu_flow.runners.codec import MAX_OUTPUTS
from gpuemu_flow.runners.limits import limit_file_size, output_limit
from gpuemu_flow.runners.repeat import FIRST_FILL, SECOND_FILL, compare_calls
from gpuemu_flow.runners.tensors import MAX_OUTPUT_BYTES, demand_bools
from gpuemu_flow.runners.watch import Watch
from gpuemu_flow.types import DTYPES, Case, Failure

_REPEAT_SEED = 0x5DEECE66D
_NO_FILL = 0xFF

Arrays = Mapping[str, np.ndarray]


class Runner(Protocol):
    """A runner: the way to call one kind of program."""

    @property
    def in_process(self) -> bool:
        """Tell whether state of the program can outlive a call."""

    @property
    def shares_memory(self) -> bool:
        """Tell whether the program gets the very arrays."""

    @property
    def hint(self) -> str:
        """Return a hint that may explain an exception of the program, or nothing."""

    def call(self, inputs: Arrays, watch: Watch) -> dict[str, np.ndarray]:
        """Return the outputs by name; OpError, or whatever the program raises."""

    def violations(self) -> Sequence[Failure]:
        """List what the runner itself saw the latest call do that it must not."""


@dataclass(frozen=True)
class Executed:
    """Outputs of the judged call, what the checks found, its seconds, and what kernels printed."""

    outputs: dict[str, np.ndarray]
    violations: tuple[Failure, ...]
    seconds: float
    printed: str = ""


def make_inputs(
    case: Case,
    input_dtype: str | None = None,
    *,
    guards: bool = False,
    values: Arrays | None = None,
) -> dict[str, np.ndarray]:
    """Return the case's tensors.

    Parameters
    ----------
    case : Case
    input_dtype : str, optional
        Float inputs of the case's own dtype are converted to this one, exactly when it is wider.
    guards : bool
        Lay them between guard zones; not those that are converted.
    values : mapping of str to ndarray, optional
        In place of those that follow from the case's seed.
    """
    if guards and not _converts(case.dtype, input_dtype):
        laid = materialise_guarded(case, values=values)
        return {name: each.array for name, each in laid.items()}
    return converted(materialise(case, values), case.dtype, input_dtype)


def _converts(dtype: str, input_dtype: str | None) -> bool:
    return input_dtype not in (None, dtype) and DTYPES[dtype].kind == "float"


def converted(
    arrays: dict[str, np.ndarray], dtype: str, input_dtype: str | None
) -> dict[str, np.ndarray]:
    """Return the arrays, those of the float type `dtype` converted to `input_dtype`."""
    if input_dtype is None or not _converts(dtype, input_dtype):
        return arrays
    wide = numpy_dtype(input_dtype)
    return {
        name: array.astype(wide) if dtype_name(array.dtype) == dtype else array
        for name, array in arrays.items()
    }


def _reseed(seed: int) -> None:
    """Seed the global generators, whose state forked workers share: the order must not matter."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # the legacy generator is the point


class _Surroundings:
    """Process-wide settings that a program may change; put back after each call."""

    def __init__(self) -> None:
        self._cwd = os.getcwd()  # noqa: PTH109
        self._path = list(sys.path)
        self._errors = np.geterr()
        self._recursion = sys.getrecursionlimit()

    def put_back(self) -> None:
        os.chdir(self._cwd)
        sys.path[:] = self._path
        np.seterr(**self._errors)
        sys.setrecursionlimit(self._recursion)


class Executor:
    """Runs cases of one program in this process.

    Parameters
    ----------
    program : Program
    runner : Runner
    watch : Watch
    forget : callable
        Drops what the program has written to standard error so far.
    """

    def __init__(
        self, program: Program, runner: Runner, watch: Watch, forget: Callable[[], None]
    ) -> None:
        self._program = program
        self._runner = runner
        self._watch = watch
        self._forget = forget
        self._surroundings = _Surroundings()
        self._pid = os.getpid()
        self._cases = 0

    @property
    def hint(self) -> str:
        """See `Runner.hint`."""
        return self._runner.hint

    def _call(self, arrays: Arrays, seed: int) -> dict[str, np.ndarray]:
        _reseed(seed)
        limit_file_size(output_limit(sum(array.nbytes for array in arrays.values())))
        try:
            outputs = self._runner.call(arrays, self._watch)
        finally:
            if os.getpid() != self._pid:
                os._exit(0)  # a fork that the program made came back here too
            limit_file_size(None)
            self._surroundings.put_back()
        _check_outputs(outputs)
        return outputs

    def execute(self, request: Request, checks: Checks, values: Arrays | None = None) -> Executed:
        """Run one case generated here, or with given values laid out here; see `call`."""
        self._watch.preparing()
        case, dtype = request.case, request.input_dtype
        guards = checks.guards and self._runner.shares_memory
        judged = make_inputs(case, dtype, guards=guards, values=values)
        if not (checks.decoy and self._runner.in_process):
            return self.call(InputBuffers(judged), case.seed, checks)
        again = checks.repeat and decoys.comes_again(case.seed, self._cases)
        self._cases += 1
        decoy = make_inputs(decoy_case(case), dtype, guards=guards)
        decoys.resemble(decoy, judged, case)
        buffers = InputBuffers(decoy)
        before = self._decoy_call(buffers, case.seed, FIRST_FILL)
        self._forget()  # only the judged call's words are shown
        buffers.overwrite(judged)
        executed = self.call(buffers, case.seed, checks)
        if before is None or not again or executed.violations:
            return executed
        decoy = make_inputs(decoy_case(case), dtype, guards=guards)
        decoys.resemble(decoy, judged, case)
        buffers.overwrite(decoy)
        after = self._decoy_call(buffers, case.seed ^ _REPEAT_SEED, SECOND_FILL) or {}
        found = self._compare_calls(before, after, buffers.arrays)
        return replace(executed, violations=(*executed.violations, *decoys.told(found)))

    def _decoy_call(
        self, buffers: InputBuffers, seed: int, fill: int
    ) -> dict[str, np.ndarray] | None:
        """Return outputs of a call that is not judged; None when it failed."""
        buffers.remember()
        malloc.perturb(fill)
        try:
            outputs = self._call(buffers.arrays, seed)
            return {name: array.copy() for name, array in outputs.items()}
        except BaseException:  # only the judged call counts
            return None
        finally:
            malloc.perturb(_NO_FILL)
            buffers.restore()  # the zones round the elements, too

    def call(self, buffers: InputBuffers, seed: int, checks: Checks) -> Executed:
        """Run the program on inputs in memory.

        Raises
        ------
        OpError
            The outputs are unusable.
        BaseException
            Whatever the program raises.
        """
        watched = self._runner.shares_memory and (checks.inputs_unchanged or checks.guards)
        if watched or checks.repeat:
            buffers.remember()
        filled = checks.repeat and malloc.perturb(FIRST_FILL)
        try:
            outputs = self._call(buffers.arrays, seed)
            seconds = self._watch.seconds
            violations = buffers.violations(self._mutates(checks)) if watched else []
            violations += self._runner.violations()
            printed = getattr(self._runner, "printed", "")
            if checks.repeat:
                outputs = {name: array.copy() for name, array in outputs.items()}
                buffers.restore()
                if filled:
                    malloc.perturb(SECOND_FILL)
                again = self._call(buffers.arrays, seed ^ _REPEAT_SEED)
                violations += self._compare_calls(outputs, again, buffers.arrays)
        finally:
            if filled:
                malloc.perturb(_NO_FILL)
        return Executed(outputs, tuple(violations), seconds, printed)

    def _compare_calls(self, first: Arrays, second: Arrays, inputs: Arrays) -> list[Failure]:
        """Report what differs between equal calls, in elements that count."""
        counting = {}
        for name, mask in self._program.masks.items():
            if name in first and mask["input"] in inputs:
                test = Mask(**{**mask, "axes": tuple(mask["axes"])})
                counting[name] = mask_of(test, inputs, first[name].shape)
        deterministic = self._program.deterministic
        return compare_calls(first, second, deterministic=deterministic, counting=counting)

    def _mutates(self, checks: Checks) -> tuple[str, ...]:
        return self._program.mutates if checks.inputs_unchanged else self._program.input_names


def _check_outputs(outputs: Arrays) -> None:
    if len(outputs) > MAX_OUTPUTS:
        raise OpError(RunError("op-output-junk", f"{len(outputs)} outputs are over {MAX_OUTPUTS}"))
    demand_bools(outputs)
    total = sum(array.nbytes for array in outputs.values())
    if total > MAX_OUTPUT_BYTES:
        raise OpError(RunError("op-output-shape", f"{total} bytes of outputs are over the limit"))
