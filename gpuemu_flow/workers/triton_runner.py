"""Run host functions of Triton kernels on the CPU, by Triton's interpreter or the emulator."""

from __future__ import annotations

import functools
import importlib
import math
import os
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from gpuemu_flow.emulator.host.torch_cuda import Patch, shared_bytes
from gpuemu_flow.emulator.launch import (
    Argument,
    BufferArgument,
    Kernel,
    PointerArgument,
    ScalarArgument,
    load_kernel,
)
from gpuemu_flow.emulator.mutants import PtxFolder
from gpuemu_flow.emulator.tensor_maps import TensorMap
from gpuemu_flow.model.errors import FlowError, Problem, RunnerError
from gpuemu_flow.model.types import Failure
from gpuemu_flow.workers.api import MOST_PRINTED, Program
from gpuemu_flow.workers.emulated import failure_of
from gpuemu_flow.workers.imports import load_function
from gpuemu_flow.workers.torch_runner import TorchHost, TorchRunner
from gpuemu_flow.workers.triton_device import CpuDevice, CpuDriver, patched
from gpuemu_flow.workers.triton_interpreter import (
    CONFIGURATION,
    SWITCH,
    Compiled,
    Interpreter,
    Tuning,
    package,
)
from gpuemu_flow.workers.triton_memory import fill_word


def plain_error(error: BaseException) -> BaseException:
    """Return the kernel's own exception, without the interpreter's exceptions around it."""
    while type(error).__name__ == "InterpreterError" and error.__cause__ is not None:
        error = error.__cause__
    return error


class TritonRunner(TorchRunner):
    """Calls a host function with torch tensors that share the memory of the inputs. Raises OpError:
    ``op-not-loadable``, ``triton-missing``, ``op-signature``."""

    def _make_host(self, program: Program) -> TorchHost:
        """Make the emulator if ``mode = "compiled"``, else the interpreter."""
        # This process is the program's, and has not imported triton yet.
        os.environ.pop(SWITCH, None)
        if not program.argv:
            return Interpreter(required=program.require_kernel, forbid=program.forbid)

        _, arch, checks, *folder = program.argv
        exchange = PtxFolder(Path(folder[0]) if folder else None)
        return CompiledTriton(arch, tuple(filter(None, checks.split(","))), program.root, exchange)

    def _load(self, program: Program) -> Callable[..., Any]:
        host = load_function(program)

        @functools.wraps(host)
        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                return host(*args, **kwargs)
            except Exception as error:
                raise plain_error(error) from None

        return run


# Run Triton kernels as compiled for a GPU, by emulating their PTX.


_FLOATS = {2: "<e", 4: "<f", 8: "<d"}


