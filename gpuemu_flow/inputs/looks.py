"""Cache the latest state seen (a look) of each set of inputs; split sets to share looks."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import lru_cache

from gpuemu_flow.inputs.unchanged import Unchanged
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.store.discovered import Discovered

MOST_LOOKS = 16
_PATHS = ("files", "links", "missed", "looked")
"""Parts of `Discovered` that hold paths, in sets without listings of folders."""


@dataclass(frozen=True)
class Look:
    """The states of a set of inputs, and the inputs written to after given times."""

    unchanged: Unchanged
    parts: dict[str, str]
    moved: dict[int, list[str]]


class Looks:
    """The most recently used looks at sets of inputs. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looks: dict[Discovered, Look] = {}

    def get(self, names: Discovered) -> Look | None:
        """Return the latest look at a set, which may be out of date; None if there is none."""
        return self._looks.get(names)

    def keep(self, names: Discovered, look: Look) -> None:
        """Cache a look that was just used; if there are too many, drop the least recently used."""
        with self._lock:
            self._looks.pop(names, None)
            self._looks[names] = look
            if len(self._looks) > MOST_LOOKS:
                del self._looks[next(iter(self._looks))]


@lru_cache(maxsize=MOST_LOOKS)
def halves_of(names: Discovered) -> tuple[Discovered, ...]:
    """Split a set without listings into the workspace's inputs and all others; drop empty halves.

    Most inputs outside of the workspace are the same for all programs, so that one look at these
    inputs serves all programs.
    """
    own: dict[str, frozenset[str]] = {}
    shared: dict[str, frozenset[str]] = {"untracked": frozenset()}
    for part in _PATHS:
        paths: frozenset[str] = getattr(names, part)
        own[part] = frozenset(path for path in paths if path[:1] not in ("/", "<"))
        shared[part] = paths - own[part]
    halves = Discovered(**own), replace(names, **shared)
    return tuple(half for half in halves if half != Discovered())
