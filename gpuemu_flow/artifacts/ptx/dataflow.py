"""The registers that each instruction writes and reads, as numbers, with scopes resolved."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from gpuemu_flow.artifacts.ptx.model import Body, RegisterDeclaration
from gpuemu_flow.artifacts.ptx.opcode import Destination
from gpuemu_flow.artifacts.ptx.operands import first_operand
from gpuemu_flow.quick_dataclass import dataclass

Registers = tuple[int, ...]

_TOKENS = re.compile(r"[\w$%.]+", re.ASCII)
_TRAILING_DIGITS = re.compile(r"\d{1,9}\Z", re.ASCII)
_NOT_A_REGISTER = -1
_FEW_REGISTERS = 4096

REGISTER_WIDTHS: dict[str, int] = {"pred": 0, "b64": 2, "u64": 2, "s64": 2, "f64": 2, "b128": 4}
"""32-bit registers that one virtual register takes; 1 for types not listed."""


@dataclass
class Dataflow:
    """Definitions and uses of registers in a body, with one entry per instruction.

    Attributes
    ----------
    defs, uses : list of tuple of int
        Numbers of the registers that an instruction writes and reads; a register may be in both.
    names : list of str
        Name of each register, by number. A name occurs again if an inner scope declares it again.
    types : list of str
        Declared type of each register, by number, such as ``f32``. Newer compilers declare floats
        as ``b32``: do not infer a meaning from the type.
    widths : list of int
        Number of 32-bit registers that each register takes, by number.
    """

    defs: list[Registers]
    uses: list[Registers]
    names: list[str]
    types: list[str]
    widths: list[int]
    _tables: list[dict[str, int]]

    def mentions(self, symbol: str) -> bool:
        """Tell whether any instruction names the variable or function `symbol`."""
        return any(symbol in table for table in self._tables)

    def mentioned_among(self, symbols: Mapping[str, object]) -> set[str]:
        """Return those of `symbols` that any instruction names.

        For each scope, the time is linear in the number of `symbols`, or of the names that the
        scope's instructions use, whichever is smaller.
        """
        return set().union(*(symbols.keys() & table.keys() for table in self._tables))


class _Resolver:
    """Gives numbers to register names; a declaration in an inner scope shadows outer ones."""

    def __init__(self, body: Body) -> None:
        self.names: list[str] = []
        self.types: list[str] = []
        self.widths: list[int] = []
        self._body = body
        self._numbers: dict[tuple[int, str], int] = {}
        self._declared: list[dict[str, tuple[int, str, int]]] = []
        self.tables: dict[int, _ScopeTable] = {}
        for scope in body.scopes:
            self._declared.append(
                {
                    r.name: (0 if r.size is None else r.size, r.type, r.lanes)
                    for r in scope.registers
                }
            )
        # Compilers declare as many registers as they use: number them at once. A declaration
        # out of proportion is resolved name by name.
        if body.declared_registers <= _FEW_REGISTERS + 4 * len(body.instructions):
            self._number_all(body.scopes[0].registers)

    def _number_all(self, declared: list[RegisterDeclaration]) -> None:
        table = self.table(0)
        for name, size, type_name, lanes in declared:
            names = [name] if size is None else [f"{name}{i}" for i in range(size)]
            start = len(self.names)
            table.update(zip(names, range(start, start + len(names)), strict=True))
            self.names += names
            self.types += [type_name] * len(names)
            self.widths += [REGISTER_WIDTHS.get(type_name, 1) * lanes] * len(names)

    def table(self, scope: int) -> _ScopeTable:
        """Return the table of names for a scope.

        A scope that declares no names shares the table of the nearest enclosing scope that does.
        """
        while scope > 0 and not self._declared[scope]:
            scope = self._body.scopes[scope].parent
        table = self.tables.get(scope)
        if table is None:
            table = self.tables[scope] = _ScopeTable(self, scope)
        return table

    def resolve(self, name: str, scope: int) -> int:
        """Return the number of the register that `name` means in a scope; -1 for any other name."""
        if name[:1].isdigit():
            return _NOT_A_REGISTER
        outermost = self.table(0)
        while scope >= 0:
            if scope == 0 and name in outermost:
                return outermost[name]
            found = self._find(name, self._declared[scope])
            if found is not None:
                return self._number(name, scope, found)
            scope = self._body.scopes[scope].parent
        return _NOT_A_REGISTER

    def _find(
        self, name: str, declared: dict[str, tuple[int, str, int]]
    ) -> tuple[int, str, int] | None:
        if not declared:
            return None
        single = declared.get(name)
        if single is not None and single[0] == 0:
            return single
        digits = _TRAILING_DIGITS.search(name)
        if digits is None:
            return None
        for start in range(digits.start(), len(name)):
            ranged = declared.get(name[:start])
            if ranged is not None and int(name[start:]) < ranged[0]:
                return ranged
        return None

    def _number(self, name: str, scope: int, found: tuple[int, str, int]) -> int:
        key = (scope, name)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.names)
            self.names.append(name)
            self.types.append(found[1])
            self.widths.append(REGISTER_WIDTHS.get(found[1], 1) * found[2])
        return number


class _ScopeTable(dict[str, int]):
    """Cache of one scope's names, each of which is resolved on its first use."""

    def __init__(self, resolver: _Resolver, scope: int) -> None:
        super().__init__()
        self._resolver = resolver
        self._scope = scope

    def __missing__(self, name: str) -> int:
        number = self._resolver.resolve(name, self._scope)
        if number == _NOT_A_REGISTER and "." in name[1:]:  # a lane of a vector register: v.x
            number = self._resolver.resolve(name.rpartition(".")[0], self._scope)
        self[name] = number
        return number


