"""Run one kernel of a PTX file with arguments from the command line, and save its buffers."""

from __future__ import annotations

import math
import re
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gpuemu_flow.emulator.codegen import why_not
from gpuemu_flow.emulator.decode import decode_program
from gpuemu_flow.emulator.described import DEFAULT_CHECKS
from gpuemu_flow.emulator.errors import LaunchError, UnsupportedError, bad_argument, bad_launch
from gpuemu_flow.emulator.findings import CHECKS, CheckFinding
from gpuemu_flow.emulator.ir import KernelParameter
from gpuemu_flow.emulator.launch import (
    DEFAULT_BUDGET,
    Argument,
    BufferArgument,
    Kernel,
    LaunchResult,
    ScalarArgument,
    load_kernel,
    read_entries,
)
from gpuemu_flow.emulator.layout import lay_out_members
from gpuemu_flow.emulator.types import DTYPES, SIZES, WARP, Array
from gpuemu_flow.model.errors import Problem, UsageError, did_you_mean
from gpuemu_flow.numerics.dtypes import numpy_dtype

MAX_FILE = 1 << 28


class Run(Struct, frozen=True):
    """One launch of a kernel from the command line."""

    kernel: Kernel
    arguments: list[NamedArgument]
    result: LaunchResult
    seconds: float


