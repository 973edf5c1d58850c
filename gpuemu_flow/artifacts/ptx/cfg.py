"""Control-flow graph of a function body: blocks, edges, loops."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import field

from gpuemu_flow.artifacts.ptx.model import Body, Instruction
from gpuemu_flow.artifacts.ptx.operands import split_operands
from gpuemu_flow.quick_dataclass import dataclass

MAX_EDGES = 1_000_000
"""Limit on branch-table edges of one function; a hostile file could demand many times more."""


@dataclass
class ControlFlowGraph:
    """Basic blocks in file order; block ``b`` holds instructions ``starts[b]`` to ``ends[b] - 1``.

    Attributes
    ----------
    starts, ends : list of int
    successors, predecessors : list of list of int
        Block numbers.
    leaves : list of bool
        For each block, True if it may end the thread (``ret``, ``exit``, ``trap``, or the body's
        end).
    unresolved : list of int
        Instructions that branch to a label that does not exist. They count as branches to the end
        of the function.
    """

    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    successors: list[list[int]] = field(default_factory=list)
    predecessors: list[list[int]] = field(default_factory=list)
    leaves: list[bool] = field(default_factory=list)
    unresolved: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.starts)

    def block_of(self, instruction: int) -> int:
        """Return the number of the block that holds an instruction."""
        return bisect_right(self.starts, instruction) - 1

    def blocks_in_loops(self) -> list[bool]:
        """Tell for each block whether it lies on a cycle of the graph."""
        return [self._on_cycle(members) for members in self.components()]

    def _on_cycle(self, members: list[int]) -> bool:
        return len(members) > 1 or members[0] in self.successors[members[0]]

    def components(self) -> list[list[int]]:
        """Return, for each block, the blocks of its strongly connected component.

        Blocks of one component share one list object. The algorithm is Tarjan's (1972), without
        recursion.
        """
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
    """Return the labels that a branch may go to; none if its ``.branchtargets`` does not exist."""
    if branch.opcode.base == "bra":
        return (branch.text.strip(),)
    operands = split_operands(branch.text)
    table = body.resolve_branch_targets(operands[-1], branch.scope) if operands else None
    return table or ()
