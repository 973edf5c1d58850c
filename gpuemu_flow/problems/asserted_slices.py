"""Cut a test down to the statements that one value depends on."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field

from gpuemu_flow.problems.asserted_inputs import walk_all
from gpuemu_flow.problems.asserted_values import first_name, last_name
from gpuemu_flow.quick_dataclass import dataclass

_WITHOUT_EFFECT = {"print", "synchronize", "manual_seed", "seed", "skip", "empty_cache", "collect",
                   "retain_grad", "manual_seed_all", "set_default_device"}  # fmt: skip
_GRADIENT = ".grad"


def names_read(node: ast.AST) -> set[str]:
    """Return the names that an expression or statement reads; a gradient is ``NAME.grad``."""
    inner = _bound_inside(node)
    found = {
        one.id
        for one in ast.walk(node)
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load) and one.id not in inner
    }
    for one in ast.walk(node):
        if isinstance(one, ast.Attribute) and one.attr == "grad":
            base = first_name(one.value)
            # The base is a comprehension's variable, which may stand for any of the names.
            owners = {each for each in found if _GRADIENT not in each} if base in inner else {base}
            found |= {f"{each}{_GRADIENT}" for each in owners}
    return found


def _bound_inside(node: ast.AST) -> set[str]:
    """Return the names that are local to the comprehensions, lambdas and functions in a node."""
    found: set[str] = set()
    for one in ast.walk(node):
        if isinstance(one, ast.comprehension):
            found |= _stored(one.target)
        elif isinstance(one, (ast.Lambda, ast.FunctionDef)):
            arguments = one.args
            every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
            found |= {each.arg for each in (*every, arguments.vararg, arguments.kwarg) if each}
            found |= _stored(one)
    return found


@dataclass
class Slicer:
    """Finds the statements that values depend on; reads a test from its end to its start.

    Attributes
    ----------
    wanted : set of str
        Names whose values are needed by the statements that were kept so far.
    buffers : set of str
        Names that calls may write into.
    graph : mapping of int to (set of str)
        The names that a backward pass reaches, by ``id()`` of its statement.
    """

    wanted: set[str]
    buffers: AbstractSet[str]
    graph: Mapping[int, AbstractSet[str]] = field(default_factory=dict)

    def cut(self, body: Sequence[ast.stmt], *, weak: bool = False) -> list[ast.stmt]:
        """Return the statements of `body` on which the names in the attribute `wanted` depend.

        Parameters
        ----------
        weak : bool
            True if `body` may be skipped at run time, like a branch of an ``if``. Names that it
            assigns may then keep earlier values, so the search for their assignments goes on.
        """
        kept = [self._needed_part(one, weak) for one in reversed(body)]
        return [one for one in reversed(kept) if one is not None]

    def _needed_part(self, node: ast.stmt, weak: bool) -> ast.stmt | None:
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            return self._assign(node, weak)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            return self._call(node, node.value)
        if isinstance(node, (ast.With, ast.If)):
            return self._with(node, weak) if isinstance(node, ast.With) else self._if(node)
        bound: set[str] = set()
        if isinstance(node, (ast.For, ast.While, ast.Try)):
            bound = _stored(node) | self._effects(node)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            bound = {(one.asname or one.name).partition(".")[0] for one in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            bound = {node.name}
        return self._keep(node) if bound & self.wanted else None

    def _keep(self, node: ast.stmt) -> ast.stmt:
        self.wanted |= names_read(node)
        return node

    def _assign(
        self, node: ast.Assign | ast.AnnAssign | ast.AugAssign, weak: bool
    ) -> ast.stmt | None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        parts = [one for target in targets for one in _flat(target)]
        gradients = {
            f"{first_name(one)}{_GRADIENT}"
            for one in parts
            if isinstance(one, ast.Attribute) and one.attr == "grad"
        }
        self.wanted -= gradients  # what was added up before is forgotten
        if gradients and len(gradients) == len(parts):
            return None
        plain = {one.id for one in parts if isinstance(one, ast.Name)}
        inside = {
            first_name(one)
            for one in parts
            if not isinstance(one, ast.Name)
            and not (isinstance(one, ast.Attribute) and one.attr == "grad")
        }
        if not (plain | inside) & self.wanted:
            return self._keep(node) if self._effects(node) & self.wanted else None
        if not weak and not isinstance(node, ast.AugAssign):
            self.wanted -= plain
        return self._keep(node)

    def _call(self, node: ast.stmt, call: ast.Call) -> ast.stmt | None:
        name = last_name(call.func)
        owner = first_name(call.func) if isinstance(call.func, ast.Attribute) else ""
        changed: set[str] = set()
        if name == "backward":
            changed = {f"{one}{_GRADIENT}" for one in self.graph.get(id(node), ())}
        elif name == "zero_" and ast.unparse(call.func).endswith(".grad.zero_"):
            self.wanted.discard(f"{owner}{_GRADIENT}")
        elif name not in _WITHOUT_EFFECT and "assert" not in name:
            changed = self._effects(node)
            changed |= {owner} - {"", "torch", "np", "jax", "triton"}
        return self._keep(node) if changed & self.wanted else None

    def _effects(self, node: ast.AST) -> set[str]:
        """Return the names that calls in a statement may write into."""
        found = set()
        for call in (one for one in ast.walk(node) if isinstance(one, ast.Call)):
            given = {first_name(one) for one in (*call.args, *(k.value for k in call.keywords))}
            written = given & self.buffers
            if isinstance(node, ast.Expr) and call is node.value and not written:
                written = given
            found |= written
        return found - {""}

    def _with(self, node: ast.With, weak: bool) -> ast.stmt | None:
        body = self.cut(node.body, weak=weak)
        if not body:
            return None
        for item in node.items:
            self.wanted |= names_read(item.context_expr)
        return ast.copy_location(ast.With(node.items, body, None), node)

    def _if(self, node: ast.If) -> ast.stmt | None:
        before = set(self.wanted)
        body = self.cut(node.body, weak=True)
        after, self.wanted = self.wanted, before
        orelse = self.cut(node.orelse, weak=True)
        self.wanted |= after
        if not body and not orelse:
            return None
        self.wanted |= names_read(node.test)
        return ast.copy_location(ast.If(node.test, body or [ast.Pass()], orelse), node)


def backward_graph(body: Sequence[ast.stmt]) -> dict[int, set[str]]:
    """Return the names that each backward pass reaches, by ``id()`` of its statement."""
    known: dict[str, set[str]] = {}
    found: dict[int, set[str]] = {}
    for node in walk_all(body):
        if isinstance(node, ast.Assign):
            text = ast.unparse(node.value)
            reads = names_read(node.value)
            reached = set(reads).union(*(known.get(one, set()) for one in reads))
            if ".detach(" in text or ".data" in text:
                reached = set()
            for target in node.targets:
                for one in _flat(target):
                    if isinstance(one, ast.Name):
                        known[one.id] = reached | {one.id}
        elif (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Call)
            and last_name(node.value.func) == "backward"
        ):
            reads = names_read(node.value)
            found[id(node)] = set(reads).union(*(known.get(one, set()) for one in reads))
    return found


def _flat(target: ast.expr) -> list[ast.expr]:
    if isinstance(target, (ast.Tuple, ast.List)):
        return [one for each in target.elts for one in _flat(each)]
    return [target.value if isinstance(target, ast.Starred) else target]


def _stored(node: ast.AST) -> set[str]:
    return {
        one.id
        for one in ast.walk(node)
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
    }


@dataclass(frozen=True)
class ModuleText:
    """The top level of a test's file.

    Attributes
    ----------
    text : str
    tree : ast.Module
    """

    text: str
    tree: ast.Module

    def closure(self, names: AbstractSet[str]) -> tuple[list[ast.stmt], set[str]]:
        """Return the statements on which `names` depend, and all names that these statements need.

        The returned names include `names`.
        """
        wanted, kept = set(names), set()
        changed = True
        while changed:
            changed = False
            for at, node in enumerate(self.tree.body):
                if at not in kept and self._bound(node) & wanted:
                    kept.add(at)
                    wanted |= names_read(node)
                    changed = True
        return [self.tree.body[at] for at in sorted(kept)], wanted

    def _bound(self, node: ast.stmt) -> set[str]:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            return {(one.asname or one.name).partition(".")[0] for one in node.names}
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            return {node.name}
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.Try, ast.If, ast.AugAssign)):
            inner = {
                bound
                for one in ast.walk(node)
                if isinstance(one, (ast.Import, ast.ImportFrom, ast.FunctionDef))
                for bound in self._bound(one)
            }
            return _stored(node) | inner
        return set()

    def source(self, node: ast.stmt, names: AbstractSet[str]) -> str:
        """Return the text of a statement, without the unused names of an import."""
        if isinstance(node, ast.ImportFrom):
            used = [one for one in node.names if (one.asname or one.name) in names]
            kept = ast.ImportFrom(node.module, used or node.names, node.level)
            return ast.unparse(kept)
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(one.lineno for one in decorators)])
        lines = self.text.splitlines()[first - 1 : node.end_lineno]
        return "\n".join(lines)
