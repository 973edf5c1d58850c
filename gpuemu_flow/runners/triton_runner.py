"""Programs that are host functions of Triton kernels: run by Triton's interpreter on the CPU."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gpuemu_flow.errors import RunnerError
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, ML_DTYPES_NAMES, dtype_name
from gpuemu_flow.runners.api import OpError, Program, RunError
from gpuemu_flow.runners.callable import CallableRunner
from gpuemu_flow.runners.imports import load_function
from gpuemu_flow.runners.triton_device import INT_BYTE, NAN_BYTE
from gpuemu_flow.runners.triton_interpreter import SWITCH, Interpreter
from gpuemu_flow.runners.watch import Watch
from gpuemu_flow.types import DTYPES, Failure, FailureKind

Inputs = Mapping[str, np.ndarray]
_LEAST_INTEGER_BYTES = 4  # narrower ones may hold the fill byte by right


def as_torch(torch: Any, array: np.ndarray) -> Any:
    """A torch tensor on the array's own memory; on a copy where torch could not write to it."""
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy(order="K")
    name = dtype_name(array.dtype) or ""
    if name in ML_DTYPES_NAMES:
        words = array.view(np.uint8 if DTYPES[name].itemsize == 1 else np.int16)
        return torch.from_numpy(words).view(getattr(torch, name))
    return torch.from_numpy(array)


def with_torch(torch: Any, value: Any) -> Any:
    """A value with the arrays in it, or in its mappings, as torch tensors."""
    if isinstance(value, np.ndarray):
        return as_torch(torch, value)
    if isinstance(value, Mapping):
        return {name: with_torch(torch, member) for name, member in value.items()}
    return value


def unwritten(name: str, array: np.ndarray) -> list[Failure]:
    """Elements of an output that still hold what new memory is filled with."""
    dtype = dtype_name(array.dtype) or ""
    known = DTYPES.get(dtype)
    if known is None or known.kind == "bool":
        return []
    if dtype not in FLOAT_LIMITS and known.itemsize < _LEAST_INTEGER_BYTES:
        return []
    byte = NAN_BYTE if dtype in FLOAT_LIMITS else INT_BYTE
    word = np.dtype(f"u{known.itemsize}")
    fill = int.from_bytes(bytes([byte]) * known.itemsize, "little")
    places = np.argwhere(np.ascontiguousarray(array).view(word).reshape(array.shape) == fill)
    if not len(places):
        return []
    index = tuple(int(i) for i in places[0])
    message = f"{len(places)} of {array.size} elements of output {name!r} were never written"
    return [Failure(FailureKind.UNWRITTEN, message, name, index)]


def plain_error(error: BaseException) -> BaseException:
    """The kernel's own exception inside those that the interpreter wraps round it."""
    while type(error).__name__ == "InterpreterError" and error.__cause__ is not None:
        error = error.__cause__
    return error


def seed_of_call() -> int:
    """What the global generator was seeded with for this call; reading it draws nothing."""
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
            self._interpreter = Interpreter()
        except RunnerError as failed:
            problem = failed.problems[0]
            raise OpError(RunError(problem.slug, problem.message, problem.hint)) from None
        self._unwritten: list[Failure] = []
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
                with self._interpreter.running(seed_of_call()):
                    return host(*given, **named)
            except Exception as error:
                raise plain_error(error) from None

        return run

    def call(self, inputs: Inputs, watch: Watch) -> dict[str, np.ndarray]:
        """See `CallableRunner.call`."""
        self._unwritten = []
        outputs = super().call(inputs, watch)
        if self._interpreter.device.made_uninitialised:
            self._unwritten = [f for name, a in outputs.items() for f in unwritten(name, a)]
        return outputs

    def violations(self) -> list[Failure]:
        """What the kernels of the latest call touched or left out, and must not have."""
        return [*self._interpreter.failures(), *self._unwritten]
