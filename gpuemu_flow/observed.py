"""Inputs that a program was seen to use while it ran, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields

from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import Json


@dataclass(frozen=True)
class ConfiguredEnv:
    """The environment variables that the configuration determines for a program."""

    values: Mapping[str, str] = field(default_factory=dict)
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Observation:
    """Everything that a program was seen to use, except its arguments."""

    files: frozenset[str] = frozenset()
    missed: frozenset[str] = frozenset()
    listed: frozenset[str] = frozenset()
    looked: frozenset[str] = frozenset()
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
        """Make an observation from the result of `to_json`.

        Raises ValueError: A list is missing, or holds a value that is not a string.
        """
        sets = {}
        for each in fields(cls):
            values = data.get(each.name)
            if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
                raise ValueError(f"{each.name}: not a list of strings")
            sets[each.name] = frozenset(values)
        return cls(**sets)
