"""Triton's own interpreter, made to check every memory access of the kernels that it runs."""

from __future__ import annotations

import importlib
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from gpuemu_flow.errors import Problem, RunnerError
from gpuemu_flow.runners.triton_bfloat16 import Bfloat16
from gpuemu_flow.runners.triton_builder import CheckedBuilder, Language
from gpuemu_flow.runners.triton_device import CAPABILITY, CpuDevice, CpuDriver, Patch, patched
from gpuemu_flow.runners.triton_libdevice import Libdevice
from gpuemu_flow.runners.triton_memory import ZONE, Memory, Region
from gpuemu_flow.types import Failure

SWITCH = "TRITON_INTERPRET"
ORDER = "GPUEMU_TRITON_ORDER"
"""``sequential`` runs the programs of a grid in their order; else they are shuffled."""
CONFIGURATION = "GPUEMU_TRITON_CONFIG"
"""Which configuration of an autotuned kernel runs: its place in the list, from 0."""
_ALIGNMENT = 128


def _package(name: str) -> ModuleType:
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


class Interpreter:
    """Runs host functions of Triton kernels on the CPU.

    Kernels of modules that are imported inside `running` are interpreted ones. Where Triton itself
    was imported before, without `SWITCH`, see `modules_with_kernels`.

    Raises
    ------
    RunnerError
        ``triton-missing`` without torch or triton.
    """

    def __init__(self) -> None:
        self.torch = _package("torch")
        self._triton = _package("triton")
        self._interpreter = _package("triton.runtime.interpreter")
        self._compiled = _package("triton.runtime.jit").JITFunction
        self.memory = Memory()
        self.device = CpuDevice(self.torch, self._share)
        self._builder = CheckedBuilder(self._interpreter, self.memory)
        self._bfloat16 = Bfloat16(self._interpreter)
        self._libdevice = Libdevice(self._interpreter)
        self._language = Language(self._interpreter._patch_lang)
        self._executor = _executor_class(self)
        self._serial = itertools.count()
        self._seed = 0
        self._alive: list[Any] = []

    @contextmanager
    def running(self, seed: int = 0) -> Iterator[None]:
        """Host code, and the import of its modules, sees a GPU; kernels are interpreted.

        Parameters
        ----------
        seed : int
            Decides the order in which the programs of a grid run.
        """
        self.memory.forget()
        self._alive.clear()
        self.device.made_uninitialised = False
        self._seed, self._serial = seed, itertools.count()
        with ExitStack() as stack:
            stack.enter_context(_switched_on())
            stack.enter_context(np.errstate(all="ignore"))
            stack.enter_context(patched(self._patches()))
            stack.enter_context(self._driver())
            stack.enter_context(self.device.on())
            yield

    def failures(self) -> list[Failure]:
        """What kernels touched outside of all tensors in the latest `running`."""
        return self.memory.failures()

    def is_kernel(self, value: object) -> bool:
        """Whether a value is a kernel that was compiled for a GPU instead of interpreted."""
        # Not isinstance, which asks the value for its class: some have surprising answers.
        return issubclass(type(value), self._compiled)

    def interpreted(self, kernel: Any) -> Any:
        """The interpreted form of a compiled kernel."""
        return self._interpreter.InterpretedFunction(kernel.fn)

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

        def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            if warmup:
                return _Compiled(kernel, kwargs)
            return original(kernel, *args, grid=grid, warmup=False, **kwargs)

        def bench(tuner: Any, *args: Any, config: Any, **meta: Any) -> list[float]:
            wanted = int(os.environ.get(CONFIGURATION, "0")) % len(tuner.configs)
            # The fastest one is taken: the wanted one, else the first that is left after pruning.
            return [float(config is not tuner.configs[wanted])] * 3

        return [
            (self._interpreter, "GridExecutor", self._executor),
            (function, "run", run),
            (self._interpreter, "_patch_lang", self._language.patch),
            (autotuner, "_bench", bench),
            *self._builder.patches(),
            *self._bfloat16.patches(),
            *self._libdevice.patches(),
        ]

    @contextmanager
    def launch(self, executor: Any, arguments: list[tuple[str, Any]]) -> Iterator[None]:
        """One launch: its tensors are what the kernel may touch."""
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
def _switched_on() -> Iterator[None]:
    before = os.environ.get(SWITCH)
    os.environ[SWITCH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SWITCH]
        else:
            os.environ[SWITCH] = before


class _Compiled:
    """What `warmup` gives: a kernel of modest needs."""

    n_regs = 32
    n_spills = 0

    def __init__(self, kernel: Any, kwargs: dict[str, Any]) -> None:
        self._kernel = kernel
        self._constants = {k: v for k, v in kwargs.items() if k in kernel.arg_names}
        self.metadata = type("Metadata", (), {"shared": 1024, "num_warps": 4, "name": "kernel"})()

    def _init_handles(self) -> None: ...

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            given = self._kernel.arg_names[: len(args)]
            left = {k: v for k, v in self._constants.items() if k not in given}
            self._kernel.run(*args, grid=grid, warmup=False, **{**left, **kwargs})

        return launch


def _span(tensor: Any) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    start = storage.data_ptr()
    return start, start + storage.nbytes()


def _executor_class(owner: Interpreter) -> Any:
    module: Any = owner._interpreter

    class CheckedExecutor(module.GridExecutor):  # type: ignore[misc]
        """Runs a grid on copies of its tensors that have room round them."""

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            self._stack = ExitStack()
            with self._stack:
                return super().__call__(*args, **kwargs)

        def _init_args_hst(self, args_dev: Any, kwargs: Any) -> Any:
            # Entered only now, for the grid and the hooks before are the host's own code.
            args, named = super()._init_args_hst(args_dev, kwargs)
            given = [*zip(self.arg_names, args, strict=False), *named.items()]
            tensors = [(name, tensor) for name, value in given for tensor in _tensors(value)]
            copies: dict[int, Any] = {}
            for _, tensor in tensors:
                _move_between_zones(owner.torch, tensor, copies)
            self._stack.enter_context(owner.launch(self, tensors))
            return args, named

    return CheckedExecutor


def _tensors(value: Any) -> Iterator[Any]:
    """Tensors in one argument: itself, the base of a descriptor, the members of a tuple."""
    if isinstance(value, tuple):
        for member in value:
            yield from _tensors(member)
    elif hasattr(value, "untyped_storage"):
        yield value
    elif hasattr(value, "base"):  # a descriptor, or a tensor under another element type
        yield from _tensors(value.base)


def _move_between_zones(torch: Any, tensor: Any, copies: dict[int, Any]) -> None:
    """Give a tensor's storage other memory, with nothing near it; once for each storage."""
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


def modules_with_kernels(interpreter: Interpreter) -> list[Patch]:
    """Kernels of imported modules that were compiled for a GPU, with their interpreted forms."""
    found: list[Patch] = []
    for module in list(sys.modules.values()):
        for name, value in list(vars(module).items()) if isinstance(module, ModuleType) else ():
            if interpreter.is_kernel(value):
                found.append((module, name, interpreter.interpreted(value)))
            elif type(value).__module__ == "triton.runtime.autotuner":
                found += _inside(value, interpreter)
    return found


def _inside(wrapper: Any, interpreter: Interpreter) -> list[Patch]:
    """The kernel in an autotuner, or in heuristics round one."""
    while hasattr(wrapper, "fn"):
        if interpreter.is_kernel(wrapper.fn):
            return [(wrapper, "fn", interpreter.interpreted(wrapper.fn))]
        wrapper = wrapper.fn
    return []
