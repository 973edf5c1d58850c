"""Cache the states of sets of inputs, as they were when last determined.

A `Look` holds the states of one set. Sets are split in two, so that programs share the states of
their inputs outside of the workspace.
"""

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
    """The states that a set of inputs had at one time."""

    unchanged: Unchanged
    parts: dict[str, str]
    moved: dict[int, list[str]]


class Looks:
    """Cache of one `Look` per set of inputs, for the sets used most recently. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looks: dict[Discovered, Look] = {}

    def get(self, names: Discovered) -> Look | None:
        """Return the cached `Look` of a set, which may be out of date; None if none is cached."""
        return self._looks.get(names)

    def keep(self, names: Discovered, look: Look) -> None:
        """Cache the `Look` of a set, and mark this set as the most recently used one.

        If the cache is full, drop the `Look` of the least recently used set.
        """
        with self._lock:
            self._looks.pop(names, None)
            self._looks[names] = look
            if len(self._looks) > MOST_LOOKS:
                del self._looks[next(iter(self._looks))]


@lru_cache(maxsize=MOST_LOOKS)
def halves_of(names: Discovered) -> tuple[Discovered, ...]:
    """Split a set of inputs into the paths in the workspace and all other inputs.

    Most inputs outside of the workspace are the same for all programs, so that their states need to
    be determined only once. The set must not include folders that a program listed. The results do
    not include the reasons in `Discovered.untracked`. An empty part is not returned.
    """
    own: dict[str, frozenset[str]] = {}
    shared: dict[str, frozenset[str]] = {"untracked": frozenset()}
    for part in _PATHS:
        paths: frozenset[str] = getattr(names, part)
        own[part] = frozenset(path for path in paths if path[:1] not in ("/", "<"))
        shared[part] = paths - own[part]
    halves = Discovered(**own), replace(names, **shared)
    return tuple(half for half in halves if half != Discovered())
