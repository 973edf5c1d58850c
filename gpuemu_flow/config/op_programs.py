"""Relate an op's programs to its table: kind by framework, key ``module``, and no program twice."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from gpuemu_flow.config.model_ops import ProgramRef
from gpuemu_flow.config.positions import KeyPath
from gpuemu_flow.config.programs import Programs, compiled_triton
from gpuemu_flow.config.report import Reporter, dotted, shown
from gpuemu_flow.model.installed import is_installed
from gpuemu_flow.model.syntax import parse_python
from gpuemu_flow.model.types import XLA_COMPILED, XLA_STEPWISE, Json

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
_EXTENSION = "torch.utils.cpp_extension"
_GLUON = "triton.experimental.gluon"
_TOLD = (_EXTENSION, _GLUON)
"""Modules whose imports decide how a program is run."""
_LARGEST = 4 << 20
Table = Mapping[str, Json]


class FrameworkKinds(Struct):
    """Chooses the kind, such as ``torch``, of functions that the configuration writes without one.

    The kind is that of the first framework that the configuration names and the function's source
    file imports.
    """

    out: Reporter
    # ``project.framework``; empty if it is not set.
    project: str
    # Source files whose imports were read. The configuration depends on these files.
    consulted: set[Path]
    _imports: dict[Path, frozenset[str]] = {}

    def apply(
        self, table: Table, ref: ProgramRef | None, written: Json, op: ProgramRef | None = None
    ) -> ProgramRef | None:
        """Return `ref`, with the kind of a framework if the program is written without a kind.

        The framework is the first one that the configuration names and the program's file imports;
        PyTorch if the file, or that of the reference's `op`, builds an extension of PyTorch. If
        there is none, `ref` is returned unchanged.
        """
        named = self._named(table)
        # An edit of these files counts by what they import, which the graph's basis holds anyway.
        if not named and any(_EXTENSION in self._imports_of(r) for r in (ref, op) if r is not None):
            named = ["pytorch"]
        if ref is not None and ref.kind == "triton" and not ref.argv:
            # Triton's interpreter does not know Gluon.
            return compiled_triton(ref) if _GLUON in self._imported(ref) else ref
        if ref is None or ref.kind != "callable" or not isinstance(written, str):
            return ref
        for framework in named or ([self.project] if self.project else []):
            if framework in _KINDS and PACKAGES[framework] in self._imported(ref):
                return self.apply(table, replace(ref, kind=_KINDS[framework]), written, op)
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
        """Return the packages that a program's file imports; an edit of it changes the result."""
        if ref.path is not None and ref.path.suffix == ".py":
            self.consulted.add(ref.path)
        return self._imports_of(ref)

    def _imports_of(self, ref: ProgramRef) -> frozenset[str]:
        path = ref.path
        if path is None or path.suffix != ".py":
            return frozenset()
        if path not in self._imports:
            self._imports[path] = imported_packages(path)
        return self._imports[path]


def imported_packages(path: Path) -> frozenset[str]:
    """Return the top-level packages that a file imports anywhere; empty if it cannot be parsed.

    Modules that decide how a program is run are named, too.
    """
    try:
        with path.open("rb") as file:
            source = file.read(_LARGEST + 1)
        tree = parse_python(source) if len(source) <= _LARGEST else ast.Module([], [])
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names.update((node.module, *(f"{node.module}.{alias.name}" for alias in node.names)))
    tops = {name.partition(".")[0] for name in names}
    told = {
        module for module in _TOLD if any(f"{name}.".startswith(f"{module}.") for name in names)
    }
    return frozenset(tops | told)


# Refuse an op that is its own reference, or that has to be able to read its reference's file.


_SLUG = "config-op-is-reference"
_EMULATED = ("ptx", "cuda")


