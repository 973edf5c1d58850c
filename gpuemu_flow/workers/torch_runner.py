"""Run functions and modules of PyTorch on the CPU, as if there were a GPU."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import inspect
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from msgspec import Struct

from gpuemu_flow.model.errors import FlowError, Problem, RunnerError
from gpuemu_flow.model.types import DTYPES, LAYOUTS, Failure, FailureKind
from gpuemu_flow.numerics.contract import PARAMETERS, parameter_name
from gpuemu_flow.numerics.dtypes import ML_DTYPES_NAMES, dtype_name
from gpuemu_flow.numerics.gradients import cotangent, gradient_name
from gpuemu_flow.numerics.layouts import describe, place
from gpuemu_flow.numerics.rng import SeededRng
from gpuemu_flow.workers.api import DEFAULT_OUTPUT, OpError, Program, RunError, op_error
from gpuemu_flow.workers.arguments import ArgumentRecord, changed_arguments, float_of_call
from gpuemu_flow.workers.callable import GradientCall, GradientRunner
from gpuemu_flow.workers.channel import Watch
from gpuemu_flow.workers.imports import load_function
from gpuemu_flow.workers.triton_device import CpuDevice
from gpuemu_flow.workers.triton_memory import Provenance, suspicious, unwritten

# Call a PyTorch function with inputs that require gradients, and run the backward pass.


class TorchGradients:
    """Makes tensors that require gradients from a call's arguments, and computes the gradients."""

    def __init__(
        self,
        torch: Any,
        call: GradientCall,
        mutates: tuple[str, ...],
        to_tensor: Callable[[np.ndarray], Any],
    ) -> None:
        self._torch = torch
        self._call = call
        self._wanted = call.wanted
        self._inputs = call.inputs
        self._names = {id(array): name for name, array in call.inputs.items()}
        self._mutates = mutates
        self._to_tensor = to_tensor
        self._leaves: dict[str, Any] = {}
        self.changed: list[Failure] = []

    def argument(self, name: str, value: Any) -> Any:
        """Convert an argument's arrays to tensors, which require gradients where requested."""
        if isinstance(value, np.ndarray):
            return self._tensor(name, value)
        if isinstance(value, list):
            return [self.argument(name, member) for member in value]
        return value

    def _tensor(self, argument: str, array: np.ndarray) -> Any:
        tensor = self._to_tensor(array)
        changes = argument in self._mutates
        if changes:
            tensor = tensor.clone()
        name = self._names.get(id(array), argument)  # complex numbers are joined of two inputs
        if name not in self._wanted.inputs:
            return tensor
        if not (tensor.is_floating_point() or tensor.is_complex()):
            return tensor
        leaf = self._leaves[name] = tensor.detach().requires_grad_()
        # PyTorch does not allow in-place changes of a leaf.
        return leaf.clone() if changes else leaf

    def add_parameters(self, parameters: Mapping[str, Any]) -> None:
        """Compute the requested gradients of a module's parameters, too. Parameters that the module
        froze during the call are left out."""
        wanted = self._wanted.inputs
        named = {parameter_name(n): w for n, w in parameters.items() if w.requires_grad}
        self._leaves |= {n: w for n, w in named.items() if PARAMETERS in wanted or n in wanted}

    def of(self, outputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run the backward pass, and return the gradients by name. A gradient that the backward
        pass does not compute is a tensor of zeros."""
        torch = self._torch
        sent = {
            name: value
            for name, value in outputs.items()
            if name not in self._wanted.apart
            and isinstance(value, torch.Tensor)
            and value.requires_grad
        }
        leaves = list(self._leaves.values())
        found: tuple[Any, ...] = (None,) * len(leaves)
        if sent and leaves:
            laid = [self._cotangent(name, value) for name, value in sent.items()]
            given = [cotangent.tensor for cotangent in laid]
            found = torch.autograd.grad(list(sent.values()), leaves, given, allow_unused=True)
            self.changed = [f for cotangent in laid for f in cotangent.failures(torch)]
        self._call.demand_parameters(self._leaves)
        if leaves:
            self._call.demand(arrives=any(gradient is not None for gradient in found))
        return {
            gradient_name(name): torch.zeros_like(leaf.detach()) if gradient is None else gradient
            for (name, leaf), gradient in zip(self._leaves.items(), found, strict=True)
        }

    def _cotangent(self, name: str, value: Any) -> LaidCotangent:
        shape = tuple(value.shape)
        steps = cotangent(name, shape, self._wanted.masks.get(name), self._inputs)
        values = steps * (1.0 - 0.5j) if value.is_complex() else steps.copy()
        tensor = self._torch.from_numpy(values).to(value.device, value.dtype)
        # The reference is differentiated by PyTorch, which does without another layout.
        layout = layout_of_case(self._inputs.values()) if self._wanted.plain else "contiguous"
        return LaidCotangent.of(self._torch, name, tensor, layout)


# Lay out the cotangents of a backward pass of PyTorch in memory, and detect writes to them.


_UNLIKE_C_ORDER = [name for name in LAYOUTS if name not in ("contiguous", "offset", "expanded")]


def layout_of_case(arrays: Iterable[np.ndarray]) -> str:
    """Return the layout of the first input that is not in C order, else ``contiguous``."""
    for array in arrays:
        strides = tuple(step // array.itemsize for step in array.strides)
        if array.flags.c_contiguous:
            continue
        for layout in _UNLIKE_C_ORDER:
            if describe(layout, array.shape) == strides:
                return layout
    return "contiguous"


class LaidCotangent(Struct, frozen=True):
    """The cotangent of one output, in some layout; the memory around its elements is NaN."""

    name: str
    tensor: Any
    memory: Any
    before: Any

    @classmethod
    def of(cls, torch: Any, name: str, values: Any, layout: str) -> LaidCotangent:
        """Make a cotangent that holds `values` in a layout."""
        shape = tuple(values.shape)
        where = place(layout, shape, 1)
        nan, device = float("nan"), values.device
        memory = torch.full((where.nbytes,), nan, dtype=values.dtype, device=device)
        tensor = memory.as_strided(shape, describe(layout, shape), where.offset)
        tensor.copy_(values)
        return cls(name, tensor, memory, memory.clone())

    def failures(self, torch: Any) -> list[Failure]:
        """Return a failure if the backward pass wrote to `memory`, else an empty list."""
        if torch.equal(self.memory.view(torch.uint8), self.before.view(torch.uint8)):
            return []
        message = (
            f"the backward pass wrote to the gradient of {self.name!r} that it was given, which "
            "other backward passes read, too"
        )
        return [Failure(FailureKind.INPUT_MODIFIED, message, self.name)]


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
    """PyTorch on the CPU that pretends to have a GPU; see `CpuDevice`. Raises RunnerError:
    ``framework-missing`` without torch."""

    def __init__(self) -> None:
        self.torch: Any = framework("torch", "torch")
        self.device = CpuDevice(self.torch, lambda _: None)

    @contextmanager
    def running(self, seed: int = 0, run: int = 0) -> Iterator[None]:
        """Make host code see a GPU inside the context. `run` selects the values that fill memory
        when it is allocated without initial values."""
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
    tensor is then an expanded one."""
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
    """Calls a function with torch tensors that share the memory of the inputs. Raises OpError:
    ``op-not-loadable``, ``framework-missing``, ``triton-missing``, ``op- signature``."""

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
            device = "cuda" if program.gpu_folder else "cpu"
            made_by = load_function(program)
            self._module = module_caller(self._host.torch, made_by, program.argv[0], device)
            return self._module
        return load_function(program)

    def _learning(self, host: Callable[..., Any], given: Any, named: Any) -> tuple[Any, Any]:
        """Call the program; return the result, and the parameters that required gradients. These
        are parameters of the program's module. There are none if the program is a function."""
        if self._module is None:
            return self._called(host, given, named), {}
        self._module.learning = True
        try:
            return self._called(host, given, named), self._module.parameters
        finally:
            self._module.learning = False

    def _on_torch(self, host: Callable[..., Any]) -> Callable[..., Any]:
        torch = self._host.torch
        convert = getattr(self._host, "tensor", None) or functools.partial(as_torch, torch)

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
        """Call the program with other values between the judged forward and backward passes. A
        model may use a layer twice before its backward pass. A faulty layer stores values for its
        backward pass in a place that all calls share. The second call then overwrites the values of
        the first, and the gradients are wrong. The call made here reveals such a layer, since it
        has the same effect. If the program fails on the other values, this is ignored."""
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
            result = host(*given, **named)
            returned = getattr(self._host, "returned", None)
            if returned is not None:
                returned(result)
            return result
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
        """Repeat the call on `copies` of its inputs; return None if it fails. Memory that is
        allocated without initial values is filled with other values than in the first call. Output
        elements that the program leaves unwritten therefore change."""
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


# Build PyTorch modules that serve as programs, once for each dtype, with weights from a seed.


_STEPS = 255
"""Largest integer factor of a weight; the other factor is a power of two."""
_RUNNING = ("running_mean", "running_var")
_OF_WEIGHTS = ("float64", "float32", "float16", "bfloat16")
_NARROW = 2
"""Minimum size of an element in bytes for computing in a dtype; narrower dtypes are only for
inputs."""


class ModuleCall(Protocol):
    """A function that calls a module with the inputs of its ``forward``."""

    learning: bool
    """True if parameters require gradients in the next calls."""
    parameters: dict[str, Any]
    """Parameters of the latest call that required gradients, by name."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module; the arguments are those of its ``forward``."""


def module_caller(
    torch: Any, made_by: Callable[..., Any], described: str, device: str = "cpu"
) -> ModuleCall:
    """Return the function that calls a module with the inputs of its ``forward``. Raises OpError:
    ``op-signature``: the class does not make a module."""
    told = json.loads(described)
    seed, shared = int(told["seed"] or 0), bool(told["shared"])
    caller = _Caller(torch, made_by, told["init"], seed, shared=shared, device=device)
    forward = caller.module(torch.float32).forward

    def call(*args: Any, **kwargs: Any) -> Any:
        dtype = _float_of(torch, (*args, *kwargs.values()))
        module = caller.module(dtype)
        # Parameters are the op's own arguments only if the reference has the same ones.
        learning = found.learning and told["shared"]
        found.parameters = caller.require_gradients(dtype) if learning else {}
        return module(*args, **kwargs)

    call.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    call.__code__ = call.__code__.replace(
        co_firstlineno=getattr(getattr(forward, "__code__", None), "co_firstlineno", 0)
    )
    found: Any = call
    found.learning, found.parameters = False, {}
    made: ModuleCall = found
    return made


class _Caller:
    """Makes modules of one `torch.nn.Module` class: one for each dtype of the calls."""

    def __init__(
        self, torch: Any, made_by: Callable[..., Any], init: Any, seed: int, *, shared: bool,
        device: str,
    ) -> None:  # fmt: skip
        self._torch = torch
        self._device = device
        self._made_by = made_by
        self._init = init
        self._seed = seed
        self._shared = shared
        self._known: dict[Any, tuple[Any, dict[str, Any]]] = {}
        self._frozen: frozenset[str] = frozenset()

    def module(self, dtype: Any) -> Any:
        """Return the module for a dtype, with its weights reset to their initial values."""
        if dtype not in self._known:
            module = self._construct(self._seed)
            if self._shared:
                self._draw(module, self._construct(self._seed + 1))
            self._frozen = frozenset(
                name for name, weight in module.named_parameters() if not weight.requires_grad
            )
            module = module.to(dtype).to(self._device).eval()
            state = {name: value.clone() for name, value in module.state_dict().items()}
            self._known[dtype] = module, state
        module, state = self._known[dtype]
        module.requires_grad_(False)
        for name, value in module.state_dict().items():
            if name in state:
                value.copy_(state[name])
        return module

    def require_gradients(self, dtype: Any) -> dict[str, Any]:
        """Make the parameters of the module for a dtype require gradients; return them by name.
        Parameters that the module itself froze stay frozen."""
        module, _ = self._known[dtype]
        found = {
            name: weight
            for name, weight in module.named_parameters()
            if name not in self._frozen and (weight.is_floating_point() or weight.is_complex())
        }
        for weight in found.values():
            weight.requires_grad_(True)
        return found

    def _construct(self, seed: int) -> Any:
        self._torch.default_generator.manual_seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)
        named = isinstance(self._init, Mapping)
        made = self._made_by(**self._init) if named else self._made_by(*self._init)
        if not isinstance(made, self._torch.nn.Module):
            name = getattr(self._made_by, "__name__", "the class")
            text = f"{name} makes a {type(made).__name__}, which is no torch.nn.Module"
            raise OpError(RunError("op-signature", text, "name a class of modules, or a function"))
        return made

    def _draw(self, module: Any, other: Any) -> None:
        """Replace the random and the constant weights of a module by weights drawn from the seed.
        `other` is the same module made with another seed. Weights that differ between the two
        modules are the random ones."""
        again = dict(_weights(other))
        with self._torch.no_grad():
            for name, weight in _weights(module):
                second = again.get(name)
                if second is None or not weight.is_floating_point() or not weight.numel():
                    continue
                mine = weight.detach().double().cpu().numpy()
                if not np.array_equal(mine, second.detach().double().cpu().numpy(), equal_nan=True):
                    drawn = _spread(weight.shape) * self._units(name, weight)
                elif float(mine.min()) == float(mine.max()):
                    drawn = _varied(float(mine.min()), self._units(name, weight))
                else:
                    continue
                weight.copy_(self._torch.from_numpy(drawn).bfloat16())

    def _units(self, name: str, weight: Any) -> np.ndarray:
        """Draw an array in the shape of a weight: multiples of 1/256 between -1 and 1. The values
        0, -1 and 1 do not occur."""
        shape = tuple(weight.shape)
        digest = hashlib.sha256(f"{self._seed} {name} {shape}".encode()).digest()
        rng = SeededRng(int.from_bytes(digest[:8], "little"))
        steps = rng.ranges(weight.numel(), -_STEPS, _STEPS + 1)
        steps[steps == 0] = 1  # where |w| or relu(w) bends, several gradients are right
        return (steps / (_STEPS + 1)).reshape(shape)


