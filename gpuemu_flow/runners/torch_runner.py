"""Run functions and modules of PyTorch on the CPU, as if there were a GPU."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from gpuemu_flow.errors import FlowError, Problem, RunnerError
from gpuemu_flow.numerics.dtypes import ML_DTYPES_NAMES, dtype_name
from gpuemu_flow.runners.api import DEFAULT_OUTPUT, Program, op_error
from gpuemu_flow.runners.argument_changes import ArgumentRecord
from gpuemu_flow.runners.gradient_calls import GradientRunner
from gpuemu_flow.runners.grouping import changed_arguments
from gpuemu_flow.runners.imports import load_function
from gpuemu_flow.runners.torch_gradients import TorchGradients
from gpuemu_flow.runners.torch_modules import ModuleCall, module_caller
from gpuemu_flow.runners.triton_device import CpuDevice
from gpuemu_flow.runners.triton_provenance import Provenance
from gpuemu_flow.runners.triton_unwritten import suspicious, unwritten
from gpuemu_flow.runners.watch import Watch
from gpuemu_flow.types import DTYPES, Failure

Inputs = Mapping[str, np.ndarray]
_NO_ARRAYS = (
    "it gets torch tensors, for its `kind` or a `framework` says so: leave out the conversion, or "
    'write { kind = "callable", ... } to get numpy arrays'
)
_MOST_CALLED_BETWEEN = 1 << 20
"""Maximum size in bytes of inputs for another forward pass before the backward pass."""
_MOST_COPIED = 1 << 26
"""Maximum size in bytes of inputs that are copied so that a call can be repeated."""


class TorchHost(Protocol):
    """Interface of the environments in which a function of tensors runs."""

    torch: Any
    device: CpuDevice

    def running(self, seed: int = 0, run: int = 0) -> AbstractContextManager[None]:
        """Make host code and its imports see a GPU inside the context."""

    def failures(self) -> list[Failure]:
        """Return the failures that were found in the latest context of `running`."""


def framework(package: str, extra: str) -> ModuleType:
    """Import a framework; raise RunnerError ``framework-missing`` if that fails."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        text = f"programs of kind {extra!r} need {package}, which cannot be imported: {error}"
        hint = f"pip install 'gpuemu-flow[{extra}]'"
        raise RunnerError(Problem("framework-missing", text, hint)) from None


class PlainTorch:
    """PyTorch on the CPU that pretends to have a GPU; see `CpuDevice`.

    Raises RunnerError: ``framework-missing`` without torch.
    """

    def __init__(self) -> None:
        self.torch: Any = framework("torch", "torch")
        self.device = CpuDevice(self.torch, lambda _: None)

    @contextmanager
    def running(self, seed: int = 0, run: int = 0) -> Iterator[None]:
        """Make host code see a GPU inside the context.

        `run` selects the values that fill memory when it is allocated without initial values.
        """
        self.device.made_uninitialised, self.device.run = False, run
        self.device.new.clear()
        with self.device.on():
            yield

    def failures(self) -> list[Failure]:
        """Return an empty list, since no kernel is watched."""
        return []


def as_torch(torch: Any, array: np.ndarray) -> Any:
    """Return a torch tensor on an array's memory, or on a copy if torch cannot use the memory.

    Memory that is read-only or has negative strides is copied. Axes of stride 0 are kept: the
    tensor is then an expanded one.
    """
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        strides = zip(array.shape, array.strides, strict=True)
        once = tuple(slice(0, 1 if size and not stride else None) for size, stride in strides)
        return _on_memory(torch, array[once].copy(order="K")).expand(array.shape)
    return _on_memory(torch, array)


def _on_memory(torch: Any, array: np.ndarray) -> Any:
    name = dtype_name(array.dtype) or ""
    if name in ML_DTYPES_NAMES:
        words = array.view(np.uint8 if DTYPES[name].itemsize == 1 else np.int16)
        return torch.from_numpy(words).view(getattr(torch, name))
    return torch.from_numpy(array)