class CompiledTriton:
    """Runs host functions of Triton kernels; each launch is compiled and emulated. Raises
    RunnerError: ``triton-missing`` without torch or triton."""

    def __init__(
        self, arch: str, checks: Sequence[str], root: str, exchange: PtxFolder | None = None
    ) -> None:
        self.torch = package("torch")
        self._triton = package("triton")
        number = int("".join(c for c in arch if c.isdigit()))
        self._capability = (number // 10, number % 10)
        self._number = number
        self._checks, self._root = tuple(checks), root
        self._jit = package("triton.runtime.jit").JITFunction
        self._run_jit = self._jit.run
        self.device = CpuDevice(self.torch, self._on_address, self._capability)
        self._kernels: dict[bytes, Kernel] = {}
        self._exchange = exchange or PtxFolder()
        self._found: list[Failure] = []
        self.printed = ""
        self._addressed = False
        self._internal = False
        self._tuned: Mapping[str, Any] | None = None
        self._fits = False
        self._tuning, self._counts = Tuning(self.torch), True

    @contextmanager
    def running(self, _seed: int = 0, run: int = 0) -> Iterator[None]:
        """Inside the context, make host code and its imports see a GPU, and emulate launches."""
        self._found, self._addressed, self.printed = [], False, ""
        self._tuning.begin()
        self.device.made_uninitialised, self.device.run = False, run
        self.device.new.clear()
        config = importlib.import_module("triton.runtime.driver").driver
        target = importlib.import_module("triton.backends.compiler").GPUTarget(
            "cuda", self._number, 32
        )
        before, switch = getattr(config, "_active", None), os.environ.pop(SWITCH, None)
        config.set_active(CpuDriver(self.torch, target, shared_bytes(self._capability)))
        try:
            with ExitStack() as stack:
                stack.enter_context(patched(self._patches()))
                stack.enter_context(self.device.on())
                yield
        finally:
            config.set_active(before)
            if switch is not None:
                os.environ[SWITCH] = switch

    def failures(self) -> list[Failure]:
        """Return the findings of the checks since `running` was last entered."""
        return self._found

    def _on_address(self, _tensor: Any) -> None:
        self._addressed = self._addressed or not self._internal

    def _patches(self) -> list[Patch]:
        autotuner = importlib.import_module("triton.runtime.autotuner").Autotuner

        def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            compiled = self._compile(kernel, args, kwargs)
            if not warmup:
                self._launch(kernel, compiled, grid, args, kwargs)
            form = Compiled(kernel, args, kwargs)
            form.metadata, form.asm = compiled.metadata, dict(compiled.asm)
            return form

        def bench(tuner: Any, *args: Any, config: Any, **meta: Any) -> list[float]:
            if not self._chosen(tuner, args, config, meta):
                return [math.inf] * 3
            self._counts = False
            try:
                self.printed += self._tuning.try_out(tuner, args, config, meta)
            finally:
                self._counts = True
            return [0.0] * 3

        patches: list[Patch] = [(self._jit, "run", run), (autotuner, "_bench", bench)]
        try:
            descriptor = importlib.import_module("triton.tools.tensor_descriptor").TensorDescriptor
        except (ImportError, AttributeError):  # before Triton 3.4
            return patches
        check = descriptor.__post_init__

        def checked(made: Any) -> None:
            # Triton reads the address to check its alignment; the host function did not request it.
            before, self._internal = self._internal, True
            try:
                check(made)
            finally:
                self._internal = before

        return [*patches, (descriptor, "__post_init__", checked)]

    def _chosen(self, tuner: Any, args: tuple[Any, ...], config: Any, meta: Any) -> bool:
        """Tell whether to run a configuration of an autotuned kernel. In each round of autotuning,
        only the first configuration that works is run. The environment variable that
        `CONFIGURATION` names can select another one."""
        wanted = os.environ.get(CONFIGURATION)
        if wanted is not None:
            return config is tuner.configs[int(wanted) % len(tuner.configs)]
        if self._tuned is not tuner.nargs:  # made anew for each round
            self._tuned, self._fits = tuner.nargs, False
        if self._fits:
            return False
        try:
            made = tuner.fn.run(*args, **{**meta, **config.all_kwargs(), "warmup": True})
            self._kernel(made)
        except Exception:  # whatever the error, another configuration may work
            return False
        self._fits = made.metadata.shared <= shared_bytes(self._capability)
        return self._fits

    def _compile(self, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compile a launch's kernel with Triton, which reuses its result for similar launches."""
        before = os.environ.get("TRITON_CACHE_DIR")
        self._internal = True
        try:
            with tempfile.TemporaryDirectory(prefix="gpuemu-triton-") as folder:
                os.environ["TRITON_CACHE_DIR"] = folder
                with self.torch._C.DisableTorchFunction():
                    return self._run_jit(kernel, *args, grid=None, warmup=True, **kwargs)
        finally:
            self._internal = False
            if before is None:
                os.environ.pop("TRITON_CACHE_DIR", None)
            else:
                os.environ["TRITON_CACHE_DIR"] = before

    def _kernel(self, compiled: Any) -> Kernel:
        """Return the emulator's form of a compiled kernel."""
        data = self._exchange.exchanged(compiled.asm["ptx"].encode())
        known = self._kernels.get(data)
        if known is None:
            known = self._kernels[data] = load_kernel(data, f"{compiled.metadata.name}.ptx")
        return known

    def _launch(
        self, kernel: Any, compiled: Any, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if self._addressed:
            raise _refused(
                "the host function takes the address of a tensor, which means nothing to a kernel "
                "that is emulated",
                'pass the tensor itself, or use mode = "interpreted"',
            )
        metadata = compiled.metadata
        bound = self._bound(kernel, args, kwargs)
        blocks = tuple(grid(bound) if callable(grid) else grid)
        emulated = self._kernel(compiled)
        # A program is computed by the blocks of one cluster.
        cluster = (int(getattr(metadata, "num_ctas", 1)), 1, 1)
        blocks = tuple(n * members for n, members in zip(blocks, cluster, strict=False))
        if 0 in blocks:
            return
        memory = _Memory(self.torch, self.device.run, self.device.new)
        unfolding = Unfolding(getattr(metadata, "tensordesc_meta", None), _refused)
        signature = compiled.src.signature
        given = [
            memory.argument(leaf)
            for name in kernel.arg_names
            for leaf in unfolding.parts(name, bound[name], signature.get(name, "constexpr"))
        ]
        scratch = (getattr(metadata, "global_scratch_size", 0) or 0) * math.prod(blocks)
        arguments = [*given, BufferArgument(np.zeros(scratch, np.uint8), False, "scratch")]
        arguments += [ScalarArgument(bytes(8))] * (len(emulated.parameters) - len(arguments))
        self._exchange.launched(compiled.asm["ptx"].encode())
        result = emulated.launch(
            blocks, [int(metadata.num_warps) * 32], arguments[: len(emulated.parameters)],
            shared=int(metadata.shared), checks=self._checks if self._counts else (),
            cluster=cluster if cluster[0] > 1 else (),
        )  # fmt: skip
        memory.take_back(result.buffers)
        if not self._counts:
            return
        self._found += [failure_of(finding, self._root) for finding in result.findings]
        self.printed = (self.printed + result.printed)[:MOST_PRINTED]

    def _bound(
        self, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Mapping[str, Any]:
        """Return the launch's arguments by name, with defaults."""
        device = importlib.import_module("triton.runtime.driver").driver.active
        binder = kernel.device_caches[device.get_current_device()][-1]
        self._internal = True
        try:
            with self.torch._C.DisableTorchFunction():
                return dict(binder(*args, **{**kwargs, "debug": kwargs.get("debug", False)})[0])
        finally:
            self._internal = False


class _Memory:
    """The memory of one launch: a buffer for each storage, which several tensors may share."""

    def __init__(self, torch: Any, run: int, new: set[int]) -> None:
        self._torch, self._run, self._new = torch, run, new
        self._places: dict[int, int] = {}
        self._bytes: list[Any] = []
        self._count = 0

    def argument(self, leaf: Leaf) -> Argument:
        """Convert one parameter of the kernel to the emulator's form."""
        name, value, kind = leaf.name, leaf.value, leaf.kind
        number, self._count = self._count, self._count + 1
        self._bytes.append(None)
        if isinstance(value, (bool, int, float)):
            return ScalarArgument(_packed(value, kind))
        base = getattr(value, "base", value)  # a tensor reinterpreted with another element type
        if not isinstance(base, self._torch.Tensor) or not kind.startswith("*"):
            raise _refused(
                f"the argument {name} is a {type(value).__name__}, of type {kind}",
                'pass tensors and numbers, or use mode = "interpreted"',
            )
        with self._torch._C.DisableTorchFunction():
            storage = base.untyped_storage()
            start, offset = storage.data_ptr(), base.data_ptr() - storage.data_ptr()
            whole = self._torch.empty(0, dtype=self._torch.uint8).set_(
                storage, 0, (storage.nbytes(),), (1,)
            )
            data = whole.numpy()
            item = base.element_size()
        if start in self._places and data.size:
            return PointerArgument(self._places[start], offset, leaf.tensor)
        self._places[start] = number
        self._bytes[number] = data
        fresh = start in self._new and _is_fresh(data, str(base.dtype), item, self._run)
        view = data.view(f"u{item}") if item in (1, 2, 4, 8) and data.size % item == 0 else data
        return BufferArgument(view, not fresh, name, kept=True, offset=offset, tensor=leaf.tensor)

    def take_back(self, buffers: Sequence[Any]) -> None:
        """Copy the buffers back to the tensors' memory after a launch."""
        for data, after in zip(self._bytes, buffers, strict=False):
            if data is not None and after is not None:
                data[...] = after.view(np.uint8).reshape(-1)


def _is_fresh(data: Any, dtype: str, item: int, run: int) -> bool:
    """Tell whether new memory still holds its fill values, and so was never written."""
    word = fill_word(dtype.removeprefix("torch."), item, run)
    if not data.size or data.size % item:
        return False
    return bool(
        (data.reshape(-1, item) == np.frombuffer(word.to_bytes(item, "little"), "u1")).all()
    )


def _packed(value: bool | float, kind: str) -> bytes:
    """Return the bytes of a number as a kernel parameter of Triton's type `kind`."""
    if kind.startswith(("fp", "bf")):
        size = 8 if kind == "fp64" else 4
        return struct.pack(_FLOATS[size], value)
    bits = int("".join(c for c in kind if c.isdigit()) or 32)
    size = max(1, bits // 8)
    return (int(value) & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def _refused(message: str, hint: str) -> FlowError:
    return RunnerError(Problem("triton-compiled", message, hint))


# Convert a launch's arguments to the parameters of a compiled Triton kernel.


Refusal = Callable[[str, str], FlowError]

DESCRIPTOR = "tensordesc"
INTERPRETED = 'use mode = "interpreted"'


class Leaf(Struct, frozen=True):
    """One parameter of the compiled kernel."""

    name: str
    value: Any
    kind: str
    tensor: TensorMap | None = None


class Unfolding:
    """Splits tuples and tensor descriptors into the parameters of one compiled kernel. The order of
    parameters is that of Triton's launcher (``triton/backends/nvidia/driver.py``,
    ``make_tensordesc_arg`` and ``decompose_descriptor``; Triton 3.4 and later)."""

    def __init__(self, maps: Sequence[Mapping[str, Any]] | None, refused: Refusal) -> None:
        self._maps = iter(maps) if maps else None
        self._refused = refused

    def parts(self, name: str, value: Any, kind: Any) -> Iterator[Leaf]:
        """Yield the parameters made from one argument; a compile-time constant has none."""
        if kind == "constexpr":
            return
        if isinstance(kind, tuple):
            for part, part_kind in zip(value, kind, strict=True):
                yield from self.parts(name, part, part_kind)
        elif isinstance(kind, str) and kind.startswith(DESCRIPTOR):
            yield from self._descriptor(name, value, kind)
        else:
            yield Leaf(name, value, str(kind))

    def _descriptor(self, name: str, value: Any, kind: str) -> Iterator[Leaf]:
        element = kind.partition("<")[2].partition("[")[0]
        sizes, strides = list(value.shape), list(value.strides)
        if self._maps is not None:
            made = self._tensor(name, value, next(self._maps))
            yield Leaf(name, value.base, f"*{element}", made)
            yield from (Leaf(name, int(n), "i32") for n in sizes)
            yield from (Leaf(name, int(n), "i64") for n in strides)
            return
        yield Leaf(name, value.base, f"*{element}")
        yield from (Leaf(name, int(n), "i64") for n in (*sizes, *strides))
        yield Leaf(name, value.padding == "nan", "i1")
        yield Leaf(name, bool(getattr(value, "round_f32_to_tf32", False)), "i1")
        yield from (Leaf(name, int(n), "i32") for n in sizes)
        yield from (Leaf(name, int(n), "i64") for n in strides)

    def _tensor(self, name: str, value: Any, noted: Mapping[str, Any]) -> TensorMap:
        """Return the tensor map of a descriptor; its dimensions are in reverse order."""
        if noted.get("is_im2col") or noted.get("fp4_padded"):
            reason = "in im2col mode" if noted.get("is_im2col") else "of padded fp4 numbers"
            raise self._refused(f"the argument {name} is a descriptor {reason}", INTERPRETED)
        if getattr(value, "round_f32_to_tf32", False):
            raise self._refused(
                f"the argument {name} is a descriptor that rounds to TF32",
                f"round_f32_to_tf32 = False, or {INTERPRETED}",
            )
        item = int(noted["elem_size"])
        box = tuple(int(n) for n in reversed(noted["block_size"]))
        return TensorMap(
            address=0, kind=int(noted["elem_type"]), interleave=0, swizzle=int(noted["swizzle"]),
            fill=int(value.padding == "nan"), box=box,
            extents=tuple(int(n) for n in reversed(value.shape)),
            strides=(item, *(int(n) * item for n in reversed(value.strides[:-1]))),
            steps=(1,) * len(box),
        )  # fmt: skip
