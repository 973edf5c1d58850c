"""Launches of an op of kind ``ptx`` as the configuration describes them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

from msgspec import Struct

from gpuemu_flow.model.syntax import ExpressionError, check_expression
from gpuemu_flow.model.types import Json, canonical_dtype

ARGUMENT_TYPES = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f16", "f32", "f64")
DEFAULT_CHECKS = ("mem", "init", "race", "sync")
"""The checks that one launch makes."""
BACKEND_NAMES = ("auto", "numpy", "c")
LAUNCH_KEYS = ("entry", "grid", "block", "cluster", "args", "shared", "symbols")
MAX_LAUNCHES = 64

_NAME = re.compile(r"[A-Za-z_]\w*\Z", re.ASCII)

Fault = Callable[[tuple[str, ...], str, str], None]
"""Callable that takes a fault's position in the table, its description and a fix."""

Expression = str | int


class ScalarText(Struct, frozen=True):
    """A number that is passed by value: its type, and its value as an expression or a float."""

    type: str
    value: Expression | float


class StructText(Struct, frozen=True):
    """A structure that is passed by value: its members, in order."""

    members: tuple[str | ScalarText, ...]


class LaunchText(Struct, frozen=True):
    """The description of one launch; its expressions are evaluated later, for each case. `symbols`
    are the module's variables that it sets before, and the buffers they get."""

    entry: str
    grid: tuple[Expression, ...]
    block: tuple[Expression, ...]
    arguments: tuple[str | ScalarText | StructText, ...]
    shared: Expression = 0
    cluster: tuple[Expression, ...] = ()
    symbols: tuple[tuple[str, str], ...] = ()


class BufferText(Struct, frozen=True):
    """The description of a buffer that launches share; its dims are evaluated later, for each case.
    An empty ``dtype`` stands for the type of the first input. ``fill`` is ``none`` or ``zero``."""

    name: str
    dims: tuple[Expression, ...]
    dtype: str = ""
    fill: str = "none"


class DescribedLaunches(Struct, frozen=True):
    """All launches of one op as they are described, with their buffers and checks."""

    launches: tuple[LaunchText, ...]
    outputs: tuple[BufferText, ...]
    scratch: tuple[BufferText, ...]
    checks: tuple[str, ...]
    backend: str = "auto"


def canonical_text(table: Mapping[str, Json]) -> str:
    """Convert a description of launches to JSON; equal descriptions give equal text."""
    kept = (*LAUNCH_KEYS, "launches", "outputs", "scratch", "checks", "backend")
    return json.dumps({k: table[k] for k in kept if k in table}, sort_keys=True)


def read_described(table: Mapping[str, Json], fault: Fault) -> DescribedLaunches | None:
    reader = _Reader(fault)
    given = table.get("launches")
    tables: list[tuple[tuple[str, ...], Json]] = [((), table)]
    if given is not None:
        tables = []
        if not isinstance(given, list) or not 1 <= len(given) <= MAX_LAUNCHES:
            reader.fault(("launches",), f"launches is no list of 1 to {MAX_LAUNCHES} tables", "")
        else:
            tables = [(("launches",), item) for item in given]
    launches = [reader.launch(where, item) for where, item in tables]
    outputs = reader.buffers(table, "outputs")
    scratch = reader.buffers(table, "scratch")
    if not outputs:
        reader.fault(("outputs",), "no outputs", 'for example outputs = { out = ["B", "H"] }')
    checks = table.get("checks", list(DEFAULT_CHECKS))
    if not isinstance(checks, list) or not all(c in DEFAULT_CHECKS for c in checks):
        reader.fault(("checks",), "checks is no list of checks", f"of {', '.join(DEFAULT_CHECKS)}")
        checks = []
    backend = table.get("backend", "auto")
    if backend not in BACKEND_NAMES:
        known = ", ".join(BACKEND_NAMES)
        reader.fault(("backend",), f"no back end {backend!r}", f"one of {known}")
    if reader.failed:
        return None
    return DescribedLaunches(
        tuple(item for item in launches if item is not None), outputs, scratch, tuple(checks),
        backend,
    )  # fmt: skip


def read_host_call(table: Mapping[str, Json], fault: Fault) -> DescribedLaunches | None:
    """Read how a host function is called: `args`, `outputs` and `scratch`, which may be absent."""
    reader = _Reader(fault)
    arguments = reader.arguments(("args",), table["args"]) if "args" in table else ()
    launches = (LaunchText("", (), (), arguments),) if "args" in table else ()
    outputs, scratch = reader.buffers(table, "outputs"), reader.buffers(table, "scratch")
    return None if reader.failed else DescribedLaunches(launches, outputs, scratch, ())