def with_arrays(value: Any, convert: Callable[[np.ndarray], Any]) -> Any:
    """Return a value in which `convert` has replaced each array, even in mappings and lists."""
    if isinstance(value, np.ndarray):
        return convert(value)
    if isinstance(value, list):
        return [with_arrays(member, convert) for member in value]
    if isinstance(value, Mapping):
        return {name: with_arrays(member, convert) for name, member in value.items()}
    return value


def with_tensors(torch: Any, value: Any, convert: Callable[[Any], Any]) -> Any:
    """Return a value in which `convert` has replaced each tensor, even in mappings and lists."""
    if isinstance(value, torch.Tensor):
        return convert(value)
    if isinstance(value, list):
        return [with_tensors(torch, member, convert) for member in value]
    if isinstance(value, Mapping):
        return {name: with_tensors(torch, member, convert) for name, member in value.items()}
    return value


def seed_of_call() -> int:
    """Return the seed that numpy's global generator got for this call, without drawing from it."""
    state: Any = np.random.get_state()
    return int(state[1][0])


class TorchRunner(GradientRunner):
    """Calls a function with torch tensors that share the memory of the inputs.

    Raises OpError: ``op-not-loadable``, ``framework-missing``, ``triton-missing``, ``op-
    signature``.
    """

    def __init__(self, program: Program) -> None:
        try:
            self._host = self._make_host(program)
        except RunnerError as failed:
            raise op_error(failed) from None
        self._found: list[Failure] = []
        self._bypassed: list[Failure] = []
        self._argument_changes: list[Failure] = []
        self._program_outputs = program.output_names
        self._module: ModuleCall | None = None
        self.printed = ""
        self._run = 0
        with self._host.running():
            function = self._load(program)
        super().__init__(program, self._on_torch(function))

    def _make_host(self, program: Program) -> TorchHost:
        return PlainTorch()

    def _load(self, program: Program) -> Callable[..., Any]:
        if program.argv:
            self._module = module_caller(self._host.torch, load_function(program), program.argv[0])
            return self._module
        return load_function(program)

    def _learning(self, host: Callable[..., Any], given: Any, named: Any) -> tuple[Any, Any]:
        """Call the program; return the result, and the parameters that required gradients.

        These are parameters of the program's module. There are none if the program is a function.
        """
        if self._module is None:
            return self._called(host, given, named), {}
        self._module.learning = True
        try:
            return self._called(host, given, named), self._module.parameters
        finally:
            self._module.learning = False

    def _on_torch(self, host: Callable[..., Any]) -> Callable[..., Any]:
        torch = self._host.torch
        convert = functools.partial(as_torch, torch)

        def plain(args: Sequence[Any], kwargs: Mapping[str, Any], seed: int) -> Any:
            torch.default_generator.manual_seed(seed)
            given = [with_arrays(value, convert) for value in args]
            named = {name: with_arrays(value, convert) for name, value in kwargs.items()}
            record = ArgumentRecord(self._program, given, named)
            result = self._called(host, given, named)
            if not self._run:
                self._argument_changes = record.failures()
            self._look_who_wrote(result)
            return result

        @functools.wraps(host)
        def run(*args: Any, **kwargs: Any) -> Any:
            call, seed = self._with_gradients, seed_of_call()
            with self._host.running(seed, self._run):
                if call is None:
                    return plain(args, kwargs, seed)
                arrays = call.named(args, kwargs)
                # Gradients are computed at the present values of the inputs.
                taken = TorchGradients(torch, call, changed_arguments(self._program), convert)
                tensors = {name: taken.argument(name, value) for name, value in arrays.items()}
                if call.wanted.plain:
                    result = plain(args, kwargs, seed)
                    call.keep(self._plain(result, arrays))
                call.draw_again()
                torch.default_generator.manual_seed(seed)
                given, named = call.replaced(args, kwargs, tensors)
                self.hint = call.hint
                result, parameters = self._learning(host, given, named)
                taken.add_parameters(parameters)
                outputs = self._values(result, tensors)
                if call.wanted.plain and self._module is None:
                    self._call_between(host, given, named)
                call.took(outputs, taken.of(outputs))
                if not self._run:
                    self._argument_changes += taken.changed
                self.hint = self._usual_hint
                return None

        return run

    def _call_between(
        self, host: Callable[..., Any], given: Sequence[Any], named: Mapping[str, Any]
    ) -> None:
        """Call the program with other values between the judged forward and backward passes.

        A model may use a layer twice before its backward pass. A faulty layer stores values for its
        backward pass in a place that all calls share. The second call then overwrites the values of
        the first, and the gradients are wrong. The call made here reveals such a layer, since it
        has the same effect. If the program fails on the other values, this is ignored.
        """
        torch = self._host.torch

        def halved(tensor: Any) -> Any:
            if not (tensor.is_floating_point() or tensor.is_complex()):
                return tensor.clone()
            return (tensor.detach() / 2).requires_grad_(tensor.requires_grad)

        tensors = [value for value in (*given, *named.values()) if isinstance(value, torch.Tensor)]
        if sum(tensor.nbytes for tensor in tensors) > _MOST_CALLED_BETWEEN:
            return
        with torch.random.fork_rng(devices=[]), contextlib.suppress(Exception):
            others = [with_tensors(torch, value, halved) for value in given]
            host(*others, **{n: with_tensors(torch, v, halved) for n, v in named.items()})

    def _called(
        self, host: Callable[..., Any], given: Sequence[Any], named: Mapping[str, Any]
    ) -> Any:
        try:
            return host(*given, **named)
        except TypeError as error:
            if "ndarray" in str(error):  # raised by torch.from_numpy for a tensor
                self.hint = _NO_ARRAYS
            raise

    def _look_who_wrote(self, result: Any) -> None:
        """Record a failure for each output that a library, and not a kernel, wrote."""
        provenance: Provenance | None = getattr(self._host, "provenance", None)
        if provenance is not None and not self._run:
            names = self._program_outputs or (DEFAULT_OUTPUT,)
            self._bypassed = provenance.failures(result, names)

    def call(self, inputs: Inputs, watch: Watch) -> dict[str, np.ndarray]:
        """Return the outputs by name; see `CallableRunner.call`."""
        self._found, self._bypassed, self._argument_changes, self._run = [], [], [], 0
        copies = _copied(inputs)
        try:
            outputs = super().call(inputs, watch)
        except FlowError as error:
            raise op_error(error) from None
        self._found = [*self._argument_changes, *self._bypassed, *self._host.failures()]
        self.printed = getattr(self._host, "printed", "")
        if self._host.device.made_uninitialised and suspicious(outputs):
            again = self._again(copies, watch) if copies is not None else None
            self._found += unwritten(outputs, again)
        return outputs

    def _again(self, copies: Inputs, watch: Watch) -> dict[str, np.ndarray] | None:
        """Repeat the call on `copies` of its inputs; return None if it fails.

        Memory that is allocated without initial values is filled with other values than in the
        first call. Output elements that the program leaves unwritten therefore change.
        """
        self._run = 1
        try:
            return super().call(copies, watch)
        except Exception:
            return None

    def violations(self) -> list[Failure]:
        """Return violations of the program and its kernels in the latest call."""
        return self._found


def _copied(inputs: Inputs) -> Inputs | None:
    arrays = [value for value in inputs.values() if isinstance(value, np.ndarray)]
    if sum(array.nbytes for array in arrays) > _MOST_COPIED:
        return None
    return {
        name: value.copy(order="K") if isinstance(value, np.ndarray) else value
        for name, value in inputs.items()
    }