def refuse_one_program(
    op: ProgramRef,
    reference: ProgramRef,
    place: KeyPath,
    out: Reporter,
    *,
    root: Path,
    fenced: bool,
) -> None:
    """Report an op and a reference that are one program or, in the sandbox, in one file.

    A program has to read its own file, so that no sandbox can hide a reference that is in it. A
    compiled kernel reads no files.
    """
    if _identity(op) == _identity(reference):
        text = f"{shown(op.text)} is the op and its reference: it would pass whatever it does"
        out.add(_SLUG, place, text, "name a reference that is written independently")
        return
    ours, theirs = list(_files(op, root)), next(_files(reference, root), None)
    if not fenced or op.kind in _EMULATED or theirs is None:
        return
    name = os.path.relpath(theirs, os.path.realpath(root))
    hint = 'put the reference in a file of its own, or set mode = "off" in [sandbox]'
    if theirs in ours:
        text = f"the op and its reference are both in {name}: the sandbox cannot hide the reference"
        out.add(_SLUG, place, text, hint)
    elif theirs.name == "__init__.py" and any(f.is_relative_to(theirs.parent) for f in ours):
        text = f"importing the op runs its reference's file, {name}: the sandbox cannot hide it"
        out.add(_SLUG, place, text, hint)


def _identity(program: ProgramRef) -> tuple[str, ...]:
    """Return what tells a program from others: its file's real path, or its module, and more."""
    path = program.loads or program.path
    place = os.path.realpath(path) if path is not None else program.module
    if program.loads is not None:
        return (place,)
    # A flag in the arguments of a module may choose another computation.
    arguments = program.argv[1:] if program.kind == "torch" or not program.function else ()
    return (place, program.kernel, program.function, *arguments)


def _files(program: ProgramRef, root: Path) -> Iterator[Path]:
    """Yield the real paths of a program's files in the workspace, its main file first."""
    inside = Path(os.path.realpath(root))
    files = program.files if program.loads is None else (program.loads, *program.files)
    for path in map(Path, map(os.path.realpath, files)):
        if path.is_relative_to(inside) and not is_installed(str(path)):
            yield path


# Resolve ``module = "pkg.mod"`` to a function of the workspace, without importing it.


MAX_SOURCE = 4 << 20


class Modules(Struct):
    """Finds the callables that values of ``module`` keys name."""

    programs: Programs
    # Source files that were read to find a function. The configuration depends on these
    # files.
    consulted: set[Path] = set()

    def callable_of(self, text: str, op_name: str, where: KeyPath) -> tuple[ProgramRef | None, str]:
        """Return the callable, or None with the reason why it cannot be run.

        ``pkg.mod:function`` names the function itself. A dotted path without a function, such as
        ``pkg.mod``, is looked up in this order: the function in ``pkg.mod`` with the op's name, the
        function ``mod`` in ``pkg.mod``, and the attribute ``mod`` of ``pkg``.
        """
        if ":" in text or text.endswith(".py"):
            return self._written_out(text, where)
        if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", text):
            self.programs.out.add(
                "config-value", where, f"module = {text!r} is no dotted module path",
                "pkg.mod, pkg.mod:function or path.py:function",
            )  # fmt: skip
            return None, ""
        path = self.programs.module_file(text, where)
        if path is not None:
            last = text.rsplit(".", 1)[-1]
            wanted = dict.fromkeys((re.split(r"\W+", op_name.strip("/.:-"))[-1], last))
            defined = self._top_level_names(path)
            for function in wanted:
                if function in defined:
                    return self.programs.function_of_module(text, function, where, text), ""
            names = " or ".join(f"{name!r}" for name in wanted)
            return None, f'module {text} defines no {names}; write module = "{text}:function"'
        parent, dot, function = text.rpartition(".")
        if dot and self.programs.module_file(parent, where) is not None:
            return self.programs.function_of_module(parent, function, where, text), ""
        hint = f'write module = "{text}:function" if it is installed'
        return None, f"module {text} is not in the workspace; {hint}"

    def _written_out(self, text: str, where: KeyPath) -> tuple[ProgramRef | None, str]:
        if ":" not in text:
            hint = f'write module = "{text}:function"'
            self.programs.out.add(
                "config-value", where, f"module = {text!r} names no function", hint
            )
            return None, ""
        return self.programs.parse(text, where), ""

    def _top_level_names(self, path: Path) -> set[str]:
        """Return the names that a file defines or imports at its top level.

        The result is empty if the file cannot be read and parsed as Python.
        """
        self.consulted.add(path)
        try:
            if path.stat().st_size > MAX_SOURCE:
                return set()
            tree = parse_python(path.read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            return set()
        names: set[str] = set()
        for node in tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                names.add(node.name)
            elif isinstance(node, ast.Assign):
                names.update(t.id for t in node.targets if isinstance(t, ast.Name))
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                names.update(a.asname or a.name for a in node.names)
        return names
