"""Bugs planted in the workspace's ops, as exact edits, to measure what a check finds.

One table per op in ``mutants/OP.toml``. An edit names the text it replaces, which must occur
exactly once: a table that has fallen behind its op is an error, not a mutant that changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tomli

TABLES = Path(__file__).parent / "mutants"

KINDS = (
    "tail-mask",
    "lost-accumulation",
    "missing-scale",
    "missing-rescale",
    "wrong-epsilon",
    "half-accumulation",
    "missing-max-subtraction",
    "swapped-axes",
    "off-by-one",
    "stale-tile",
    "wrong-stride",
    "input-changed",
    "nan-swallowed",
    "inf-or-signed-zero",
    "integer-overflow",
    "uninitialised-output",
    "non-determinism",
)


class EditError(ValueError):
    """An edit does not fit the file it is meant for."""


@dataclass(frozen=True)
class Mutant:
    """One planted bug.

    Attributes
    ----------
    op : str
        Name of the op in ``gpuemu.toml``.
    kind : str
        One of `KINDS`.
    name : str
        Unique within the op.
    file : str
        The edited file, relative to the workspace.
    old, new : str
        The correct text, which occurs exactly once in `file`, and what replaces it.
    why : str
        What goes wrong, and when it shows.
    """

    op: str
    kind: str
    name: str
    file: str
    old: str
    new: str
    why: str

    @property
    def id(self) -> str:
        """``op/name``, unique over all mutants."""
        return f"{self.op}/{self.name}"


def replace_once(source: str, old: str, new: str, what: str) -> str:
    """`source` with `old` replaced; `EditError` unless `old` occurs exactly once and differs."""
    found = source.count(old)
    if found != 1:
        raise EditError(f"{what}: the text to replace occurs {found} times, not once")
    if old == new:
        raise EditError(f"{what}: the edit changes nothing")
    return source.replace(old, new)


def apply(mutant: Mutant, source: str) -> str:
    """The source of `mutant.file` with the bug planted; `EditError` when the text does not fit."""
    return replace_once(source, mutant.old, mutant.new, mutant.id)


def plant(mutant: Mutant, workspace: Path) -> Path:
    """Plant the bug in a copy of the workspace; returns the edited file."""
    path = workspace / mutant.file
    path.write_text(apply(mutant, path.read_text(encoding="utf-8")), encoding="utf-8")
    return path


def load_tables(folder: Path = TABLES) -> tuple[Mutant, ...]:
    """All mutants, ordered by op and by their place in its table."""
    mutants = []
    for table in sorted(folder.glob("*.toml")):
        for row in tomli.loads(table.read_text(encoding="utf-8"))["mutant"]:
            mutants.append(Mutant(op=table.stem, file=f"scripts/{table.stem}.py", **row))
    return tuple(mutants)


MUTANTS = load_tables()