def analyse_dataflow(body: Body) -> Dataflow:
    """Return the definitions and uses of registers by every instruction.

    The destination of an opcode, if any, is the first operand. A guard counts as a use. Time and
    memory are linear in the length of the body's text.
    """
    resolver = _Resolver(body)
    defs: list[Registers] = []
    uses: list[Registers] = []
    tokens = _TOKENS.findall
    writes, none = Destination.WRITES, Destination.NONE
    table_scope = 0
    lookup = resolver.table(0).__getitem__
    for opcode, guard, text, _, scope, _ in body.instructions:
        if scope != table_scope:
            table_scope = scope
            lookup = resolver.table(scope).__getitem__
        kind = opcode.destination
        if kind is writes and "{" not in text and "|" not in text and "[" not in text[:3]:
            # The common form: one register is written, all others are read.
            found = list(map(lookup, tokens(text)))
            written = tuple(found[:1]) if found and found[0] >= 0 else ()
            read = [number for number in found[1:] if number >= 0]
        elif kind is none:
            written = ()
            read = [number for number in map(lookup, tokens(text)) if number >= 0]
        else:
            written, read = _other_forms(kind, text, lookup)
        if guard is not None:
            predicate = lookup(guard.lstrip("! \t\r\n"))
            if predicate >= 0:
                read.append(predicate)
        defs.append(written)
        uses.append(tuple(read))
    tables: list[dict[str, int]] = list(resolver.tables.values())
    return Dataflow(defs, uses, resolver.names, resolver.types, resolver.widths, tables)


def _other_forms(
    kind: Destination, text: str, lookup: Callable[[str], int]
) -> tuple[Registers, list[int]]:
    """Return the registers that an instruction of a less common form writes, and those it reads.

    Such an instruction is a call; or its first operand is a vector, a pair or an address; or its
    first operand is both read and written.
    """
    first = first_operand(text)
    in_first = [number for number in map(lookup, _TOKENS.findall(first)) if number >= 0]
    after = text[text.find(first) + len(first) :]
    in_rest = [number for number in map(lookup, _TOKENS.findall(after)) if number >= 0]
    if kind is Destination.CALL:
        returns = first.startswith("(") and bool(after.strip())
        return (tuple(in_first), in_rest) if returns else ((), in_first + in_rest)
    if kind is Destination.READS_AND_WRITES:
        return tuple(in_first), in_first + in_rest
    if first.startswith("["):
        return (), in_first + in_rest
    return tuple(in_first), in_rest
