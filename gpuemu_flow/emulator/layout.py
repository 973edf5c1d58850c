"""Layout of memory: parameter block, shared and local variables, initial bytes."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence

from gpuemu_flow.emulator.errors import unsupported
from gpuemu_flow.emulator.ir import GlobalVariable, KernelParameter
from gpuemu_flow.lint.ptx.model import TYPE_BYTES, Function, Module, Variable, parse_integer
from gpuemu_flow.lint.ptx.parser import parse_variables

MAX_VARIABLE_BYTES = 1 << 28
"""Size of the largest permitted variable: a hostile file may declare exabytes."""

FUNCTIONS = 0x0300_0000_0000
"""Addresses of functions begin here; no memory of a kernel lies there."""

_PARAMETERS = re.compile(r"\(([^()]*(?:\([^()]*\)[^()]*)*)\)", re.ASCII)
_VALUE = re.compile(r"[^\s,{}]+(?:\([^()]*\))?(?:\s*\+\s*\d+)?", re.ASCII)
_GENERIC = re.compile(r"(?:generic\()?([A-Za-z_$%][\w$%]*)\)?(?:\s*\+\s*(\d+))?\Z", re.ASCII)


def align_up(offset: int, alignment: int) -> int:
    alignment = max(1, alignment)
    return -(-offset // alignment) * alignment


def lay_out_members(members: Sequence[bytes]) -> tuple[bytes, list[int]]:
    """Place the members of a structure as C does; return its bytes and their offsets."""
    data, offsets, most = bytearray(), [], 1
    for member in members:
        size = len(member)
        most = max(most, size)
        data += bytes(align_up(len(data), size) - len(data))
        offsets.append(len(data))
        data += member
    return bytes(data) + bytes(align_up(len(data), most) - len(data)), offsets


def header_lists(function: Function) -> tuple[list[Variable], list[Variable]]:
    """Parse a function header into its return parameters and its parameters."""
    header = function.header
    position = header.find(function.name, header.find("." + function.kind))
    before, after = header[:position], header[position + len(function.name) :]
    return _declared(before, function), _declared(after, function)


def _declared(text: str, function: Function) -> list[Variable]:
    match = _PARAMETERS.search(text)
    found: list[Variable] = []
    if match is None:
        return found
    for part in match.group(1).split(","):
        if part.strip():
            variables = parse_variables(part, function.offset)
            if not variables or variables[0].size_bytes is None:
                raise unsupported(
                    f"{function.name}: cannot read the parameter {' '.join(part.split())[:60]!r}",
                    "only .param parameters of known size are supported",
                    function.module.source.file,
                    function.line,
                )
            found.append(variables[0])
    return found


def lay_out_parameters(function: Function) -> tuple[list[KernelParameter], int]:
    offset = 0
    found = []
    for variable in header_lists(function)[1]:
        size = variable.size_bytes or 0
        offset = align_up(offset, variable.align or TYPE_BYTES.get(variable.type, 1))
        found.append(KernelParameter(variable.name, variable.type, offset, size))
        offset += size
    return found, offset


def check_size(variable: Variable, module: Module) -> int:
    """Return a variable's size in bytes; raise UnsupportedError if it is unknown or too large."""
    size = variable.size_bytes
    if size is None or size > MAX_VARIABLE_BYTES:
        raise unsupported(
            f"the variable {variable.name} has an unknown or too large size",
            f"at most {MAX_VARIABLE_BYTES} bytes",
            module.source.file,
            module.source.line_of(variable.offset),
        )
    return size


def function_addresses(module: Module) -> dict[str, int]:
    """Give each device function of a module an address, for calls through pointers."""
    functions = (f for f in module.functions if not f.is_entry)
    return {f.name: FUNCTIONS + 16 * n for n, f in enumerate(functions, 1)}


def taken_addresses(module: Module) -> set[str]:
    """Return the names of the functions whose addresses the module's variables and code use."""
    text = module.source.text
    named = set(re.findall(r"\bmov\.[ub]64\s+[%\w]+,\s*([A-Za-z_$][\w$]*)\s*;", text))
    for variable in module.variables:
        statement = text[variable.offset : text.find(";", variable.offset)]
        named.update(re.findall(r"[A-Za-z_$][\w$]*", statement.partition("=")[2]))
    return named & function_addresses(module).keys()


def initial_value(variable: Variable, module: Module, numbers: dict[str, int]) -> GlobalVariable:
    """Make a module variable with its initial bytes."""
    size = check_size(variable, module)
    text = module.source.text
    end = text.find(";", variable.offset)
    statement = text[variable.offset : end if end >= 0 else len(text)]
    _, equals, values = statement.partition("=")
    constant = variable.space == "const"
    if not equals:
        return GlobalVariable(variable.name, size, b"", constant)
    width = TYPE_BYTES.get(variable.type, 1)
    data = bytearray()
    pointers: list[tuple[int, str, int]] = []
    for match in _VALUE.finditer(values):
        if len(data) >= size:
            break
        word = match.group()
        bits = _value_bits(word, width)
        if bits is None:
            pointer = _GENERIC.match(word)
            address = function_addresses(module).get(pointer.group(1)) if pointer else None
            if address is not None and width == 8:
                data += address.to_bytes(width, "little")
                continue
            if pointer is None or pointer.group(1) not in numbers or width != 8:
                raise unsupported(
                    f"{variable.name}: initial value {word[:40]!r} cannot be read",
                    "it is neither a number nor the address of a variable or function",
                    module.source.file,
                    module.source.line_of(variable.offset),
                )
            pointers.append((len(data), pointer.group(1), int(pointer.group(2) or 0)))
            bits = 0
        data += bits.to_bytes(width, "little")
    return GlobalVariable(variable.name, size, bytes(data[:size]), constant, tuple(pointers))


def _value_bits(word: str, width: int) -> int | None:
    mask = (1 << 8 * width) - 1
    if word[:2].lower() in ("0f", "0d"):
        try:
            bits = int(word[2:], 16)
        except ValueError:
            return None
        if word[1] in "dD" and width == 4:
            (value,) = struct.unpack("<d", bits.to_bytes(8, "little"))
            return int.from_bytes(struct.pack("<f", value), "little")
        return bits & mask
    value = parse_integer(word)
    return None if value is None else value & mask
