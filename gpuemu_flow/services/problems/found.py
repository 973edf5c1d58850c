"""Find a collection's problems and candidates in the text of files; no code is run."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

from gpuemu_flow.model.errors import Problem, UsageError
from gpuemu_flow.model.syntax import parse_python
from gpuemu_flow.services.problems.model import SkippedProblem

MOST_FILES = 5_000
LARGEST_FILE = 1 << 20
_NAME = re.compile(r"[^A-Za-z0-9_.-]+")
SKIPPED = {".git", ".venv", "__pycache__", ".gpuemu-cache", "node_modules"}


def python_files(path: Path) -> list[Path]:
    """Return a file, or all Python files below a folder; see `files_with`."""
    return files_with(path, (".py",), "Python files")


def files_with(path: Path, endings: tuple[str, ...], kind: str) -> list[Path]:
    """Return a file, or all files below a folder with one of the endings, sorted.

    Links are not followed.

    Raises UsageError: ``import-not-found``, ``import-too-many``.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UsageError(
            Problem("import-not-found", f"there is no {path}", "give a file or folder")
        )
    found = []
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if name not in SKIPPED)
        here = (Path(folder, name) for name in sorted(names) if name.endswith(endings))
        found += [one for one in here if one.is_file() and not one.is_symlink()]
        if len(found) > MOST_FILES:
            text = f"{path} holds more than {MOST_FILES} {kind}"
            raise UsageError(Problem("import-too-many", text, "give a folder below it"))
    return found


def files_named(name: str, root: Path) -> list[Path]:
    """Return the files called `name` below a folder, without links.

    Raises UsageError: ``import-too-many``.
    """
    found = []
    for count, (folder, folders, names) in enumerate(os.walk(root)):
        folders[:] = sorted(inner for inner in folders if inner not in SKIPPED)
        file = Path(folder, name)
        if name in names and file.is_file() and not file.is_symlink():
            found.append(file)
        if count > MOST_FILES:
            text = f"{root} holds more than {MOST_FILES} folders"
            raise UsageError(Problem("import-too-many", text, "give a folder below it"))
    return found


def read_source(path: Path) -> bytes:
    """Return a file's content.

    Raises UsageError: ``import-unreadable``.
    """
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        text = f"cannot read {path}: {error.strerror or error}"
        raise UsageError(Problem("import-unreadable", text, "check its mode and owner")) from error
    if len(content) > LARGEST_FILE:
        text = f"{path} has more than {LARGEST_FILE} bytes"
        raise UsageError(Problem("import-unreadable", text, "a problem is a small file"))
    return content


def plain_name(text: str) -> str:
    """Convert a text to a name that ops and files may have."""
    return _NAME.sub("_", text).strip("_.-")[:80] or "problem"


def parsed(content: bytes, file: Path, left: list[SkippedProblem]) -> ast.Module | None:
    """Parse a file; if that fails, record the file in `left` and return None."""
    try:
        return parse_python(content, str(file))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = str(error) or type(error).__name__
        left.append(SkippedProblem(str(file), f"no Python that parses: {reason}"))
        return None


def unique_name(name: str, taken: list[str]) -> str:
    """Return a name that is not taken: `name` itself, or `name` with a number appended."""
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    return found


def defined_names(tree: ast.Module) -> set[str]:
    """Return the names of classes and functions at the top level of a file."""
    kinds = (ast.ClassDef, ast.FunctionDef)
    return {node.name for node in tree.body if isinstance(node, kinds)}


def named_home(path: Path, names: list[str]) -> int | None:
    """Return the index in `names` of the problem to which a file belongs; None if there is none.

    A file belongs to the problem whose name is also the name of the file (without suffix), of its
    folder, or of the folder above. The name of the file or of its folder may continue after the
    problem's name with ``_``, ``-`` or ``.`` and other text. If several names fit, the longest one
    counts. If `names` has one element, every file belongs to this problem.
    """
    words = (path.stem, path.parent.name, path.parent.parent.name)
    best: int | None = None
    for at, name in enumerate(names):
        named = name in words or any(
            word.startswith((f"{name}_", f"{name}-", f"{name}.")) for word in words[:2]
        )
        if named and (best is None or len(name) > len(names[best])):
            best = at
    return best if best is not None or len(names) != 1 else 0
