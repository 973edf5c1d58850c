"""Triton's own interpreter, extended to check every memory access of a kernel."""

from __future__ import annotations

import ctypes
import functools
import importlib
import inspect
import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from gpuemu_flow.emulator.host.torch_cuda import CAPABILITY, Patch
from gpuemu_flow.model.errors import Problem, RunnerError
from gpuemu_flow.model.types import Failure
from gpuemu_flow.workers.triton_arithmetic import Arithmetic, Bfloat16, Libdevice
from gpuemu_flow.workers.triton_device import CpuDevice, CpuDriver, patched
from gpuemu_flow.workers.triton_memory import (
    READ,
    WRITE,
    ZONE,
    Memory,
    OutOfBoundsError,
    Provenance,
    Region,
    dispatch_mode,
    meant_by,
)
from gpuemu_flow.workers.triton_types import Values

SWITCH = "TRITON_INTERPRET"
ORDER = "GPUEMU_TRITON_ORDER"
"""Variable that is ``sequential`` to run the programs of a grid in order, not shuffled."""
CONFIGURATION = "GPUEMU_TRITON_CONFIG"
"""Environment variable with the index, from 0, of the configuration for autotuned kernels."""
_ALIGNMENT = 128


def package(name: str) -> ModuleType:
    """Import torch or triton; raise RunnerError ``triton-missing`` if that fails."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise RunnerError(
            Problem(
                "triton-missing",
                f"Triton ops need {name.partition('.')[0]}, which cannot be imported: {error}",
                "pip install 'gpuemu-flow[torch,triton]'",
            )
        ) from None


def _dot_sizes() -> Callable[..., Any] | None:
    """Return Triton's function that gives the smallest block sizes of ``tl.dot`` on NVIDIA GPUs.
    The result is None if the installed version of Triton has no such function."""
    try:
        compiler: Any = importlib.import_module("triton.backends.nvidia.compiler")
        sizes: Callable[..., Any] = compiler.min_dot_size(None)
    except (ImportError, AttributeError, TypeError):  # another version of Triton
        return None
    return sizes


class Tuning:
    """The launches by which an autotuner compares configurations, before the launch that counts. A
    kernel that adds to what it finds, in place or by atomics, then does so once for each of them,
    unless the autotuner's ``reset_to_zero`` or ``restore_value`` names the buffer."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._repeatable: set[Any] = set()
        self._tuned: list[Any] = []

    def begin(self) -> None:
        """Let autotuners tune again, as they do at the first call in a process."""
        for tuner in self._tuned:
            tuner.cache.clear()
        self._tuned.clear()

    def try_out(self, tuner: Any, args: tuple[Any, ...], config: Any, meta: Any) -> str:
        """Launch twice, as Triton does many times; undo it if the second launch changes nothing.
        Else return a sentence for the user."""
        if tuner in self._repeatable:
            return ""
        given = {**meta, **config.all_kwargs()}
        named = {**tuner.nargs, **given}
        before = self._contents(named)
        after: list[dict[str, tuple[Any, bytes]]] = []
        for _ in range(2):
            if config.pre_hook:
                config.pre_hook(named)
            tuner.pre_hook(named)
            tuner.fn.run(*args, **given)
            tuner.post_hook(named, exception=None)
            after.append(self._contents(named))
        changed = [name for name in before if after[0][name][1] != after[1][name][1]]
        if changed:
            self._tuned.append(tuner)
            return (
                f"the autotuner launched {tuner.base_fn.__name__} twice before, and each launch "
                f"changes {' and '.join(changed)}: name it in reset_to_zero or restore_value\n"
            )
        self._repeatable.add(tuner)
        for memory, content in before.values():
            memory[...] = np.frombuffer(content, np.uint8)
        return ""

    def _contents(self, named: Mapping[str, Any]) -> dict[str, tuple[Any, bytes]]:
        found: dict[str, tuple[Any, bytes]] = {}
        with self._torch._C.DisableTorchFunction():
            for name, value in named.items():
                base = getattr(value, "base", value)
                if isinstance(base, self._torch.Tensor) and base.untyped_storage().nbytes():
                    storage = base.untyped_storage()
                    start, size = storage.data_ptr(), storage.nbytes()
                    memory = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(start))
                    found[name] = memory, memory.tobytes()
        return found


