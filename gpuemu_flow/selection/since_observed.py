"""Find the tasks with an observed input that differs between a commit and the working tree."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from functools import cached_property

from gpuemu_flow.inputs.listings import is_listed
from gpuemu_flow.inputs.observed_sets import ObservedSets
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.store.discovered import Discovered


@dataclass
class Change:
    """The differences between a commit and the working tree; all paths are absolute."""

    top: str
    written: set[str]
    moved: set[str]
    before: Callable[[], set[str]]
    _spelled: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @cached_property
    def _above(self) -> set[str]:
        """Return all folders of the repository that contain moved files, at any depth."""
        return {folder for path in self.moved for folder in _folders(path, self.top)}

    @cached_property
    def _files_before(self) -> set[str]:
        return self.before()

    @cached_property
    def _entries_before(self) -> dict[str, set[str]]:
        return self._entries(self._files_before)

    @cached_property
    def _entries_now(self) -> dict[str, set[str]]:
        there = {path for path in self._files_before | self.moved if os.path.lexists(path)}
        return self._entries(there)

    def _entries(self, files: Iterable[str]) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for path in files:
            name = path
            for folder in _folders(path, self.top):
                found.setdefault(folder, set()).add(name)
                name = f"{folder}/"
        return found

    def tasks(self, observed: ObservedSets, path_of: Callable[[str], str]) -> set[str]:
        """Return the tasks with an observed input that differs between commit and working tree."""
        if not self.written:
            return set()
        hit = {key for key, (names, _) in observed.sets.items() if self._touches(names, path_of)}
        return {task for task, key in observed.task_sets.items() if key in hit}

    def _touches(self, names: Discovered, path_of: Callable[[str], str]) -> bool:
        def paths(members: Iterable[str]) -> Iterator[str]:
            for member in members:
                yield from self._spellings(path_of(member))

        gone_or_come = self.moved | self._above
        return (
            any(path in self.written for path in paths(names.files | names.links))
            or any(path in gone_or_come for path in paths(names.missed))
            or any(self._looks_otherwise(path) for path in paths(names.looked))
            or any(self._lists_otherwise(path) for path in paths(names.listed))
        )

    def _spellings(self, path: str) -> tuple[str, ...]:
        """Return a path as it is and with its links resolved.

        A result that lies outside of the repository is left out.
        """
        known = self._spelled.get(path)
        if known is None:
            found = dict.fromkeys((os.path.normpath(path), os.path.realpath(path)))
            known = tuple(p for p in found if p == self.top or p.startswith(f"{self.top}/"))
            self._spelled[path] = known
        return known

    def _looks_otherwise(self, path: str) -> bool:
        if path in self.moved:
            return True
        return path in self._above and (path in self._entries_before) != (path in self._entries_now)

    def _lists_otherwise(self, folder: str) -> bool:
        if folder not in self._above:
            return False
        differ = self._entries_before.get(folder, set()) ^ self._entries_now.get(folder, set())
        names = (path.rstrip("/").rpartition("/")[2] for path in differ)
        return any(is_listed(name) for name in names)


@dataclass
class Unknown:
    """The files in a repository for which git cannot tell whether they changed."""

    top: str
    known: set[str]
    cache: str

    def tasks_reading(self, observed: ObservedSets, path_of: Callable[[str], str]) -> set[str]:
        """Return the tasks with an observed input file of which git cannot tell whether it
        changed.
        """

        def holds(member: str) -> bool:
            path = os.path.realpath(path_of(member))
            inside = path.startswith(f"{self.top}/") and not path.startswith(f"{self.cache}/")
            return inside and path not in self.known and os.path.isfile(path)  # noqa: PTH113

        hit = {key for key, (names, _) in observed.sets.items() if any(map(holds, names.files))}
        return {task for task, key in observed.task_sets.items() if key in hit}


def read_change(top: str, raw: str, untracked: str, before: Callable[[], set[str]]) -> Change:
    """Build a `Change` from outputs of ``git diff --raw -z`` and ``git ls-files --others -z``."""
    written, moved = set[str](), set[str]()
    words = raw.split("\0")
    for about, name in zip(words[::2], words[1::2], strict=False):
        old, new, *_ = about.lstrip(":").split(" ")
        written.add(f"{top}/{name}")
        if old != new:  # modes: file type and permissions, or 0 for no file
            moved.add(f"{top}/{name}")
    others = {f"{top}/{name}" for name in untracked.split("\0") if name}
    return Change(top, written | others, moved | others, before)


def _folders(path: str, top: str) -> Iterator[str]:
    """Yield the folders that contain a file, from the innermost one up to the repository's root."""
    while len(path) > len(top):
        path = path.rpartition("/")[0]
        yield path
