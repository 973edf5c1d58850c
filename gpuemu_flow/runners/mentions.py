"""Tell whether a command line, or code in it, names a file or imports it as a module.

Each op's worker looks for different files, so regular expressions with file names would have to be
compiled in each worker. The expressions here contain no file names, and are compiled once, before
workers are forked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from gpuemu_flow.runners.diagnose import shown_path

_BEFORE_PATH, _AFTER_PATH = re.compile(r"(?<![\w.-])"), re.compile(r"(?![\w-])")
_BEFORE_NAME, _AFTER_NAME = re.compile(r"(?<![\w./-])|(?<=\./)(?<![\w.]\./)"), re.compile(r"(?!\w)")
_IMPORTS = re.compile(r"(?:import|from|run_module)\b")
_EDGE = re.compile(r"\b")


class Mentions:
    """Finds mentions of one file.

    Parameters
    ----------
    path : str
        Absolute path of the file.
    root : str
        The workspace.
    """

    def __init__(self, path: str, root: str) -> None:
        self._paths = tuple(dict.fromkeys((path, shown_path(path, root))))
        self._name, self._module = "", ""
        if path.endswith(".py"):
            self._name, self._module = Path(path).name, module_name(path)

    def in_word(self, word: str) -> bool:
        """Tell whether a word of a command line names the file, or holds code that imports it."""
        return (
            any(_is_there(_places(path, word, _BEFORE_PATH, _AFTER_PATH)) for path in self._paths)
            or _is_there(_places(self._name, word, _BEFORE_NAME, _AFTER_NAME))
            or any(_imports_before(word, at) for at in _places(self._module, word, _EDGE, _EDGE))
        )


def module_name(path: str) -> str:
    """Return the last part of the dotted name under which a file is imported."""
    file = Path(path)
    return file.parent.name if file.stem == "__init__" else file.stem


def _places(name: str, word: str, before: re.Pattern[str], after: re.Pattern[str]) -> Iterator[int]:
    """Yield the positions at which a name stands in `word`, with suitable text on both sides.

    The pattern `before` must match at the position where the name starts (it looks behind), and the
    pattern `after` at the position where the name ends.
    """
    at = word.find(name) if name else -1
    while at >= 0:
        if before.match(word, at) and after.match(word, at + len(name)):
            yield at
        at = word.find(name, at + 1)


def _imports_before(word: str, at: int) -> bool:
    """Tell whether the statement at position `at` has an ``import`` before that position."""
    start = max(word.rfind(end, 0, at) for end in ";\n") + 1
    return _IMPORTS.search(word, start, at) is not None


def _is_there(places: Iterator[int]) -> bool:
    return next(places, None) is not None
