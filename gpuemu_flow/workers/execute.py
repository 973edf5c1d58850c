"""Run one case in the worker: make inputs, call and watch the program, collect outputs."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from msgspec import Struct

from gpuemu_flow.model.types import Failure
from gpuemu_flow.workers import limits
from gpuemu_flow.workers.api import MAX_OUTPUTS, OpError, Program, RunError
from gpuemu_flow.workers.channel import Watch
from gpuemu_flow.workers.limits import limit_file_size, output_limit
from gpuemu_flow.workers.tensors import MAX_OUTPUT_BYTES, demand_bools

Arrays = Mapping[str, np.ndarray]


class Runner(Protocol):
    """Interface of the runners, each of which calls one kind of program."""

    @property
    def hint(self) -> str:
        """Return a hint that may explain an exception of the program, or an empty string."""

    def call(self, inputs: Arrays, watch: Watch) -> dict[str, np.ndarray]:
        """Return the outputs by name; raise OpError, or whatever the program raises."""

    def violations(self) -> Sequence[Failure]:
        """Return the violations that the runner itself saw in the latest call."""


class Executed(Struct, frozen=True):
    """Outputs of a call, with the runner's findings, the duration, and printed text."""

    outputs: dict[str, np.ndarray]
    violations: tuple[Failure, ...]
    seconds: float
    printed: str = ""


def _reseed(seed: int) -> None:
    """Seed the global generators, so that results do not depend on the order of cases."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # the legacy generator is the point


def _folder_now() -> str | None:
    """Return the current folder; None if it no longer exists."""
    try:
        return os.getcwd()  # noqa: PTH109
    except OSError:
        return None


class _Surroundings:
    """Process-wide settings that a program may change, restored after each call."""

    def __init__(self) -> None:
        self._cwd = os.getcwd()  # noqa: PTH109
        self._path = list(sys.path)
        self._errors = np.geterr()
        self._recursion = sys.getrecursionlimit()

    def put_back(self) -> None:
        if _folder_now() != self._cwd:  # this costs a tenth of `chdir`
            os.chdir(self._cwd)
        sys.path[:] = self._path
        if np.geterr() != self._errors:
            np.seterr(**self._errors)
        sys.setrecursionlimit(self._recursion)


class CaseExecutor:
    """Runs cases of one program in this process."""

    def __init__(self, program: Program, runner: Runner, watch: Watch) -> None:
        self._program = program
        self._runner = runner
        self._watch = watch
        self._surroundings = _Surroundings()
        self._pid = os.getpid()

    @property
    def hint(self) -> str:
        """Return the runner's hint; see `Runner.hint`."""
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

    def call(self, arrays: Arrays, seed: int, fill: int = limits.NO_FILL) -> Executed:
        """Run the program on inputs in memory. Raises OpError: The outputs are unusable. Raises
        BaseException: Whatever the program raises."""
        filled = fill != limits.NO_FILL and limits.perturb(fill)
        try:
            outputs = self._call(arrays, seed)
        finally:
            if filled:
                limits.perturb(limits.NO_FILL)
        violations = tuple(self._runner.violations())
        printed = getattr(self._runner, "printed", "")
        return Executed(outputs, violations, self._watch.seconds, printed)


def _check_outputs(outputs: Arrays) -> None:
    if len(outputs) > MAX_OUTPUTS:
        raise OpError(RunError("op-output-junk", f"{len(outputs)} outputs are over {MAX_OUTPUTS}"))
    demand_bools(outputs)
    total = sum(array.nbytes for array in outputs.values())
    if total > MAX_OUTPUT_BYTES:
        raise OpError(RunError("op-output-shape", f"{total} bytes of outputs are over the limit"))
