"""Triton kernels in this process: host functions run by Triton's interpreter, and judged.

The functions may come from files, which `load` imports, or may have been imported already.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gpuemu_flow.client.results import ValidationError, ValidationResult
from gpuemu_flow.frameworks.base import PLAIN, Inputs, caller, named
from gpuemu_flow.frameworks.local import checked_precision, compare, outputs_by_name, reference_of
from gpuemu_flow.frameworks.pytorch import PyTorchAdapter
from gpuemu_flow.model.errors import Problem, UsageError
from gpuemu_flow.model.types import Failure
from gpuemu_flow.numerics.dtypes import widened
from gpuemu_flow.numerics.operand import TENSOR_CORE
from gpuemu_flow.workers.triton_interpreter import Interpreter
from gpuemu_flow.workers.triton_memory import suspicious, unwritten
from gpuemu_flow.workers.triton_runner import plain_error

_ADAPTER = PyTorchAdapter()


@functools.cache
def _interpreter() -> Interpreter:
    return Interpreter()


def _function_of(program: str, relative_to: str | Path) -> Callable[..., Any]:
    """Import and return the function ``path.py:function``, with Triton's interpreter enabled."""
    path, colon, name = program.rpartition(":")
    file = (Path(relative_to) / path).resolve()
    if not colon or not file.is_file():
        raise UsageError(
            Problem(
                "triton-no-function",
                f"{program!r} names no function of a file below {relative_to}",
                "write it as path.py:function",
            )
        )
    module = types.ModuleType(f"gpuemu_triton_{file.stem}")
    module.__file__ = str(file)
    code = compile(file.read_bytes(), module.__file__, "exec", dont_inherit=True)
    before = list(sys.path)
    sys.path.insert(0, str(file.parent))
    try:
        with _interpreter().running():
            exec(code, module.__dict__)  # noqa: S102 - the user's kernels are what is to be run
    finally:
        sys.path[:] = before
    found = getattr(module, name, None)
    if not callable(found):
        raise UsageError(Problem("triton-no-function", f"{path} defines no callable {name!r}"))
    function: Callable[..., Any] = found
    return function


class TritonOp:
    """A host function that launches Triton kernels, run on the CPU.

    Calling the object calls the function with its arguments; numpy arrays are passed as tensors. It
    is an error if a kernel accesses memory outside of all tensors, or leaves outputs unwritten.

    Parameters
    ----------
    function : callable or str
        A host function, or ``path.py:function``, which is loaded and can import modules next to it.
    relative_to : str or Path
        The folder that the path is relative to, or a file in it, such as a test's ``__file__``.

    Raises
    ------
    RunnerError
        ``triton-missing``.
    UsageError
        ``triton-no-function``.
    """

    def __init__(
        self, function: Callable[..., Any] | str, *, relative_to: str | Path = "."
    ) -> None:
        if isinstance(function, str):
            base = Path(relative_to)
            function = _function_of(function, base.parent if base.is_file() else base)
        self.function = function
        self.name = getattr(self.function, "__name__", "op")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the host function and return its result.

        Raises
        ------
        ValidationError
            A kernel reads or writes outside of all tensors, or leaves output elements unwritten.
        """
        returned, found = self.run(*args, **kwargs)
        if found:
            raise ValidationError(f"{self.name}: " + "; ".join(f.message for f in found), found)
        return returned

    def run(self, *args: Any, seed: int = 0, **kwargs: Any) -> tuple[Any, list[Failure]]:
        """Call the host function; return its result, and the violations found in the kernels.

        Parameters
        ----------
        seed : int
            Decides the order in which the programs of a grid run.
        """
        interpreter = _interpreter()
        given = [_tensor(value) for value in args]
        by_name = {name: _tensor(value) for name, value in kwargs.items()}
        copies = [_copied(value) for value in given]
        named_copies = {name: _copied(value) for name, value in by_name.items()}
        try:
            with interpreter.running(seed):
                returned = self.function(*given, **by_name)
        except Exception as error:
            raise plain_error(error) from None
        found = interpreter.failures()
        if interpreter.device.made_uninitialised:
            outputs = outputs_by_name(returned)
            if suspicious(outputs):
                found += unwritten(outputs, self._again(seed, copies, named_copies))
        return returned, found

    def _again(self, seed: int, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call the host function a second time; return its outputs, or None if it fails.

        Uninitialised memory is filled with other values than in the first call.
        Therefore, elements that are never written differ between the outputs of the two calls.
        """
        try:
            with _interpreter().running(seed, run=1):
                return outputs_by_name(self.function(*args, **kwargs))
        except Exception:
            return None

    def check(
        self,
        inputs: Inputs,
        reference: Callable[..., Any] | Any,
        *,
        atol: float | None = None,
        rtol: float | None = None,
        precision: str = TENSOR_CORE,
        seed: int = 0,
        raise_on_failure: bool = True,
    ) -> ValidationResult:
        """Judge the host function's output on the given inputs.

        Parameters
        ----------
        inputs : mapping of name to array or tensor, or sequence of them
            The values of a mapping are passed by name if the function has parameters of these
            names; else the mapping is passed as one dict. A sequence is passed in order.
        reference : callable, or array
            A function of numpy arrays, with floats in float64; or the expected output itself.
        atol, rtol : float, optional
            Used instead of the default tolerance. The default is measured on the reference if it
            can be called; else it is the documented tolerance of the output's dtype.
        precision : str
            Which values the kernel may round: ``tensor-core``, ``float32`` or ``input``; see
            ``docs/oracle.md``.

        Raises
        ------
        ValidationError
            The output did not pass, and `raise_on_failure` is true.
        """
        before = {name: array.copy() for name, array in _ADAPTER.arrays(inputs).items()}
        tensors = {n: v if isinstance(v, PLAIN) else _tensor(v) for n, v in named(inputs).items()}
        run = caller(self._runner(seed), inputs)
        returned, found = run(tensors)
        expected, asked = reference, None
        if callable(reference):
            asked = reference_of(reference, lambda f, arrays: caller(f, inputs)(arrays))
            expected = caller(reference, inputs)(widened(before))
        return compare(
            returned, expected, inputs=before, op_name=self.name, seed=seed, atol=atol, rtol=rtol,
            found=tuple(found), raise_on_failure=raise_on_failure, reference=asked,
            precision=checked_precision(precision) or TENSOR_CORE,
        )  # fmt: skip

    def _runner(self, seed: int) -> Callable[..., Any]:
        """Return `run` with `seed` fixed, and with the host function's signature."""

        @functools.wraps(self.function)
        def run(*args: Any, **kwargs: Any) -> Any:
            return self.run(*args, seed=seed, **kwargs)

        return run


def _tensor(value: Any) -> Any:
    """Convert arrays, also in mappings, to tensors with their own memory; keep other values."""
    if isinstance(value, np.ndarray):
        return _ADAPTER.from_numpy(value)
    if isinstance(value, Mapping):
        return {name: _tensor(member) for name, member in value.items()}
    return value


def _copied(value: Any) -> Any:
    """Copy tensors, also those in mappings; return everything else unchanged."""
    if isinstance(value, Mapping):
        return {name: _copied(member) for name, member in value.items()}
    if not hasattr(value, "detach"):
        return value
    copy = value.detach().clone()
    return copy.requires_grad_() if value.requires_grad else copy


def load(program: Callable[..., Any] | str, *, relative_to: str | Path = ".") -> TritonOp:
    """Return a `TritonOp` of a function in a file.

    For example: ``load("kernels/softmax.py:run", relative_to=__file__)``.
    """
    return TritonOp(program, relative_to=relative_to)
