"""Collect every problem of one configuration file, each with its file and line."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec import Struct, field
from msgspec.structs import replace

from gpuemu_flow.config.positions import KeyPath, Positions
from gpuemu_flow.model.errors import Problem, did_you_mean, nearest

MAX_PROBLEMS = 200
MAX_SHOWN = 80
MAX_COMPARED = 50_000  # comparisons of names for all hints of a file
MAX_WARNINGS = 2_000  # a file with more is hardly a configuration


def dotted(path: KeyPath) -> str:
    """Return a key path in TOML's notation: ``ops[0].schema.dims``; empty for the whole file."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + shortened(part)
    return text


def shortened(text: str) -> str:
    """Return `text` without control characters, shortened for a message."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text[: MAX_SHOWN * 2])
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"


def shown(value: object) -> str:
    """Return a value in TOML's notation, shortened for a message."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return repr(shortened(value))
    if isinstance(value, int) and abs(value) >= 10**30:
        return "an integer of more than 30 digits"
    if isinstance(value, (list, dict)):
        return "[…]" if isinstance(value, list) else "{…}"
    return shortened(str(value))


class Reporter(Struct):
    """A collector of the problems of one file."""

    # Path of the file as the user sees it.
    file: str
    # Lines of the file's keys.
    positions: Positions = field(default_factory=Positions)
    # Problems in the order found: at most `MAX_PROBLEMS` errors, and as many warnings.
    problems: list[Problem] = []
    # Maps the path of a key, with the key's main name, to the path as written in the file.
    aliases: dict[KeyPath, KeyPath] = {}
    # Maps the path of an op to the path of its template and the template's values for this
    # op. Empty if there are no templates. See `foreach`.
    origins: dict[KeyPath, tuple[KeyPath, str]] = {}
    untold_errors: int = 0
    untold_warnings: int = 0
    compared: int = 0
    _told_warnings: int = 0
    _told_of_templates: set[tuple[str, KeyPath, str]] = set()

    def line(self, path: KeyPath) -> int:
        """Return the line of the key at `path`, even if the file has the key under an alias.

        If the file does not have the key, return the line of the key's nearest ancestor.
        """
        for end in range(len(path), 0, -1):
            written = self.aliases.get(path[:end])
            if written is not None:
                return self.positions.line(self._in_text((*written, *path[end:])))
        return self.positions.line(self._in_text(path))

    def _in_text(self, path: KeyPath) -> KeyPath:
        """Return the path that a key has in the text, before templates were expanded."""
        origin = self.origins.get(path[:2])
        return path if origin is None else (*origin[0], *path[2:])

    def add(
        self, slug: str, path: KeyPath, message: str, hint: str = "", *, warning: bool = False
    ) -> None:
        """Report a problem of the key at `path`."""
        origin = self.origins.get(path[:2])
        if origin is not None:
            message = message.replace(dotted(path[:2]), dotted(origin[0]))
            told = (slug, self._in_text(path), message)
            if origin[1] and told in self._told_of_templates:
                return
            self._told_of_templates.add(told)
            message += f" (with {origin[1]})" if origin[1] else ""
        self.problem_at(slug, self.line(path), message, hint, warning=warning)

    @property
    def hopeless(self) -> bool:
        """Tell whether the limit of problems is reached; further checks would add nothing."""
        return self.untold_errors > 0 or self.untold_warnings > MAX_WARNINGS

    def nearest(self, name: str, known: Collection[str], *, or_all: bool = False) -> str:
        """Return a hint with the known name most similar to `name`.

        If no name is similar, the hint lists all names if `or_all` is true; else it is empty. It is
        also empty after `MAX_COMPARED` comparisons, since comparing many names takes long.
        """
        self.compared += len(known)
        if self.compared > MAX_COMPARED:
            return ""
        name, names = name[:MAX_SHOWN], tuple(known)
        return did_you_mean(name, names) if or_all or nearest(name, names) else ""

    def problem_at(
        self, slug: str, line: int, message: str, hint: str = "", *, warning: bool = False
    ) -> None:
        """Report a problem at a line; line 0 means the whole file."""
        if warning and self._told_warnings >= MAX_PROBLEMS:
            self.untold_warnings += 1
            return
        if not warning and len(self.problems) - self._told_warnings >= MAX_PROBLEMS:
            self.untold_errors += 1
            return
        self._told_warnings += warning
        self.problems.append(Problem(slug, message, hint, self.file, line, warning))

    def collected(self, *, strict: bool = False) -> list[Problem]:
        """Return all problems, sorted by line; if `strict`, every warning is an error."""
        out = sorted(self.problems, key=lambda problem: problem.line)
        if self.untold_errors:
            text = f"{self.untold_errors} more errors in this file are not shown"
            out.append(Problem("config-too-many", text, "", self.file))
        if self.untold_warnings:
            text = f"{self.untold_warnings} more warnings in this file are not shown"
            mild = self.untold_warnings <= MAX_WARNINGS
            out.append(Problem("config-too-many", text, "", self.file, warning=mild))
        return [replace(problem, warning=False) for problem in out] if strict else out


# Judge unknown keys: a key whose loss could weaken a check or a limit is an error.


MOST_EDITS = 2
SHORT = 5
"""Words of at most this length count as misspelt only if they differ by one edit.

With two edits, ``jobs`` would be near ``ops``. Longer words may differ by two.
"""
SHORTEST = 3


STEM = 4
ENDING = 3


def is_misspelt(written: str, known: Iterable[str]) -> bool:
    """Tell whether a name is a variant of a known name, or one or two typing errors away from it.

    Variants are the known name cut short (``grad`` for ``gradients``) and the known name with a
    short ending (``depends_on`` for ``depends``, ``forbidden`` for ``forbid``).
    """
    return any(_near(written, name) or _is_form(written.lower(), name) for name in known)


def _is_form(written: str, name: str) -> bool:
    if len(written) < STEM or len(name) < STEM:
        return False
    ended = written.startswith(name) and len(written) - len(name) <= ENDING
    return ended or name.startswith(written)


def _near(written: str, name: str) -> bool:
    if len(name) < SHORTEST:
        return False
    longer = len(name) > SHORT and (len(written) > SHORT or _omits_letters(written.lower(), name))
    most = MOST_EDITS if longer else 1
    return abs(len(written) - len(name)) <= most and edits(written.lower(), name) <= most


def _omits_letters(written: str, name: str) -> bool:
    letters = iter(name)
    return all(letter in letters for letter in written)


def edits(first: str, second: str) -> int:
    """Return the number of typing errors between two words.

    One error is an additional, missing or wrong character, or an exchange of two neighbours (the
    Damerau-Levenshtein distance in its restricted form, in which each character changes at most
    once).
    """
    above: list[int] = []
    row = list(range(len(second) + 1))
    for i, a in enumerate(first, start=1):
        further, above, row = above, row, [i]
        for j, b in enumerate(second, start=1):
            least = min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (a != b))
            if i > 1 and j > 1 and a == second[j - 2] and first[i - 2] == b:
                least = min(least, further[j - 2] + 1)
            row.append(least)
    return row[-1]
