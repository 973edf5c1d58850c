"""Programs that are host functions of Triton kernels: run by Triton's interpreter on the CPU."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuemu_flow.errors import FlowError, RunnerError
from gpuemu_flow.numerics.dtypes import ML_DTYPES_NAMES, dtype_name
from gpuemu_flow.runners.api import DEFAULT_OUTPUT, Program, op_error
from gpuemu_flow.runners.callable import CallableRunner
from gpuemu_flow.runners.imports import load_function
from gpuemu_flow.runners.planted import PtxFolder
from gpuemu_flow.runners.triton_interpreter import SWITCH, Interpreter
from gpuemu_flow.runners.triton_unwritten import suspicious, unwritten
from gpuemu_flow.runners.watch import Watch
from gpuemu_flow.types import DTYPES, Failure

if TYPE_CHECKING:
    from gpuemu_flow.runners.triton_emulated import CompiledTriton

Inputs = Mapping[str, np.ndarray]
_MOST_COPIED = 1 << 26
"""Bytes of inputs that are copied, so that a call can be repeated."""


def as_torch(torch: Any, array: np.ndarray) -> Any:
    """Return a torch tensor on the array's memory, or on a copy if torch could not write to it."""
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy(order="K")
    name = dtype_name(array.dtype) or ""
    if name in ML_DTYPES_NAMES:
        words = array.view(np.uint8 if DTYPES[name].itemsize == 1 else np.int16)
        return torch.from_numpy(words).view(getattr(torch, name))
    return torch.from_numpy(array)


def with_torch(torch: Any, value: Any) -> Any:
    """Return a value with the arrays in it, or in its mappings, as torch tensors."""
    if isinstance(value, np.ndarray):
        return as_torch(torch, value)
    if isinstance(value, Mapping):
        return {name: with_torch(torch, member) for name, member in value.items()}
    return value


def plain_error(error: BaseException) -> BaseException:
    """Return the kernel's own exception, without the interpreter's exceptions around it."""
    while type(error).__name__ == "InterpreterError" and error.__cause__ is not None:
        error = error.__cause__
    return error


def seed_of_call() -> int:
    """Return the seed of the global generator for this call; reading it draws nothing."""
    state: Any = np.random.get_state()
    return int(state[1][0])


class TritonRunner(CallableRunner):
    """Calls a host function with torch tensors on the very memory of the inputs.

    Raises
    ------
    OpError
        ``op-not-loadable``, ``triton-missing``, ``op-signature``.
    """

    def __init__(self, program: Program) -> None:
        # This process is the program's, and has not imported triton yet.
        os.environ.pop(SWITCH, None)
        try:
            self._interpreter = _maker(program)
        except RunnerError as failed:
            raise op_error(failed) from None
        self._found: list[Failure] = []
        self._bypassed: list[Failure] = []
        self._program_outputs = program.output_names
        self.printed = ""
        self._run = 0
        with self._interpreter.running():
            host = load_function(program)
        super().__init__(program, self._on_torch(host))

    def _on_torch(self, host: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(host)
        def run(*args: Any, **kwargs: Any) -> Any:
            torch = self._interpreter.torch
            given = [with_torch(torch, value) for value in args]
            named = {name: with_torch(torch, value) for name, value in kwargs.items()}
            try:
                with self._interpreter.running(seed_of_call(), self._run):
                    result = host(*given, **named)
                    self._look_who_wrote(result)
                    return result
            except Exception as error:
                raise plain_error(error) from None

        return run

    def _look_who_wrote(self, result: Any) -> None:
        """Record operations that a library did in place of the op's kernels."""
        provenance = getattr(self._interpreter, "provenance", None)
        if provenance is not None and not self._run:
            names = self._program_outputs or (DEFAULT_OUTPUT,)
            self._bypassed = provenance.failures(result, names)

    def call(self, inputs: Inputs, watch: Watch) -> dict[str, np.ndarray]:
        """See `CallableRunner.call`."""
        self._found, self._bypassed, self._run = [], [], 0
        copies = _copied(inputs)
        try:
            outputs = super().call(inputs, watch)
        except FlowError as error:
            raise op_error(error) from None
        self._found = [*self._bypassed, *self._interpreter.failures()]
        self.printed = getattr(self._interpreter, "printed", "")
        if self._interpreter.device.made_uninitialised and suspicious(outputs):
            again = self._again(copies, watch) if copies is not None else None
            self._found += unwritten(outputs, again)
        return outputs

    def _again(self, copies: Inputs, watch: Watch) -> dict[str, np.ndarray] | None:
        """Repeat the call with other values in new memory; return None if it fails."""
        self._run = 1
        try:
            return super().call(copies, watch)
        except Exception:
            return None

    def violations(self) -> list[Failure]:
        """Return violations of the kernels in the latest call."""
        return self._found


def _maker(program: Program) -> Interpreter | CompiledTriton:
    """Make the runner of kernels: the emulator if ``mode = "compiled"``, else the interpreter."""
    if not program.argv:
        return Interpreter(required=program.require_kernel, forbid=program.forbid)
    from gpuemu_flow.runners.triton_emulated import CompiledTriton  # noqa: PLC0415 - only for it

    _, arch, checks, *folder = program.argv
    exchange = PtxFolder(Path(folder[0]) if folder else None)
    return CompiledTriton(arch, tuple(filter(None, checks.split(","))), program.root, exchange)


def _copied(inputs: Inputs) -> Inputs | None:
    arrays = [value for value in inputs.values() if isinstance(value, np.ndarray)]
    if sum(array.nbytes for array in arrays) > _MOST_COPIED:
        return None
    return {
        name: value.copy(order="K") if isinstance(value, np.ndarray) else value
        for name, value in inputs.items()
    }
