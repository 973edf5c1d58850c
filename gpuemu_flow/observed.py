"""Inputs that a program was seen to use while it ran, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields

from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import Json

ALL_VARIABLES = "*"


@dataclass(frozen=True)
class ConfiguredEnv:
    """A configuration's part in a program's environment.

    Attributes
    ----------
    values : mapping of str to str
        Variables that the configuration sets.
    names : tuple of str
        Names that it lets through in addition to those that reach every program; see `let_through`.
    """

    values: Mapping[str, str] = field(default_factory=dict)
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Observation:
    """Everything besides its arguments that a program was seen to depend on.

    Attributes
    ----------
    files : frozenset of str
        Absolute paths that were read, imported, executed or mapped, as the program named them:
        links are not resolved.
    missed : frozenset of str
        Absolute paths that were looked for and were not there.
    listed : frozenset of str
        Absolute paths of folders whose entries were listed.
    modules : frozenset of str
        Absolute paths of folders that were listed by code that looks for modules only.
    sized : frozenset of str
        Absolute paths of folders whose entries may have been asked for their size and mode.
    looked : frozenset of str
        Absolute paths of files, folders and others that existed when the program asked for them;
        its own files, too, if it asked for them before it made them.
    variables : frozenset of str
        Names of environment variables that were read, set or not; ``NAME*`` for all that begin so,
        `ALL_VARIABLES` when the whole environment was read.
    untracked : frozenset of str
        Reasons why more may have been used than is listed here, each a sentence for a report;
        empty when everything was seen.
    """

    files: frozenset[str] = frozenset()
    missed: frozenset[str] = frozenset()
    listed: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()
    sized: frozenset[str] = frozenset()
    looked: frozenset[str] = frozenset()
    variables: frozenset[str] = frozenset()
    untracked: frozenset[str] = frozenset()

    def __or__(self, other: Observation) -> Observation:
        """Join two observations of the same program."""
        names = (each.name for each in fields(self))
        return Observation(*(getattr(self, name) | getattr(other, name) for name in names))

    def to_json(self) -> dict[str, Json]:
        """Return the observation as lists that can be stored."""
        return {each.name: sorted(getattr(self, each.name)) for each in fields(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> Observation:
        """Rebuild from the result of `to_json`.

        Raises
        ------
        ValueError
            When a list is missing or holds anything but strings.
        """
        sets = {}
        for each in fields(cls):
            values = data.get(each.name)
            if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
                raise ValueError(f"{each.name}: not a list of strings")
            sets[each.name] = frozenset(values)
        return cls(**sets)
