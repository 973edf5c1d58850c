"""The registers that each instruction writes and reads, as numbers, with scopes resolved."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping

from msgspec import Struct, field

from gpuemu_flow.lint.ptx.model import (
    Body,
    Destination,
    Instruction,
    RegisterDeclaration,
    first_operand,
    split_operands,
)

Registers = tuple[int, ...]

_TOKENS = re.compile(r"[\w$%.]+", re.ASCII)
_TRAILING_DIGITS = re.compile(r"\d{1,9}\Z", re.ASCII)
_NOT_A_REGISTER = -1
_FEW_REGISTERS = 4096

REGISTER_WIDTHS: dict[str, int] = {"pred": 0, "b64": 2, "u64": 2, "s64": 2, "f64": 2, "b128": 4}
"""32-bit registers that one virtual register takes; 1 for types not listed."""


class Dataflow(Struct):
    """Definitions and uses of registers in a body, with one entry per instruction."""

    defs: list[Registers]
    uses: list[Registers]
    names: list[str]
    types: list[str]
    widths: list[int]
    _tables: list[dict[str, int]]

    def mentions(self, symbol: str) -> bool:
        return any(symbol in table for table in self._tables)

    def mentioned_among(self, symbols: Mapping[str, object]) -> set[str]:
        """Return those of `symbols` that any instruction names. For each scope, the time is linear
        in the number of `symbols`, or of the names that the scope's instructions use, whichever is
        smaller."""
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
        """Return the table of names for a scope. A scope that declares no names shares the table of
        the nearest enclosing scope that does."""
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
    """Return the definitions and uses of registers by every instruction. The destination of an
    opcode, if any, is the first operand. A guard counts as a use. Time and memory are linear in the
    length of the body's text."""
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
    first operand is both read and written."""
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


# Control-flow graph of a function body: blocks, edges, loops.


MAX_EDGES = 1_000_000
"""Limit on branch-table edges of one function; a hostile file could demand many times more."""


class ControlFlowGraph(Struct):
    """Basic blocks in file order: block ``b`` holds instructions ``starts[b]`` to ``ends[b] - 1``.
    ``leaves`` tells for each block whether it may end the thread. Instructions of ``unresolved``
    branch to a label that does not exist; they count as branches to the end of the function."""

    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    successors: list[list[int]] = field(default_factory=list)
    predecessors: list[list[int]] = field(default_factory=list)
    leaves: list[bool] = field(default_factory=list)
    unresolved: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.starts)

    def block_of(self, instruction: int) -> int:
        return bisect_right(self.starts, instruction) - 1

    def blocks_in_loops(self) -> list[bool]:
        """Tell for each block whether it lies on a cycle of the graph."""
        return [self._on_cycle(members) for members in self.components()]

    def _on_cycle(self, members: list[int]) -> bool:
        return len(members) > 1 or members[0] in self.successors[members[0]]

    def components(self) -> list[list[int]]:
        """Return, for each block, the blocks of its strongly connected component. Blocks of one
        component share one list object. The algorithm is Tarjan's (1972), without recursion."""
        count = len(self)
        order = [-1] * count
        low = [0] * count
        component: list[list[int] | None] = [None] * count
        stack: list[int] = []
        next_order = 0
        for root in range(count):
            if order[root] >= 0:
                continue
            path = [(root, 0)]
            while path:
                block, edge = path.pop()
                if edge == 0:
                    order[block] = low[block] = next_order
                    next_order += 1
                    stack.append(block)
                descended = False
                successors = self.successors[block]
                while edge < len(successors):
                    target = successors[edge]
                    edge += 1
                    if order[target] < 0:
                        path.append((block, edge))
                        path.append((target, 0))
                        descended = True
                        break
                    if component[target] is None:
                        low[block] = min(low[block], order[target])
                if descended:
                    continue
                if low[block] == order[block]:
                    members: list[int] = []
                    while True:
                        member = stack.pop()
                        component[member] = members
                        members.append(member)
                        if member == block:
                            break
                if path:
                    parent = path[-1][0]
                    low[parent] = min(low[parent], low[block])
        return [members for members in component if members is not None]


def build_cfg(body: Body) -> ControlFlowGraph:
    """Build the blocks and edges of a body."""
    instructions = body.instructions
    count = len(instructions)
    graph = ControlFlowGraph()
    if not count:
        return graph
    targets: dict[int, list[int]] = {}
    leaders = {0}
    edges = 0
    for index, instruction in enumerate(instructions):
        if not instruction.opcode.ends_block:
            continue
        leaders.add(index + 1)
        if instruction.opcode.is_branch:
            names = _target_names(body, instruction)
            edges += len(names)
            if edges > MAX_EDGES:
                names = ()
            found = [body.resolve_label(name, instruction.scope) for name in names]
            if not found or None in found:
                graph.unresolved.append(index)
            targets[index] = [target for target in found if target is not None]
            leaders.update(targets[index])
    graph.starts = sorted(leader for leader in leaders if leader < count)
    graph.ends = [*graph.starts[1:], count]
    number = {start: block for block, start in enumerate(graph.starts)}
    unresolved = set(graph.unresolved)
    graph.predecessors = [[] for _ in graph.starts]
    for block, end in enumerate(graph.ends):
        last = instructions[end - 1]
        branches = targets.get(end - 1, [])
        successors = [number[target] for target in dict.fromkeys(branches) if target in number]
        leaves = end - 1 in unresolved or len(successors) < len(set(branches))
        if last.opcode.is_terminator:
            leaves = True
        if last.guard is not None or not last.opcode.ends_block:
            if block + 1 == len(graph.starts):
                leaves = True
            elif block + 1 not in successors:
                successors.append(block + 1)
        graph.successors.append(successors)
        graph.leaves.append(leaves)
        for target in successors:
            graph.predecessors[target].append(block)
    return graph


def _target_names(body: Body, branch: Instruction) -> tuple[str, ...]:
    if branch.opcode.base == "bra":
        return (branch.text.strip(),)
    operands = split_operands(branch.text)
    table = body.resolve_branch_targets(operands[-1], branch.scope) if operands else None
    return table or ()