class _Reader:
    def __init__(self, fault: Fault) -> None:
        self._fault = fault
        self.failed = False

    def fault(self, where: tuple[str, ...], text: str, hint: str) -> None:
        self.failed = True
        self._fault(where, text, hint)

    def launch(self, where: tuple[str, ...], table: Json) -> LaunchText | None:
        if not isinstance(table, Mapping):
            self.fault(where, "a launch is no table", "")
            return None
        entry = table.get("entry", "")
        if not isinstance(entry, str):
            self.fault((*where, "entry"), "entry is no text", "")
            return None
        grid = self.dimensions((*where, "grid"), table.get("grid"))
        block = self.dimensions((*where, "block"), table.get("block"))
        arguments = self.arguments((*where, "args"), table.get("args"))
        shared = table.get("shared", 0)
        self.expression((*where, "shared"), shared)
        cluster: tuple[Expression, ...] = ()
        if "cluster" in table:
            cluster = self.dimensions((*where, "cluster"), table["cluster"])
        symbols = table.get("symbols", {})
        if not isinstance(symbols, Mapping) or not all(
            isinstance(name, str) and _NAME.match(name) for name in symbols.values()
        ):
            self.fault((*where, "symbols"), "symbols is no table", 'as in { c_kernel = "w" }')
            symbols = {}
        return LaunchText(entry, grid, block, arguments, shared, cluster, tuple(symbols.items()))

    def expression(self, where: tuple[str, ...], value: Json) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            self.fault(where, f"{value!r} is no expression", "an integer, or text such as 'B*S'")
            return
        try:
            check_expression(value)
        except ExpressionError as error:
            self.fault(where, str(error), "")

    def dimensions(self, where: tuple[str, ...], value: Json) -> tuple[Expression, ...]:
        if not isinstance(value, list) or not 1 <= len(value) <= 3:
            self.fault(where, f"{where[-1]} is no list of one to three sizes", 'as in ["B*S"]')
            return ()
        for item in value:
            self.expression(where, item)
        return tuple(value)

    def arguments(
        self, where: tuple[str, ...], value: Json
    ) -> tuple[str | ScalarText | StructText, ...]:
        if not isinstance(value, list):
            self.fault(where, "args is no list", 'as in ["x", "out", { i32 = "B*S" }]')
            return ()
        found: list[str | ScalarText | StructText] = []
        for item in value:
            if isinstance(item, str) and _NAME.match(item):
                found.append(item)
            elif isinstance(item, Mapping) and list(item) == ["struct"]:
                members = self.arguments(where, item["struct"])
                plain = tuple(m for m in members if not isinstance(m, StructText))
                if len(plain) < len(members):
                    self.fault(where, "a struct holds a struct", "name the inner one's members")
                found.append(StructText(plain))
            elif isinstance(item, Mapping) and len(item) == 1:
                ((kind, number),) = item.items()
                if kind not in ARGUMENT_TYPES:
                    known = ", ".join(ARGUMENT_TYPES)
                    self.fault(where, f"no argument type {kind!r}", f"one of {known}")
                elif not (kind[0] == "f" and isinstance(number, float)):
                    self.expression(where, number)
                found.append(ScalarText(kind, number))
            else:
                self.fault(
                    where, f"{item!r} is no argument",
                    'a name of a buffer, { i32 = "B*S" }, or { struct = ["x", { i32 = "B" }] }',
                )  # fmt: skip
        return tuple(found)

    def buffers(self, table: Mapping[str, Json], key: str) -> tuple[BufferText, ...]:
        value = table.get(key, {})
        if not isinstance(value, Mapping):
            self.fault((key,), f"{key} is no table", "")
            return ()
        found = []
        for name, said in value.items():
            buffer = self.buffer(key, name, said)
            if buffer is not None:
                found.append(buffer)
        return tuple(found)

    def buffer(self, key: str, name: str, said: Json) -> BufferText | None:
        where = (key, name)
        if not _NAME.match(name):
            self.fault(where, f"{name!r} is no name", "")
            return None
        dtype, fill = "", "none"
        dims = said
        if isinstance(said, Mapping):
            unknown = set(said) - {"dims", "bytes", "dtype", "init"}
            dtype, fill = said.get("dtype", ""), said.get("init", "none")
            dims = said.get("dims", [said["bytes"]] if "bytes" in said else None)
            if "bytes" in said:
                dtype = "uint8"
            if unknown or fill not in ("none", "zero") or not isinstance(dtype, str):
                self.fault(where, f"{name} cannot be read", "keys: dims or bytes, dtype, init")
                return None
            if dtype and canonical_dtype(dtype) is None:
                self.fault(where, f"no dtype {dtype!r}", "")
                return None
        if not isinstance(dims, list) or len(dims) > 32:
            self.fault(where, f"{name} has no dims", f'as in {name} = ["B", "H"]')
            return None
        for item in dims:
            self.expression(where, item)
        return BufferText(name, tuple(dims), dtype, fill)
