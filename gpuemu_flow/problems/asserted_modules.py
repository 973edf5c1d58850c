"""Find the local modules that a test imports, by reading its import statements."""

from __future__ import annotations

import ast
import re
from dataclasses import field
from pathlib import Path

from gpuemu_flow.config.find import exists, is_file
from gpuemu_flow.problems.asserted_values import NotUnderstoodError
from gpuemu_flow.problems.found import needs_compiler, read_source
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.syntax import parse_python

MOST_MODULES = 500
_MARKS = ("pyproject.toml", "setup.py", "setup.cfg", ".git", "pytest.ini", "conftest.py")
_RESERVED = ("adapters", "asserted")


@dataclass
class LocalModules:
    """The project's own modules that one file of tests imports; installed packages are left out.

    Attributes
    ----------
    file : Path
    found : dict of str to bytes
        Contents of the modules found so far, by path in the workspace.
    """

    file: Path
    found: dict[str, bytes] = field(default_factory=dict)

    def imported(self, node: ast.stmt, text: str) -> str:
        """Record the modules that a top-level statement imports, and return the statement's text.

        In the returned text, a relative import is absolute.

        Raises
        ------
        NotUnderstoodError
            A module needs a compiler, or lies outside of the project.
        """
        if isinstance(node, ast.ImportFrom) and node.level:
            folder = self.file.resolve().parent
            for _ in range(node.level - 1):
                folder = folder.parent
            base = folder
            while is_file(base / "__init__.py"):
                base = base.parent
            parts = [*folder.relative_to(base).parts, *(node.module or "").split(".")]
            name = ".".join(part for part in parts if part)
            self._note(base, name, [one.name for one in node.names])
            dots = "." * node.level + (node.module or "")
            return text.replace(f"from {dots} import", f"from {name} import", 1)
        for one in ast.walk(node):
            if isinstance(one, ast.Import):
                for alias in one.names:
                    self._look(alias.name, [])
            elif isinstance(one, ast.ImportFrom) and one.module and not one.level:
                self._look(one.module, [alias.name for alias in one.names])
        return text

    def mention(self, text: str, word: str) -> bool:
        """Tell whether a word occurs in a program, or in a local module that it imports."""
        sought = re.compile(rb"\b" + word.encode() + rb"\b")
        if sought.search(text.encode()):
            return True
        names = set(re.findall(r"^\s*(?:from|import)\s+([\w.]+)", text, re.MULTILINE))
        tops = {name.partition(".")[0] for name in names}
        return any(
            sought.search(content) is not None
            for path, content in self.found.items()
            if Path(path).parts[0].removesuffix(".py") in tops
        )

    def _look(self, name: str, members: list[str]) -> None:
        for base in self._bases():
            first = name.split(".", maxsplit=1)[0]
            if is_file(base / f"{first}.py") or is_file(base / first / "__init__.py"):
                self._note(base, name, members)
                return
            # A folder without __init__.py is a package, too, where it holds the module.
            if exists(base / first) and self._file(base, name) is not None:
                self._note(base, name, members)
                return

    def _bases(self) -> list[Path]:
        here = self.file.resolve().parent
        found = [here]
        for folder in here.parents:
            if any(exists(found[-1] / mark) for mark in _MARKS) and found[-1] != here:
                break
            if len(found) > 5:
                break
            found += [folder, folder / "src"]
        return found

    @staticmethod
    def _file(base: Path, name: str) -> Path | None:
        stem = base.joinpath(*name.split("."))
        for place in (stem.with_suffix(".py"), stem / "__init__.py"):
            if is_file(place):
                return place
        return None

    def _note(self, base: Path, name: str, members: list[str]) -> None:
        """Record a module and its packages, and the local modules that all of them import.

        Parameters
        ----------
        base : Path
            The folder that contains the top-level package.
        name : str
            The module's full name.
        members : list of str
            Names that are imported from the module. Those that are modules are recorded, too.
        """
        parts = name.split(".")
        for at in range(1, len(parts) + 1):
            place = self._file(base, ".".join(parts[:at]))
            if place is not None:
                self._add(base, place)
        for member in members:
            place = self._file(base, f"{name}.{member}")
            if place is not None:
                self._add(base, place)

    def _check(self, base: Path, place: Path, path: str) -> None:
        """Raise `NotUnderstoodError` if a module cannot be copied into the workspace."""
        if len(self.found) >= MOST_MODULES:
            raise NotUnderstoodError(f"it imports more than {MOST_MODULES} modules of its own")
        if Path(path).parts[0].removesuffix(".py") in _RESERVED:
            raise NotUnderstoodError(f"a module of its own is called {path}: rename it")
        if not place.resolve().is_relative_to(base.resolve()):
            raise NotUnderstoodError(f"its module {path} is a link that leads away")

    def _add(self, base: Path, place: Path) -> None:
        path = place.relative_to(base).as_posix()
        if path in self.found:
            return
        self._check(base, place, path)
        content = read_source(place)
        self.found[path] = content
        try:
            tree = parse_python(content, path)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return
        reason = needs_compiler(tree)
        if reason:
            del self.found[path]
            raise NotUnderstoodError(reason)
        package = list(Path(path).parent.parts)
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self._near(base, alias.name, [])
            elif isinstance(node, ast.ImportFrom):
                members = [alias.name for alias in node.names]
                if node.level:
                    kept = package[: len(package) - node.level + 1]
                    name = ".".join([*kept, *([node.module] if node.module else [])])
                    if name:
                        self._note(base, name, members)
                elif node.module:
                    self._near(base, node.module, members)

    def _near(self, base: Path, name: str, members: list[str]) -> None:
        first = name.split(".", maxsplit=1)[0]
        if is_file(base / f"{first}.py") or is_file(base / first / "__init__.py"):
            self._note(base, name, members)
