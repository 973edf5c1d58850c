"""Inputs that a program was seen to use while it ran, as data."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from gpuemu_flow.model.types import Json


class ConfiguredEnv(Struct, frozen=True):
    """The environment variables that the configuration determines for a program."""

    values: Mapping[str, str] = field(default_factory=dict)
    names: tuple[str, ...] = ()


class Observation(Struct, frozen=True):
    """Everything that a program was seen to use, except its arguments."""

    files: frozenset[str] = frozenset()
    missed: frozenset[str] = frozenset()
    listed: frozenset[str] = frozenset()
    looked: frozenset[str] = frozenset()
    untracked: frozenset[str] = frozenset()

    def __or__(self, other: Observation) -> Observation:
        """Join two observations of the same program."""
        names = self.__struct_fields__
        return Observation(*(getattr(self, name) | getattr(other, name) for name in names))

    def to_json(self) -> dict[str, Json]:
        """Return the observation as lists that can be stored."""
        return {each: sorted(getattr(self, each)) for each in self.__struct_fields__}

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> Observation:
        """Make an observation from the result of `to_json`.

        Raises ValueError: A list is missing, or holds a value that is not a string.
        """
        sets = {}
        for each in cls.__struct_fields__:
            values = data.get(each)
            if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
                raise ValueError(f"{each}: not a list of strings")
            sets[each] = frozenset(values)
        return cls(**sets)