def _weights(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield each parameter and each running statistic of a norm, with its name. A parameter that is
    shared under several names is yielded once."""
    yield from module.named_parameters()
    for name, buffer in module.named_buffers():
        if name.rpartition(".")[2] in _RUNNING:
            yield name, buffer


def _spread(shape: tuple[int, ...]) -> float:
    """Return the power of two that is nearest to 1 / sqrt(number of inputs of a weight)."""
    inputs = math.prod(shape[1:]) if len(shape) > 1 else math.prod(shape)
    return 2.0 ** -round(math.log2(max(inputs, 1)) / 2)


def _varied(value: float, units: np.ndarray) -> np.ndarray:
    if not math.isfinite(value):
        return np.full(units.shape, value)
    return units / 2 if value == 0 else value * (1 + units / 2)


def _float_of(torch: Any, given: tuple[Any, ...]) -> Any:
    """Return the dtype that a module's weights need for a call with the arguments `given`. This is
    the dtype of the first float tensor or, without a float tensor, the dtype of the case. If that
    dtype is unsuitable for weights, for example float8, the result is float32."""
    for value in given:
        if isinstance(value, Mapping):
            return _float_of(torch, tuple(value.values()))
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value.dtype if value.element_size() >= _NARROW else torch.float32
    own = float_of_call()
    return getattr(torch, own) if own in _OF_WEIGHTS else torch.float32
