"""What ``torch.cuda`` answers where there is no GPU, as if there were one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

MULTIPROCESSORS = 4
"""Reported number of multiprocessors: small, so that each program of a persistent kernel processes
several tiles."""
CAPABILITY = (9, 0)
SHARED_BYTES = 227 << 10
_SHARED = {75: 64 << 10, 80: 163 << 10, 86: 99 << 10, 87: 163 << 10, 89: 99 << 10}
_MEMORY = 1 << 34

Patch = tuple[Any, str, Any]


def shared_bytes(capability: tuple[int, int]) -> int:
    """Return the size in bytes of the shared memory that a block may have. Source: CUDA C++
    Programming Guide, table of limits."""
    return _SHARED.get(capability[0] * 10 + capability[1], SHARED_BYTES)


_SILENT = (
    "init", "set_device", "synchronize", "empty_cache", "manual_seed", "manual_seed_all", "seed",
    "seed_all", "ipc_collect", "reset_peak_memory_stats", "reset_max_memory_allocated",
    "reset_accumulated_memory_stats", "set_stream", "set_per_process_memory_fraction",
    "_lazy_init", "_sleep",
)  # fmt: skip
_ZEROS = (
    "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved",
    "current_device", "utilization",
)  # fmt: skip
_TRUE = ("is_available", "is_initialized", "is_bf16_supported")
_FALSE = ("is_current_stream_capturing", "_is_in_bad_fork")
_CONTEXTS = ("device", "device_of", "stream", "graph")


def _answer(name: str, value: Any) -> Callable[..., Any]:
    """Return a function, called `name`, that returns `value` for any arguments. Each name needs a
    function of its own, since torch's compiler keeps tables of functions."""

    def answer(*_: Any, **__: Any) -> Any:
        return value

    answer.__name__ = answer.__qualname__ = name
    answer.__module__ = "torch.cuda"
    return answer


class _Context(AbstractContextManager[None]):
    """A stand-in for a device or a stream; works as a context manager and as a decorator."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def __call__(self, function: Any) -> Any:
        return function


class _Stream:
    """A stream that executes everything immediately."""

    cuda_stream = 0
    stream_id = 0
    priority = 0
    device_index = 0
    device = "cuda:0"

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None: ...

    def query(self) -> bool:
        return True

    def synchronize(self) -> None: ...

    def wait_stream(self, stream: object) -> None: ...

    def wait_event(self, event: object) -> None: ...

    def record_event(self, event: Any = None) -> Any:
        return event or _Event()


class _Event:
    """An event that is always complete."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def record(self, stream: object = None) -> None: ...

    def wait(self, stream: object = None) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: object) -> float:
        return 0.0


def _properties(capability: tuple[int, int]) -> SimpleNamespace:
    shared = shared_bytes(capability)
    model = "H100" if capability == CAPABILITY else f"sm_{capability[0]}{capability[1]}"
    return SimpleNamespace(
        name=f"NVIDIA {model} (none: gpuemu-flow computes on the CPU)",
        major=capability[0],
        minor=capability[1],
        multi_processor_count=MULTIPROCESSORS,
        total_memory=_MEMORY,
        shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=shared,
        shared_memory_per_multiprocessor=shared + 1024,
        L2_cache_size=50 << 20,
        warp_size=32,
        max_threads_per_block=1024,
        max_threads_per_multi_processor=2048,
        regs_per_multiprocessor=65536,
        gcnArchName="",
        is_integrated=False,
        is_multi_gpu_board=False,
    )


def cuda_patches(torch: Any, capability: tuple[int, int] = CAPABILITY) -> list[Patch]:
    """Return the functions of torch that look for a GPU, each with its replacement."""
    cuda = torch.cuda
    properties, stream = _properties(capability), _Stream()
    answers: dict[str, Any] = {
        **{name: _answer(name, None) for name in _SILENT},
        **{name: _answer(name, 0) for name in _ZEROS},
        **{name: _answer(name, True) for name in _TRUE},
        **{name: _answer(name, False) for name in _FALSE},
        **{name: type(name, (_Context,), {"__module__": "torch.cuda"}) for name in _CONTEXTS},
        "device_count": _answer("device_count", 1),
        "mem_get_info": _answer("mem_get_info", (_MEMORY, _MEMORY)),
        "get_arch_list": _answer("get_arch_list", [f"sm_{capability[0]}{capability[1]}"]),
        "get_device_capability": _answer("get_device_capability", capability),
        "get_device_name": _answer("get_device_name", properties.name),
        "get_device_properties": _answer("get_device_properties", properties),
        "current_stream": _answer("current_stream", stream),
        "default_stream": _answer("default_stream", stream),
        "Stream": _Stream,
        "Event": _Event,
    }
    found: list[Patch] = [(cuda, n, value) for n, value in answers.items() if hasattr(cuda, n)]
    found += [
        (torch, "Generator", _generator(torch)),
        (torch, "autocast", _autocast(torch, torch.autocast)),
        (torch.amp, "autocast", _autocast(torch, torch.autocast)),
        (torch.cuda.amp, "autocast", _cuda_autocast(torch)),
        (torch.accelerator, "is_available", _answer("is_available", True)),
        (torch.accelerator, "device_count", _answer("device_count", 1)),
        (torch.accelerator, "synchronize", _answer("synchronize", None)),
        (torch.accelerator, "current_device_index", _answer("current_device_index", 0)),
        (torch.accelerator, "set_device_index", _answer("set_device_index", None)),
        (torch.accelerator, "device_index", type("device_index", (_Context,), {})),
        (
            torch.accelerator,
            "current_accelerator",
            lambda *_, **__: torch.device("cuda"),
        ),
        (torch, "compile", _compile),
    ]
    version = getattr(torch, "version", None)
    if version is not None and version.cuda is None:
        found.append((version, "cuda", "12.8"))
    return found


def _compile(model: Any = None, **_: Any) -> Any:
    """Return a function or model as it is, in place of its compiled form."""
    return model if model is not None else lambda function: function


def _generator(torch: Any) -> Any:
    real = torch._C.Generator

    class OnCpu(type(real)):  # type: ignore[misc]
        """Metaclass of a stand-in for ``torch.Generator``. Every generator of torch counts as an
        instance of the stand-in. A call of the stand-in makes a CPU generator, for any device."""

        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, real)

        def __call__(cls, device: object = "cpu") -> Any:
            return real("cpu")

    try:
        return OnCpu("Generator", (real,), {"__module__": "torch"})
    except TypeError:  # not a class that can be inherited from

        def generator(device: object = "cpu") -> Any:
            return real("cpu")

        return generator


def _autocast(torch: Any, real: Any) -> Any:
    class autocast(real):  # type: ignore[misc]  # noqa: N801
        """An autocast that applies casts for ``cuda`` to the CPU's tensors."""

        def __init__(self, device_type: str, dtype: Any = None, **kwargs: Any) -> None:
            super().__init__(device_type, dtype=dtype, **kwargs)
            self._here: Any = nullcontext()
            if device_type != "cpu":
                wanted = dtype or torch.float16
                self._here = real("cpu", dtype=wanted, enabled=self._enabled)

        def __enter__(self) -> Any:
            self._here.__enter__()
            return super().__enter__()

        def __exit__(self, *error: Any) -> Any:
            super().__exit__(*error)
            return self._here.__exit__(*error)

    autocast.__module__ = "torch.amp.autocast_mode"
    return autocast


def _cuda_autocast(torch: Any) -> Any:
    def autocast(enabled: bool = True, dtype: Any = None, cache_enabled: bool = True) -> Any:
        return torch.autocast("cuda", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)

    return autocast