class Interpreter:
    """Runs host functions of Triton kernels on the CPU. Inside `running`, each kernel is an object
    of the same type as on a machine with a GPU, so that wrappers find the attributes that they
    expect. Only a launch or a call is interpreted. Raises RunnerError: ``triton-missing`` without
    torch or triton."""

    def __init__(self, *, required: bool = False, forbid: tuple[str, ...] = ()) -> None:
        self.torch = package("torch")
        self.provenance: Provenance | None = None
        if required or forbid:
            self.provenance = Provenance(self.torch, required, meant_by(forbid))
        self._triton = package("triton")
        self._interpreter = package("triton.runtime.interpreter")
        self._compiled = package("triton.runtime.jit").JITFunction
        self.memory = Memory()
        self._tuning, self.printed = Tuning(self.torch), ""
        self.device = CpuDevice(self.torch, self._share)
        if self.provenance is not None:
            self.memory.on_store = self.provenance.stored
            self.device.provenance = self.provenance
        self._builder = CheckedBuilder(self._interpreter, self.memory)
        self._bfloat16 = Bfloat16(self._interpreter)
        self._arithmetic = Arithmetic(self._interpreter, _dot_sizes())
        self._libdevice = Libdevice(self._interpreter)
        self.values = Values(self._interpreter, self.torch)
        self.options: dict[str, Any] = {}
        self._language = Language(self._interpreter._patch_lang)
        self._parts = (
            self._arithmetic.patches,
            self._bfloat16.patches,
            self._builder.patches,
            self._libdevice.patches,
            self.values.patches,
            self._patches,
        )
        self._executor = _executor_class(self)
        self._serial = itertools.count()
        self._seed = 0
        self._alive: list[Any] = []
        self._forms: dict[Any, Any] = {}

    @contextmanager
    def running(self, seed: int = 0, run: int = 0) -> Iterator[None]:
        """Inside the context, make host code and its imports see a GPU, and interpret kernels."""
        self.memory.forget()
        self._tuning.begin()
        self.printed = ""
        self._alive.clear()
        self.device.made_uninitialised, self.device.run = False, run
        self._seed, self._serial = seed, itertools.count()
        with ExitStack() as stack:
            stack.enter_context(_switched_off())
            stack.enter_context(np.errstate(all="ignore"))
            for part in self._parts:  # each calls the replacements of those before it
                stack.enter_context(patched(part()))
            stack.enter_context(self._driver())
            stack.enter_context(self.device.on())
            if self.provenance is not None:
                self.provenance.begin()
                stack.enter_context(dispatch_mode(self.provenance))
            yield

    def failures(self) -> list[Failure]:
        """List the accesses by which kernels read or wrote outside of all tensors. Only accesses
        made since `running` was last entered are listed."""
        return self.memory.failures()

    def interpreted(self, kernel: Any) -> Any:
        """Return the interpreted form of a kernel, which is the same object at each call."""
        form = self._forms.get(kernel.fn)
        if form is None:
            form = self._interpreter.InterpretedFunction(kernel.fn)
            self._forms[kernel.fn] = form
        return form

    def _share(self, tensor: Any) -> None:
        storage = tensor.untyped_storage()
        start = storage.data_ptr()
        self._alive.append(storage)
        self.memory.shared.append(Region("a tensor", start, start + storage.nbytes()))

    @contextmanager
    def _driver(self) -> Iterator[None]:
        config = importlib.import_module("triton.runtime.driver").driver
        target = importlib.import_module("triton.backends.compiler").GPUTarget(
            "cuda", CAPABILITY[0] * 10 + CAPABILITY[1], 32
        )
        before = getattr(config, "_active", None)
        config.set_active(CpuDriver(self.torch, target))
        try:
            yield
        finally:
            config.set_active(before)

    def _patches(self) -> list[Patch]:
        autotuner = importlib.import_module("triton.runtime.autotuner").Autotuner
        function = self._interpreter.InterpretedFunction
        original = function.run

        def run(form: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            return launch(form, form.kwargs, *args, grid=grid, warmup=warmup, **kwargs)

        def run_compiled(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            options = {"do_not_specialize": kernel.do_not_specialize}
            form = self.interpreted(kernel)
            form.pre_run_hooks = kernel.pre_run_hooks
            return launch(form, options, *args, grid=grid, warmup=warmup, **kwargs)

        def launch(
            form: Any, options: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any
        ) -> Any:
            if not warmup:
                self.options = options
                original(form, *args, grid=grid, warmup=False, **kwargs)
            return Compiled(form, args, kwargs)

        def call(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            return self.interpreted(kernel)(*args, **kwargs)

        def bind(kernel: Any, instance: Any, owner: Any = None) -> Any:
            if isinstance(instance, self._interpreter.tl.core.base_value):
                return functools.partial(self.interpreted(kernel), instance)
            return kernel

        def bench(tuner: Any, *args: Any, config: Any, **meta: Any) -> list[float]:
            wanted = int(os.environ.get(CONFIGURATION, "0")) % len(tuner.configs)
            if config is tuner.configs[wanted]:
                self.printed += self._tuning.try_out(tuner, args, config, meta)
            # Triton takes the fastest: the wanted configuration, or if that was pruned, the first.
            return [float(config is not tuner.configs[wanted])] * 3

        return [
            (self._interpreter, "GridExecutor", self._executor),
            (function, "run", run),
            (self._compiled, "run", run_compiled),
            (self._compiled, "__call__", call),
            (self._compiled, "__get__", bind),
            (self._interpreter, "_patch_lang", self._language.patch),
            (autotuner, "_bench", bench),
        ]

    @contextmanager
    def launch(self, executor: Any, arguments: list[tuple[str, Any]]) -> Iterator[None]:
        """Prepare for one launch of a kernel, which the caller makes inside the context. The kernel
        may access only the tensors in `arguments`."""
        code = executor.fn.__code__
        regions = [Region(name, *_span(tensor)) for name, tensor in arguments]
        self.memory.begin(executor.fn.__name__, code.co_filename, regions)
        self._language.begin()
        self._builder.order = None
        if os.environ.get(ORDER) != "sequential":
            self._builder.order = np.random.default_rng([self._seed, next(self._serial)])
        with self.torch._C.DisableTorchFunction():
            yield


@contextmanager
def _switched_off() -> Iterator[None]:
    """Switch off Triton's interpreter mode inside the context. In this mode, Triton makes kernel
    objects of another type, which wrappers reject."""
    before = os.environ.pop(SWITCH, None)
    try:
        yield
    finally:
        if before is not None:
            os.environ[SWITCH] = before


def _span(tensor: Any) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    start = storage.data_ptr()
    return start, start + storage.nbytes()


def _executor_class(owner: Interpreter) -> Any:
    module: Any = owner._interpreter

    class CheckedExecutor(module.GridExecutor):  # type: ignore[misc]
        """Runs a grid on copies of the launch's tensors, each of which lies between guard zones."""

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            names = inspect.signature(self.fn).parameters
            kwargs = {name: value for name, value in kwargs.items() if name in names}
            given = inspect.getcallargs(self.fn, *args, **kwargs)
            # The grid is the host's own code: it gets what the host gave.
            grid: Any = self.grid
            self.grid: Any = tuple(grid(given) if callable(grid) else grid)
            self._stack = ExitStack()
            provenance = owner.provenance
            with self._stack, provenance.quietly() if provenance else nullcontext():
                done = super().__call__(**owner.values.typed(self.fn, owner.options, given))
            if provenance is not None:
                with provenance.quietly():
                    tensors = [t for value in given.values() for t in _tensors(value)]
                    provenance.launched({id(s): s for s in map(_storage, tensors)}.values())
            return done

        def _init_args_hst(self, args_dev: Any, kwargs: Any) -> Any:
            # Entered only now, for the grid and the hooks before are the host's own code.
            args, named = super()._init_args_hst(args_dev, kwargs)
            given = [*zip(self.arg_names, args, strict=False), *named.items()]
            tensors = [(name, tensor) for name, value in given for tensor in _tensors(value)]
            copies: dict[int, Any] = {}
            for _, tensor in tensors:
                _move_between_zones(owner.torch, tensor, copies)
            owner.memory.origins = {
                moved.untyped_storage().data_ptr(): start for start, moved in copies.items()
            }
            self._stack.enter_context(owner.launch(self, tensors))
            return args, named

    return CheckedExecutor


def _tensors(value: Any) -> Iterator[Any]:
    """Yield the tensors in an argument, which may be a tensor, a descriptor or a tuple."""
    if isinstance(value, tuple):
        for member in value:
            yield from _tensors(member)
    elif hasattr(value, "untyped_storage"):
        yield value
    elif hasattr(value, "base"):  # a descriptor, or a reinterpreted tensor
        yield from _tensors(value.base)


def _storage(tensor: Any) -> Any:
    return tensor.untyped_storage()


def _move_between_zones(torch: Any, tensor: Any, copies: dict[int, Any]) -> None:
    """Give a tensor a copy of its storage that lies between guard zones. Tensors that share a
    storage get the same copy, which `copies` keeps by the storage's address."""
    storage = tensor.untyped_storage()
    start, size = storage.data_ptr(), storage.nbytes()
    if start not in copies:
        zone = max(ZONE, size)
        memory = np.empty(size + 2 * zone + _ALIGNMENT, np.uint8)
        address = memory.__array_interface__["data"][0] + zone
        offset = zone + -address % _ALIGNMENT
        between = torch.from_numpy(memory[offset : offset + size])
        between.untyped_storage().copy_(storage)
        copies[start] = between
    moved = copies[start].untyped_storage()
    tensor.set_(moved, tensor.storage_offset(), tensor.size(), tensor.stride())


# Replaced parts of Triton's interpreter: memory accesses, the grid, and the language modules.


_MAX_SHUFFLED = 1 << 22


class Language:
    """Patches Triton's language modules for the interpreter, until the end of a launch. A launch
    patches the same modules only once. Triton's interpreter alone patches them again for each call
    of a function inside a kernel, and spends most of its time on this."""

    def __init__(self, original: Callable[[Any], Any]) -> None:
        self._original = original
        self._scopes: list[Any] = []
        self._seen: set[frozenset[int]] = set()

    def begin(self) -> None:
        """Begin a launch, for which no module is patched yet."""
        self._scopes, self._seen = [], set()

    def patch(self, function: Any) -> Language:
        """Patch the language modules that a function's own module refers to; return this object."""
        values = list(function.__globals__.values())
        modules = (v for v in values if isinstance(v, ModuleType))
        key = frozenset(id(m) for m in modules if m.__name__.startswith("triton.language"))
        if key not in self._seen:
            self._seen.add(key)
            self._scopes.append(self._original(function))
        return self

    def restore(self) -> None:
        """Undo all patches of the launch."""
        for scope in reversed(self._scopes):
            if scope is not None:  # older interpreters restore nothing
                scope.restore()
        self.begin()


class CheckedBuilder:
    """The interpreter's builder, with checked memory accesses and a shuffled order of programs."""

    def __init__(self, interpreter: Any, memory: Memory) -> None:
        self._interpreter = interpreter
        self._builder = interpreter.interpreter_builder
        self._memory = memory
        self.order: np.random.Generator | None = None
        self._shape = (1, 1, 1)
        self._permutation: np.ndarray | None = None

    def patches(self) -> list[Patch]:
        """Return the replacements for methods of the interpreter's builder."""
        names = {
            "create_masked_load": self._load,
            "create_masked_store": self._store,
            "create_atomic_rmw": self._atomic,
            "create_atomic_cas": self._compare_and_swap,
            "set_grid_dim": self._set_shape,
            "set_grid_idx": self._set_place,
        }
        return [
            (self._builder, name, method(getattr(self._builder, name)))
            for name, method in names.items()
        ]

    def _kept(self, pointers: Any, mask: Any, itemsize: int, deed: str) -> Any:
        kept = self._memory.allowed(pointers.data, mask.data, itemsize, deed)
        return mask if kept is mask.data else self._interpreter.TensorHandle(kept, mask.dtype)

    def _load(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def load(pointers: Any, mask: Any, *rest: Any, **more: Any) -> Any:
            itemsize = _itemsize(pointers)
            return original(pointers, self._kept(pointers, mask, itemsize, READ), *rest, **more)

        return load

    def _store(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def store(pointers: Any, value: Any, mask: Any, *rest: Any, **more: Any) -> Any:
            kept = self._kept(pointers, mask, _itemsize(pointers), WRITE)
            return original(pointers, value, kept, *rest, **more)

        return store

    def _atomic(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def atomic(kind: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
            kept = self._kept(pointers, mask, _itemsize(pointers), WRITE)
            return original(kind, pointers, value, kept, *rest)

        return atomic

    def _compare_and_swap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compare_and_swap(pointers: Any, *rest: Any) -> Any:
            every = np.ones(pointers.data.shape, np.bool_)
            kept = self._memory.allowed(pointers.data, every, _itemsize(pointers), WRITE)
            if not kept.all():
                raise OutOfBoundsError(self._memory.failures()[-1].message)
            return original(pointers, *rest)

        return compare_and_swap

    def _set_shape(self, original: Callable[..., None]) -> Callable[..., None]:
        def set_shape(*shape: int) -> None:
            count = math.prod(shape)
            self._shape = (shape[0], shape[1], shape[2])
            shuffled = self.order is not None and 1 < count <= _MAX_SHUFFLED
            self._permutation = (
                self.order.permutation(count) if shuffled and self.order is not None else None
            )
            original(*shape)

        return set_shape

    def _set_place(self, original: Callable[..., None]) -> Callable[..., None]:
        def set_place(*place: int) -> None:
            if self._permutation is not None:
                flat = int(np.ravel_multi_index(place, self._shape))
                moved = np.unravel_index(int(self._permutation[flat]), self._shape)
                place = tuple(int(i) for i in moved)
            original(*place)

        return set_place


def _itemsize(pointers: Any) -> int:
    """Return the size in bytes of the elements that a block of pointers points to."""
    bits = int(pointers.get_element_ty().primitive_bitwidth)
    return max(1, bits // 8)


# A stand-in for the compiled kernel that a launch returns to host code.


class Compiled:
    """A stand-in for a compiled kernel that reports to use few resources, and can be launched."""

    n_regs = 32
    n_spills = 0
    function = 0

    def __init__(self, form: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._form = form
        names = form.arg_names
        self._given = {**dict(zip(names, args, strict=False)), **kwargs}
        self._given = {name: v for name, v in self._given.items() if name in names}
        self._given = {n: v for n, v in self._given.items() if not hasattr(v, "data_ptr")}
        self.name = form.fn.__name__
        self.asm: dict[str, str] = {}
        self.metadata = SimpleNamespace(
            shared=1024, num_warps=kwargs.get("num_warps", 4), num_ctas=1, name=self.name
        )

    def _init_handles(self) -> None: ...

    def _constants(self) -> list[str]:
        annotations = getattr(self._form.fn, "__annotations__", {})
        names: list[str] = self._form.arg_names
        return [name for name in names if "constexpr" in str(annotations.get(name, ""))]

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            names, constants = self._form.arg_names, self._constants()
            if len(args) == len(names) - len(constants):  # the constants are in the compiled code
                names = [name for name in names if name not in constants]
            given = dict(zip(names, args, strict=False))
            self._form.run(grid=grid, warmup=False, **{**self._given, **given, **kwargs})

        return launch
