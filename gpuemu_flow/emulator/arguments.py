"""Kernel arguments written as short texts: ``x=f32[8,512]``, ``x=@file.npy``, ``n=1000``."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from gpuemu_flow.emulator.errors import LaunchError, bad_argument
from gpuemu_flow.emulator.ir import KernelParameter
from gpuemu_flow.emulator.launch import Argument, BufferArgument, ScalarArgument
from gpuemu_flow.emulator.types import DTYPES, SIZES, Array
from gpuemu_flow.errors import UsageError
from gpuemu_flow.numerics.dtypes import numpy_dtype

SHORT_TYPES: dict[str, str] = {
    "f16": "float16", "f32": "float32", "f64": "float64", "bf16": "bfloat16",
    "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2",
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
    "s8": "int8", "s16": "int16", "s32": "int32", "s64": "int64",
    "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
    "b8": "uint8", "b16": "uint16", "b32": "uint32", "b64": "uint64", "pred": "bool",
}  # fmt: skip
"""Short names of element types, besides the canonical names."""

FILLS = ("normal", "zeros", "ones", "range", "empty")
"""Names of the contents that a buffer can start with."""

MAX_BYTES = 1 << 32

_BUFFER = re.compile(r"(\w+)\[([\d\s,]*)\](?::(\w+))?\Z", re.ASCII)
_NUMBER = re.compile(r"(?:(\w+)\s*[:=]\s*)?([-+]?[\w.+-]+)\Z", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w*\Z", re.ASCII)


class NamedArgument(Struct, frozen=True):
    """An argument together with the name that the user gave it."""

    name: str
    argument: Argument


def parse_arguments(
    texts: Sequence[str], parameters: Sequence[KernelParameter], seed: int
) -> list[NamedArgument]:
    """Read ``--arg`` texts in the order of the kernel's parameters.

    Parameters
    ----------
    texts : sequence of str
        ``name=type[dims]`` with an optional ``:fill`` (one of `FILLS`), ``name=@file.npy``,
        ``name=number`` or ``name=type:number``.
    parameters : sequence of KernelParameter
    seed : int
        Random values are derived from this seed and from the argument's name.

    Returns
    -------
    list of NamedArgument

    Raises
    ------
    LaunchError
        For a text in none of these forms.
    """
    if len(texts) != len(parameters):
        names = ", ".join(f"{p.name} (.{p.type})" for p in parameters)
        raise bad_argument(
            f"the kernel takes {len(parameters)} arguments, {len(texts)} were given",
            f"give one --arg for each of its parameters, in order: {names}",
        )
    found = []
    for text, parameter in zip(texts, parameters, strict=True):
        name, equals, value = text.partition("=")
        if not equals or not _NAME.match(name):
            raise bad_argument(f"--arg {text!r} is not name=value", "for example x=f32[8,512]")
        found.append(NamedArgument(name, _parse_value(name, value.strip(), parameter, seed)))
    return found


def _parse_value(name: str, value: str, parameter: KernelParameter, seed: int) -> Argument:
    if value.startswith("@"):
        return BufferArgument(_read_file(name, value[1:]), name=name)
    match = _BUFFER.match(value)
    if match is not None:
        kind, dims, fill = match.groups()
        dtype = _element_type(name, kind)
        shape = tuple(int(d) for d in dims.replace(" ", "").split(",") if d)
        if math.prod(shape) * dtype.itemsize > MAX_BYTES:
            raise bad_argument(f"{name}: {value} has more than {MAX_BYTES:,} bytes")
        fill = fill or ("empty" if name.startswith("out") else "normal")
        return _filled(name, dtype, shape, fill, seed)
    match = _NUMBER.match(value)
    if match is None:
        raise bad_argument(
            f"{name}: {value!r} is neither a buffer nor a number",
            "write f32[8,512], @file.npy, 1000 or f32:0.5",
        )
    return _number(name, match.group(1), match.group(2), parameter)


def _element_type(name: str, kind: str) -> np.dtype[Any]:
    try:
        return numpy_dtype(SHORT_TYPES.get(kind, kind))
    except UsageError as error:
        raise LaunchError(*error.problems) from None


_KINDS = "biufcV"
"""numpy kinds of the dtypes that a buffer may have; ``V`` covers bfloat16 and float8."""
_SAVED = "save an array of numbers with numpy.save"


def _read_file(name: str, path: str) -> Array:
    try:
        data = np.load(Path(path), allow_pickle=False)
    except OSError as error:
        reason = error.strerror or str(error)
        raise bad_argument(f"{name}: {path} cannot be read: {reason}") from None
    except (ValueError, EOFError):
        # numpy's own message would advise to unpickle a file that holds an array of objects.
        text = f"{name}: {path} is no .npy file of numbers, but damaged, pickled or another kind"
        raise bad_argument(text, _SAVED) from None
    if not isinstance(data, np.ndarray) or data.dtype.kind not in _KINDS or data.dtype.names:
        kind = f"of dtype {data.dtype}" if isinstance(data, np.ndarray) else "of several arrays"
        raise bad_argument(f"{name}: {path} holds no numbers: it is {kind}", _SAVED)
    return data.astype(data.dtype.newbyteorder("<"), copy=False)  # as GPUs store numbers


def _filled(
    name: str, dtype: np.dtype[Any], shape: tuple[int, ...], fill: str, seed: int
) -> BufferArgument:
    if fill not in FILLS:
        raise bad_argument(f"{name}: no fill {fill!r}", f"one of {', '.join(FILLS)}")
    if fill == "empty":
        return BufferArgument(np.zeros(shape, dtype), initialised=False, name=name)
    if fill in ("zeros", "ones"):
        return BufferArgument(np.full(shape, int(fill == "ones"), dtype), name=name)
    if fill == "range":
        values: Array = np.arange(math.prod(shape)).reshape(shape)
    else:
        draw = np.random.default_rng([seed, zlib.crc32(name.encode())])
        integral = dtype.kind in "iub"
        values = draw.integers(0, 8, shape) if integral else draw.standard_normal(shape)
    return BufferArgument(values.astype(dtype), name=name)


def _number(name: str, kind: str | None, text: str, parameter: KernelParameter) -> ScalarArgument:
    if kind is not None:
        dtype = _element_type(name, kind)
    elif SIZES.get(parameter.type, 0) == parameter.size:
        integral = _as_integer(text) is not None
        code = DTYPES[parameter.type]
        if parameter.type[0] == "b" and not integral:
            code = {2: "f2", 4: "f4", 8: "f8"}.get(parameter.size, code)
        dtype = np.dtype(code)
    else:
        raise bad_argument(f"{name}: {parameter.size} bytes by value need a file: @file.npy")
    value = _as_integer(text)
    if dtype.kind in "iub":
        if value is None:
            raise bad_argument(f"{name}: {text!r} is no integer", f"it is a .{parameter.type}")
        bits = 8 * dtype.itemsize
        if not -(1 << (bits - 1)) <= value < 1 << bits:
            raise bad_argument(f"{name}: {text} does not fit into {bits} bits")
        return ScalarArgument((value & ((1 << bits) - 1)).to_bytes(dtype.itemsize, "little"))
    try:
        number = float(text) if value is None else float(value)
    except (ValueError, OverflowError):
        raise bad_argument(f"{name}: {text!r} is no number") from None
    return ScalarArgument(np.array(number).astype(dtype).tobytes())


def _as_integer(text: str) -> int | None:
    try:
        return int(text, 0) if len(text) < 80 else None
    except ValueError:
        return None
