"""A cache of facts about paths, each valid as long as no folder above its path changes."""

from __future__ import annotations

import time
from typing import Generic, TypeVar

from gpuemu_flow.inputs.files import Stamp, is_settled, stamp_of

T = TypeVar("T")


class SettledFacts(Generic[T]):
    """Memory of facts that follow from the entries of the folders above a path.

    A folder's stamp changes when one of its entries is made, removed or replaced, as by a link.
    The stamp of a folder that changed a moment ago may stay the same at the next change, so that
    facts below such a folder are not cached. Not thread-safe.
    """

    def __init__(self) -> None:
        self._facts: dict[str, tuple[T, tuple[str, ...]]] = {}
        self._stamps: dict[str, Stamp] = {}
        self._now = 0
        self._same: dict[str, bool] = {}
        self._ways: dict[str, bool] = {}

    def look_again(self) -> None:
        """Begin a scan of many paths, during which each folder is looked at only once."""
        self._same, self._ways = {}, {}
        self._now = time.time_ns()

    def get(self, path: str) -> T | None:
        """Return the cached fact about a path; None if there is none that is surely valid."""
        kept = self._facts.get(path)
        if kept is None or not self._hold(path, kept[1]) or path not in self._facts:
            return None  # what has changed since ended all facts, even if it is settled again
        return kept[0]

    def keep(self, path: str, fact: T, files: tuple[str, ...] = ()) -> None:
        """Cache a fact that was found since `look_again`.

        Parameters
        ----------
        path : str
            It leads through no link and no ``..``.
        fact : object
        files : tuple of str
            Absolute paths of files from which the fact follows, too.
        """
        plain = path.startswith("/") and "//" not in path
        if plain and self._hold(path, files):
            self._facts[path] = fact, files

    def _hold(self, path: str, files: tuple[str, ...]) -> bool:
        way = self._way_holds(path.rpartition("/")[0])
        return way and all(map(self._holds, files))

    def _way_holds(self, folder: str) -> bool:
        """Tell whether a folder and all folders above it are unchanged."""
        found = self._ways.get(folder)
        if found is None:
            above, _, name = folder.rpartition("/")
            found = (not name or self._way_holds(above)) and self._holds(folder or "/")
            self._ways[folder] = found
        return found

    def _holds(self, path: str) -> bool:
        """Tell whether a folder or file is unchanged since facts were cached, and settled."""
        found = self._same.get(path)
        if found is None:
            found = self._same[path] = self._look(path)
        return found

    def _look(self, path: str) -> bool:
        stamp, known = stamp_of(path), self._stamps.get(path)
        if stamp is not None and stamp == known:
            return True
        if known is not None:
            self._facts.clear()
            self._stamps = {p: s for p, s in self._stamps.items() if self._same.get(p)}
        if stamp is None or not is_settled(stamp, self._now):
            return False
        self._stamps[path] = stamp
        return True
