"""Changes that a command line makes to the configuration."""

from __future__ import annotations

from collections.abc import Mapping

from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import Json

_LISTS = ("settings", "words", "given")


@dataclass(frozen=True)
class Overrides:
    """Changes that a command line makes to the configuration."""

    seed: int | None = None
    draw_seed: bool = False
    ci: str = ""
    cases: int | None = None
    profile: str = ""
    settings: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    given: frozenset[str] = frozenset()

    @property
    def all_given(self) -> frozenset[str]:
        """Return the names of all options set by the command line, which targets cannot change."""
        own = {
            "seed": self.seed is not None or self.draw_seed,
            "cases": self.cases is not None,
            "profile": bool(self.profile),
        }
        keys = {f"config.{setting.partition('=')[0].strip()}" for setting in self.settings}
        return self.given | keys | {name for name, here in own.items() if here}

    def to_json(self) -> dict[str, Json]:
        """Return plain JSON; `from_json` is its inverse."""
        lists = {
            name: sorted(vars(self)[name]) if name == "given" else list(vars(self)[name])
            for name in _LISTS
        }
        return {**vars(self), **lists}

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> Overrides:
        """Rebuild from `to_json`'s result, or raise TypeError or KeyError."""
        lists = {name: tuple(data[name]) for name in _LISTS}
        return cls(**{**data, **lists, "given": frozenset(lists["given"])})
