"""Resolve ``module = "pkg.mod"`` to a function of the workspace, without importing it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from msgspec import Struct

from gpuemu_flow.config.model_ops import ProgramRef
from gpuemu_flow.config.positions import KeyPath
from gpuemu_flow.config.programs import Programs
from gpuemu_flow.syntax import parse_python

MAX_SOURCE = 4 << 20


class Modules(Struct):
    """Finds the callables that values of ``module`` keys name.

    Attributes
    ----------
    programs : Programs
    consulted : set of Path
        Source files that were read to find a function. The configuration depends on these files.
    """

    programs: Programs
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
