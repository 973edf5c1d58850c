"""Stand in for a GPU: tensors requested on ``cuda`` are silently made on the CPU.

``gpuemu-flow import`` copies this module into the workspace. The module needs torch, but nothing of
gpuemu-flow.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

_DEVICE = re.compile(r"(?:cuda|hip|xpu)(?::\d+)?")
_UNWRITTEN = (
    "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"
)  # fmt: skip
_SILENT = ("init", "synchronize", "set_device", "empty_cache", "manual_seed", "manual_seed_all",
           "seed", "seed_all", "reset_peak_memory_stats")  # fmt: skip
_FOUR = getattr(torch, "float4_e2m1fn_x2", None)
_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_REAL_GENERATOR = torch.Generator
_TENSOR: Any = torch.Tensor
_ANSWERS = {
    _TENSOR.is_cuda.__get__: True,
    _TENSOR.is_cpu.__get__: False,
    _TENSOR.get_device: 0,
    _TENSOR.device.__get__: torch.device("cuda", 0),
}


class _Nothing(contextlib.AbstractContextManager[None]):
    """A stand-in for a device, a stream or an event: entering it and calling it do nothing."""

    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


# Where torch is not installed, its classes have no types; where it is, the comment is unused.
class _Mode(torch.overrides.TorchFunctionMode):  # type: ignore[misc, unused-ignore]
    """Mode that replaces each GPU device in a call of a torch function by the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _ANSWERS:
            return _ANSWERS[func]
        if func is torch.device:
            return func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in ("cuda", "pin_memory") and args:
            return args[0]
        kwargs = {key: _moved(value) for key, value in (kwargs or {}).items()}
        kwargs.pop("pin_memory", None)
        if name == "_scaled_mm" and args[0].dtype == _FOUR:
            return _scaled_mm(*args, **kwargs)
        if type(kwargs.get("device")) is int:
            kwargs["device"] = "cpu"
        result = func(*map(_moved, args), **kwargs)
        if name in _UNWRITTEN and isinstance(result, torch.Tensor):
            result.zero_()  # what nobody wrote would differ between two calls
        return result


def _scaled_mm(
    a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any = None, out_dtype: Any = None, **_: Any
) -> Any:
    """Multiply matrices of 4-bit floats, two to a byte along K, each block of K with a scale."""
    product = _decoded(a, scale_a) @ _decoded(b.mT, scale_b).mT
    return (product if bias is None else product + bias).to(out_dtype or torch.bfloat16)


def _decoded(packed: Any, scales: Any) -> Any:
    """Return rows of 4-bit floats as float64; scales lie in tiles of 128 rows and 4 columns."""
    bits = packed.view(torch.uint8).long()
    values = torch.tensor((*_VALUES, *(-one for one in _VALUES)), dtype=torch.float64)
    rows, count = bits.shape[0], 2 * bits.shape[1]
    down = -(-rows // 128)
    tiles = scales.double().reshape(down, -1, 32, 4, 4).transpose(2, 3)
    flat = tiles.permute(0, 2, 3, 1, 4).reshape(down * 128, -1)[:rows]
    block = 16 if scales.dtype == torch.float8_e4m3fn else 32
    return (
        values[torch.stack([bits & 15, bits >> 4], -1).flatten(1)]
        * (flat.repeat_interleave(block, 1)[:, :count])
    )


def _moved(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu") if _DEVICE.fullmatch(value.type) else value
    if isinstance(value, str):
        return "cpu" if _DEVICE.fullmatch(value) else value
    return value


class _AnyGenerator(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _REAL_GENERATOR)


class _Generator(metaclass=_AnyGenerator):
    """`torch.Generator` on the CPU; a class, since torch's modules name it in their annotations."""

    def __new__(cls, device: object = "cpu") -> Any:
        return _REAL_GENERATOR("cpu")


def _answer(value: Any) -> Any:
    return lambda *_, **__: value


def _compile(model: Any = None, **_: Any) -> Any:
    return model if model is not None else lambda function: function


@contextlib.contextmanager
def on_cpu() -> Iterator[None]:
    """Let torch behave as if there were a GPU, inside the context."""
    properties = SimpleNamespace(
        name="stand-in", major=9, minor=0, multi_processor_count=132, total_memory=1 << 36
    )
    answers = {
        **{name: _answer(None) for name in _SILENT},
        "is_available": _answer(True),
        "device_count": _answer(1),
        "current_device": _answer(0),
        "get_device_properties": _answer(properties),
        "get_device_name": _answer(properties.name),
        "get_device_capability": _answer((9, 0)),
        "current_stream": _answer(_Nothing()),
        "default_stream": _answer(_Nothing()),
        "Stream": _Nothing,
        "Event": _Nothing,
        "device": _Nothing,
        "stream": _Nothing,
    }
    places = [(torch.cuda, name, value) for name, value in answers.items()]
    places += [(torch, "Generator", _Generator), (torch, "compile", _compile)]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
    for owner, name, value in places:
        setattr(owner, name, value)
    # What was compiled before, such as a decorated function, runs as it is written.
    known = "torch._dynamo" in sys.modules and hasattr(torch.compiler, "set_stance")
    eager = torch.compiler.set_stance("force_eager") if known else contextlib.nullcontext()
    try:
        with eager, _Mode():
            yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
