"""Choose the kind (such as ``torch``) of functions written without one, by their framework."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from gpuemu_flow.config.model_ops import ProgramRef
from gpuemu_flow.config.positions import KeyPath
from gpuemu_flow.config.report import Reporter, dotted, shown
from gpuemu_flow.syntax import parse_python
from gpuemu_flow.types import XLA_COMPILED, XLA_STEPWISE, Json

PACKAGES = {
    "pytorch": "torch",
    "jax": "jax",
    "tensorflow": "tensorflow",
    "numpy": "numpy",
    "triton": "triton",
}
_KINDS = {"pytorch": "torch", "jax": "jax", "numpy": "numpy", "triton": "triton"}
"""Kinds of functions by framework. TensorFlow has none, since its functions take numpy arrays."""
_JAX = "jax"
_LARGEST = 4 << 20
Table = Mapping[str, Json]


class FrameworkKinds(Struct):
    """Chooses the kind, such as ``torch``, of functions that the configuration writes without one.

    The kind is that of the first framework that the configuration names and the function's source
    file imports.

    Attributes
    ----------
    out : Reporter
    project : str
        ``project.framework``; empty if it is not set.
    consulted : set of Path
        Source files whose imports were read. The configuration depends on these files.
    """

    out: Reporter
    project: str
    consulted: set[Path]
    _imports: dict[Path, frozenset[str]] = {}

    def apply(self, table: Table, ref: ProgramRef | None, written: Json) -> ProgramRef | None:
        """Return `ref`, with the kind of a framework if the program is written without a kind.

        The framework is the first one that the configuration names and the program's file imports.
        If there is none, `ref` is returned unchanged.

        Parameters
        ----------
        table : mapping
            The op's table.
        ref : ProgramRef or None
            The op or the reference.
        written : JSON
            The program as written in the configuration file.
        """
        named = self._named(table)
        if ref is None or ref.kind != "callable" or not isinstance(written, str):
            return ref
        for framework in named or ([self.project] if self.project else []):
            if framework in _KINDS and PACKAGES[framework] in self._imported(ref):
                return replace(ref, kind=_KINDS[framework])
        return ref

    def check(
        self,
        table: Table,
        where: KeyPath,
        op: ProgramRef | None,
        reference: ProgramRef,
    ) -> None:
        """Report frameworks that an op's table names and that neither program imports.

        Also report a table that has both ``framework`` and ``frameworks``.
        """
        named = self._named(table)
        if table.get("framework") and table.get("frameworks"):
            place = (*where, "framework")
            text = f"both {dotted(place)} and frameworks are given"
            self.out.add("config-conflict", place, text, "keep framework")
        if not named or op is None:
            return
        key = "framework" if table.get("framework") else "frameworks"
        refs = [ref for ref in (op, reference) if ref.path is not None and not ref.argv]
        known = {name for ref in refs for name in self._imported(ref)}
        used = {ref.kind for ref in (op, reference)}
        unseen = [n for n in named if PACKAGES[n] not in known and _KINDS.get(n) not in used]
        if unseen:
            place = (*where, key)
            text = f"{dotted(place)} names {', '.join(unseen)}, which neither program imports"
            hint = "remove it, or import the framework in the file of the op"
            self.out.add("config-unread-key", place, text, hint)

    def xla(self, table: Table, where: KeyPath, op: ProgramRef | None) -> ProgramRef | None:
        """Return the op after applying its table's setting ``xla_compatible``, if it is set."""
        said = table.get("xla_compatible")
        if said is None or op is None:
            return op
        if op.kind == _JAX:
            argv = ("", XLA_COMPILED if said else XLA_STEPWISE)
            return replace(op, argv=argv, portable_argv=argv)
        if said:
            place = (*where, "xla_compatible")
            text = f"{dotted(place)} needs a function of JAX, which {shown(op.text)} is not"
            hint = 'op = { kind = "jax", file = "x.py", function = "f" }, or remove it'
            self.out.add("config-unread-key", place, text, hint)
        return op

    @staticmethod
    def _named(table: Table) -> list[str]:
        one, several = table.get("framework"), table.get("frameworks") or ()
        return [name for name in ([one] if one else several) if name in PACKAGES]

    def _imported(self, ref: ProgramRef) -> frozenset[str]:
        """Return the packages that a program's file imports directly."""
        path = ref.path
        if path is None or path.suffix != ".py":
            return frozenset()
        if path not in self._imports:
            self.consulted.add(path)
            self._imports[path] = imported_packages(path)
        return self._imports[path]


def imported_packages(path: Path) -> frozenset[str]:
    """Return the top-level packages that a file imports anywhere; empty if it cannot be parsed."""
    try:
        with path.open("rb") as file:
            source = file.read(_LARGEST + 1)
        tree = parse_python(source) if len(source) <= _LARGEST else ast.Module([], [])
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names.add(node.module.partition(".")[0])
    return frozenset(names)
