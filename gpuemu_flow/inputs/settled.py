"""A cache of facts about paths, each valid as long as no folder above its path changes."""

from __future__ import annotations

import time
from typing import Generic, TypeVar

from gpuemu_flow.inputs.files import Stamp, is_settled, stamp_of
from gpuemu_flow.quick_dataclass import dataclass

T = TypeVar("T")
_FEWEST, _MOST_GROUPS = 32, 4


@dataclass(frozen=True)
class _Group(Generic[T]):
    """Facts about many paths, with everything that must be unchanged for all of them to hold."""

    paths: frozenset[str]
    facts: tuple[T, ...]
    stamps: tuple[tuple[str, Stamp], ...]

    def holds(self) -> bool:
        return all(stamp_of(path) == stamp for path, stamp in self.stamps)


class SettledFacts(Generic[T]):
    """A cache of facts that follow from the entries of the folders above a path.

    A folder's stamp changes when one of its entries is made, removed or replaced, for example by a
    link. If a folder changed a moment ago, its stamp may stay the same at the next change. Facts
    below such a folder are therefore not cached. Not thread-safe.
    """

    def __init__(self) -> None:
        self._facts: dict[str, tuple[T, tuple[str, ...]]] = {}
        self._stamps: dict[str, Stamp] = {}
        self._now = 0
        self._same: dict[str, bool] = {}
        self._ways: dict[str, bool] = {}
        self._groups: list[_Group[T]] = []

    def look_again(self) -> None:
        """Begin a scan of many paths, during which each folder is looked at only once."""
        self._same, self._ways = {}, {}
        self._now = time.time_ns()

    def known(self, paths: frozenset[str]) -> tuple[frozenset[str], tuple[T, ...]]:
        """Begin a scan as `look_again` does, and return all cached facts about some paths.

        Paths that were requested together before are checked as one group.
        """
        self.look_again()
        groups = [g for g in self._groups if g.paths <= paths and g.holds()]
        group = max(groups, key=lambda g: len(g.paths), default=_Group[T](frozenset(), (), ()))
        facts = dict.fromkeys(group.facts)
        found = []
        for path in paths - group.paths:
            fact = self.get(path)
            if fact is not None:
                found.append(path)
                facts[fact] = None
        if not found:
            return group.paths, tuple(facts)
        together = group.paths.union(found)
        if len(found) >= _FEWEST:
            self._group(together, tuple(facts))
        return together, tuple(facts)

    def _group(self, paths: frozenset[str], facts: tuple[T, ...]) -> None:
        """Cache the facts about some paths as a group, which is checked as a whole from now on."""
        if not all(path in self._facts for path in paths):
            return  # a folder has changed meanwhile, which ended them
        places = {file for path in paths for file in self._facts[path][1]}
        for path in paths:
            folder = path
            while folder and (folder := folder.rpartition("/")[0]) not in places:
                places.add(folder)
        stamps = {place or "/": self._stamps.get(place or "/") for place in places}
        known = tuple((place, stamp) for place, stamp in stamps.items() if stamp is not None)
        if len(known) == len(stamps):
            self._groups = [_Group(paths, facts, known), *self._groups][:_MOST_GROUPS]

    def get(self, path: str) -> T | None:
        """Return the cached fact about a path; None if it is missing or may be out of date."""
        cached = self._facts.get(path)
        if cached is None or not self._hold(path, cached[1]) or path not in self._facts:
            return None  # a change has ended all facts, even if the path is settled again
        return cached[0]

    def keep(self, path: str, fact: T, files: tuple[str, ...] = ()) -> None:
        """Cache a fact that was found after the last call of `look_again`."""
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
        """Tell whether facts that depend on this folder or file may be used or cached.

        When the path is first looked at, its last change must be long enough ago that any later
        change gives another stamp. After that, its stamp must stay the same.
        """
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
