"""An imaginary GPU: torch and Triton find a device on the host, while all data stays on the CPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

from gpuemu_flow.emulator.host.torch_cuda import (
    CAPABILITY,
    MULTIPROCESSORS,
    SHARED_BYTES,
    Patch,
    cuda_patches,
)
from gpuemu_flow.workers.triton_memory import Provenance, fill_uninitialised

_DEVICE = re.compile(r"(?:cuda|hip|xpu)(?::\d+)?")
_UNINITIALISED = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty",
                  "new_empty_strided")  # fmt: skip
_FACTORY_ONLY = ("pin_memory",)
_MISSING = object()


@contextmanager
def patched(patches: list[Patch]) -> Iterator[None]:
    """Replace attributes inside the context; at its end, restore or remove them."""
    before = [(owner, name, vars(owner).get(name, _MISSING)) for owner, name, _ in patches]
    try:
        for owner, name, value in patches:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in reversed(before):
            if value is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


class CpuDevice:
    """The stand-in for a GPU."""

    def __init__(
        self,
        torch: Any,
        on_address: Callable[[Any], None],
        capability: tuple[int, int] = CAPABILITY,
    ) -> None:
        self._torch = torch
        self._mode = _mode_class(torch)(self, on_address)
        self._patches = cuda_patches(torch, capability)
        self.made_uninitialised = False
        self.new: set[int] = set()
        self.run = 0
        self.provenance: Provenance | None = None

    @contextmanager
    def on(self) -> Iterator[None]:
        """Make host code in this thread see a GPU inside the context."""
        with ExitStack() as stack:
            stack.enter_context(patched(self._patches))
            stack.enter_context(self._mode)
            yield

    def moved(self, value: Any) -> Any:
        """Return an argument of a torch function, or the CPU in its place if it denotes a GPU."""
        if isinstance(value, self._torch.device):
            return self._torch.device("cpu") if _DEVICE.fullmatch(value.type) else value
        if isinstance(value, str):
            return "cpu" if _DEVICE.fullmatch(value) else value
        return value


def _mode_class(torch: Any) -> Any:
    tensor = torch.Tensor
    answers: dict[Any, Callable[[], Any]] = {
        tensor.is_cuda.__get__: lambda: True,
        tensor.is_cpu.__get__: lambda: False,
        tensor.device.__get__: lambda: torch.device("cuda", 0),
        tensor.get_device: lambda: 0,
    }

    class Mode(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        """Torch function mode that answers the host code's calls as if there were a GPU."""

        def __init__(self, owner: CpuDevice, on_address: Callable[[Any], None]) -> None:
            super().__init__()
            self._owner = owner
            self._on_address = on_address

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func in answers:
                return answers[func]()
            if func is torch.device:
                return func(*args, **(kwargs or {}))
            name = getattr(func, "__name__", "")
            if name == "cuda" and args:
                return args[0]
            if name == "pin_memory" and args:
                return args[0]
            owner, kwargs = self._owner, dict(kwargs or {})
            for unwanted in _FACTORY_ONLY:
                kwargs.pop(unwanted, None)
            if "device" in kwargs and isinstance(kwargs["device"], int):
                kwargs["device"] = "cpu"
            args = tuple(owner.moved(value) for value in args)
            kwargs = {key: owner.moved(value) for key, value in kwargs.items()}
            watched = owner.provenance
            if watched is not None:
                watched.called(torch.overrides.resolve_name(func) or name)
            result = func(*args, **kwargs)
            if name in _UNINITIALISED and isinstance(result, tensor):
                with watched.quietly() if watched is not None else nullcontext():
                    fill_uninitialised(torch, result, owner.run)
                owner.made_uninitialised |= result.numel() > 0
                owner.new.add(result.untyped_storage().data_ptr())
            elif name == "data_ptr":
                self._on_address(args[0])
            return result

    return Mode


class CpuDriver:
    """The stand-in for the driver that Triton's host code queries."""

    def __init__(self, torch: Any, target: Any, shared: int = SHARED_BYTES) -> None:
        self._torch = torch
        self._target = target
        self.utils = SimpleNamespace(
            get_device_properties=lambda *_: {
                "max_shared_mem": shared,
                "max_num_regs": 65536,
                "multiprocessor_count": MULTIPROCESSORS,
                "warpSize": 32,
                "sm_clock_rate": 1_000_000,
                "mem_clock_rate": 1_000_000,
                "mem_bus_width": 4096,
            }
        )

    def get_active_torch_device(self) -> Any:
        """Return ``cuda:0``."""
        return self._torch.device("cuda", 0)

    def get_current_target(self) -> Any:
        """Return Triton's description of the GPU that this driver pretends to have. Its compute
        capability is the one that is reported to torch."""
        return self._target

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None: ...

    def get_current_stream(self, device: object = None) -> int:
        return 0

    def get_device_interface(self) -> Any:
        return self._torch.cuda

    def is_active(self) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_empty_cache_for_benchmark(self) -> Any:
        return self._torch.empty(1)

    def clear_cache(self, cache: object) -> None: ...

    def get_benchmarker(self) -> Callable[..., Any]:
        """Return a benchmark that runs a function once and always reports the same time."""

        def bench(call: Callable[[], Any], *_: Any, quantiles: Any = None, **__: Any) -> Any:
            call()
            return [0.0] * len(quantiles) if quantiles else 0.0

        return bench