def read_ptx_file(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_FILE:
            raise bad_launch(f"{path} has more than {MAX_FILE:,} bytes")
        return path.read_bytes()
    except OSError as error:
        raise UnsupportedError(
            Problem("emulator-no-file", f"{path} cannot be read: {error.strerror}", "", str(path))
        ) from None


def cover(paths: Sequence[Path]) -> list[KernelCoverage]:
    return cover_file(b"\n".join(map(read_ptx_file, paths)), str(paths[0]))


def run_file(
    paths: Sequence[Path], entry: str | None, grid: str, block: str, texts: Sequence[str], *,
    shared: int, checks: Sequence[str], seed: int, budget: int | None, backend: str = "auto",
    cluster: str | None = None, symbols: Sequence[str] = (),
) -> Run:  # fmt: skip
    """Launch one kernel of some PTX files, and launch it again for the check `order`."""
    if entry == "":  # such as a variable of a script that is not set
        raise bad_launch("--entry '' is no name", "leave it out where the file has one kernel")
    data = b"\n".join(map(read_ptx_file, paths))
    kernel = load_kernel(data, str(paths[0]), entry or "")
    arguments = parse_arguments(texts, kernel.parameters, seed) + _symbols(symbols, seed)
    names = parse_checks(checks)
    blocks, threads = parse_dimensions("grid", grid), parse_dimensions("block", block)
    together = () if cluster is None else parse_dimensions("cluster", cluster)
    given = [named.argument for named in arguments]
    limit = budget or DEFAULT_BUDGET
    start = time.perf_counter()
    result = kernel.launch(
        blocks, threads, given, shared=shared, checks=names, budget=limit, backend=backend,
        cluster=together,
    )  # fmt: skip
    if "order" in names:
        more = find_order_dependence(
            kernel, blocks, threads, given, result, shared=shared, budget=limit, cluster=together
        )
        result = replace(result, findings=(*result.findings, *more))
    return Run(kernel, arguments, result, time.perf_counter() - start)


def parse_dimensions(what: str, text: str) -> tuple[int, ...]:
    """Parse the size of a grid, block or cluster, such as ``8`` or ``8,4,1``. `what` is the name of
    the option, without its dashes, for the error message."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 12 for part in parts):
        raise bad_launch(f"--{what} {text!r} is no shape", "write 8 or 8,4,1")
    return tuple(int(part) for part in parts)


def parse_checks(words: Sequence[str]) -> tuple[str, ...]:
    if not words:
        return DEFAULT_CHECKS
    if "all" in words:
        return CHECKS
    for word in words:
        if word not in (*CHECKS, "none"):
            raise bad_launch(f"no check {word!r}", did_you_mean(word, (*CHECKS, "all", "none")))
    return tuple(word for word in words if word != "none")


def save_buffers(
    texts: Sequence[str], arguments: Sequence[NamedArgument], result: LaunchResult
) -> None:
    """Write buffers to ``.npy`` files, one for each ``name=file``."""
    after = {n.name: d for n, d in zip(arguments, result.buffers, strict=True) if d is not None}
    for text in texts:
        name, equals, file = text.partition("=")
        if not equals or name not in after:
            raise bad_argument(
                f"--save {text!r}: no buffer {name!r}", did_you_mean(name, tuple(after))
            )
        try:
            with Path(file).open("wb") as target:
                np.save(target, after[name], allow_pickle=False)
        except OSError as error:
            raise bad_argument(f"--save: {file} cannot be written: {error.strerror}") from None


# Detect results that depend on the order of blocks or warps, by further launches.


def find_order_dependence(
    kernel: Kernel, grid: Sequence[int], block: Sequence[int], arguments: Sequence[Argument],
    result: LaunchResult, *, shared: int, budget: int, cluster: Sequence[int] = (),
) -> list[CheckFinding]:  # fmt: skip
    """Launch with blocks in reverse order, then with warps in reverse order; compare the
    buffers."""
    found: list[CheckFinding] = []
    count = int(np.prod(grid))
    if count > 1:
        again = kernel.launch(
            grid, block, arguments, shared=shared, checks=(), budget=budget,
            order=range(count - 1, -1, -1), backend="numpy", cluster=cluster,
        )  # fmt: skip
        found += _differences("blocks", kernel, arguments, result, again)
    if int(np.prod(block)) > WARP:
        again = kernel.launch(
            grid, block, arguments, shared=shared, checks=(), budget=budget,
            warps_reversed=True, backend="numpy", cluster=cluster,
        )  # fmt: skip
        found += _differences("warps", kernel, arguments, result, again)
    return found


def _differences(
    turned: str, kernel: Kernel, arguments: Sequence[Argument], result: LaunchResult,
    again: LaunchResult,
) -> Iterator[CheckFinding]:  # fmt: skip
    """Yield one finding for each buffer whose bits differ. `again` is the result of a second
    launch, in which `turned` (``blocks`` or ``warps``) ran in reverse order."""
    pairs = zip(kernel.parameters, arguments, result.buffers, again.buffers, strict=True)
    for parameter, argument, first, second in pairs:
        if first is None or second is None or first.tobytes() == second.tobytes():
            continue
        assert isinstance(argument, BufferArgument)
        name = argument.name or parameter.name
        at, differing = _difference(first, second)
        message = (
            f"leaves other bits in {name} when {turned} run in the opposite order: {differing:,} "
            f"of {first.size:,} elements, the first {name}[{at:,}]: {first.reshape(-1)[at]} and "
            f"{second.reshape(-1)[at]}"
        )
        zero = (0, 0, 0)
        place = kernel.program.place(0)
        rule = f"{turned.removesuffix('s')}-order"
        yield CheckFinding("order", rule, message, kernel.name, place, zero, zero, differing)


def _difference(first: Array, second: Array) -> tuple[int, int]:
    """Return the index of the first differing element, and the number of differing elements."""
    raw = [np.ascontiguousarray(x).view(np.uint8).reshape(x.size, -1) for x in (first, second)]
    places = np.flatnonzero((raw[0] != raw[1]).any(axis=1))
    return int(places[0]), len(places)


# Kernel arguments written as short texts: ``x=f32[8,512]``, ``x=@file.npy``, ``n=1000``.


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
    """Read ``--arg`` texts in the order of the kernel's parameters. Raises LaunchError for a text
    in none of these forms."""
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


def _symbols(texts: Sequence[str], seed: int) -> list[NamedArgument]:
    """Read ``--symbol`` texts: variables of the module, and the buffers that are their content."""
    found = []
    for text in texts:
        name, _, value = text.partition("=")
        made = _parse_value(name, value.strip(), KernelParameter(name, "u64", 0, 8), seed)
        if not isinstance(made, BufferArgument):
            raise bad_argument(f"--symbol {text!r} is no name=buffer", "for example w=f32[4]:ones")
        found.append(NamedArgument(name, replace(made, beside=True, symbol=name)))
    return found


def _parse_value(name: str, value: str, parameter: KernelParameter, seed: int) -> Argument:
    if value.startswith("@"):
        return BufferArgument(_read_file(name, value[1:]), name=name)
    if value[:1] + value[-1:] == "{}":
        return ScalarArgument(_members(name, value[1:-1]))
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
    elif parameter.size in (1, 2, 4, 8):
        integral = _as_integer(text) is not None
        whole = SIZES.get(parameter.type, 0) == parameter.size
        code = DTYPES[parameter.type] if whole else f"u{parameter.size}"
        if parameter.type[0] == "b" and not integral:
            code = {2: "f2", 4: "f4", 8: "f8"}.get(parameter.size, code)
        dtype = np.dtype(code)
    else:
        raise bad_argument(
            f"{name} is a structure of {parameter.size} bytes", "write {5, f32:0.5} or @file.npy"
        )
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


def _members(name: str, text: str) -> bytes:
    """Read the members of a structure: ``i32:5, f32:0.5``; without a type an int or a float."""
    found = []
    for part in text.split(","):
        match = _NUMBER.match(part.strip())
        if match is None:
            raise bad_argument(f"{name}: {part.strip()!r} is no number", "write {5, f32:0.5}")
        kind, number = match.groups()
        kind = kind or ("f32" if _as_integer(number) is None else "s32")
        dtype = _element_type(name, kind)
        one = KernelParameter(name, kind, 0, dtype.itemsize)
        found.append(_number(name, kind, number, one).data)
    return lay_out_members(found)[0]


def _as_integer(text: str) -> int | None:
    try:
        return int(text, 0) if len(text) < 80 else None
    except ValueError:
        return None


# Coverage of a PTX file: instructions that can be run, and why others cannot.


class MissingOpcode(Struct, frozen=True):
    """An opcode that the emulator cannot run: its count in a kernel, first line, and the reason."""

    opcode: str
    count: int
    line: int
    reason: str


class KernelCoverage(Struct, frozen=True):
    """Coverage of one kernel's instructions; whether it runs, and if not, why."""

    name: str
    runs: bool
    instructions: int = 0
    problem: str = ""
    missing: tuple[MissingOpcode, ...] = ()
    opcodes: dict[str, int] = {}


def cover_file(data: bytes, file: str) -> list[KernelCoverage]:
    """Examine every kernel of a PTX file. Raises UnsupportedError when the file is not PTX or holds
    no kernel."""
    found = []
    for entry in read_entries(data, file):
        try:
            program = decode_program(entry)
        except UnsupportedError as error:
            found.append(KernelCoverage(entry.name, runs=False, problem=str(error)))
            continue
        opcodes: Counter[str] = Counter()
        missing: dict[str, MissingOpcode] = {}
        for step in program.steps:
            name = step.opcode.text
            opcodes[name] += 1
            reason = why_not(step)
            if reason and name in missing:
                known = missing[name]
                missing[name] = MissingOpcode(name, known.count + 1, known.line, known.reason)
            elif reason:
                line = program.module.source.line_of(step.offset)
                missing[name] = MissingOpcode(name, 1, line, reason)
        found.append(
            KernelCoverage(
                entry.name,
                not missing,
                len(program.steps),
                "",
                tuple(missing.values()),
                dict(opcodes.most_common()),
            )
        )
    return found
