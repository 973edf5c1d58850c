"""Track the files that a program itself makes, moves and links: they are not its inputs."""

from __future__ import annotations

import os

from gpuemu_flow.runners.records import (
    CREATED,
    MADE,
    MOVED,
    PAIRS,
    REMOVED,
    TOUCHED,
    WRITTEN,
)


class OwnChanges:
    """Tracker of the changes that one program makes to files, in the order of the changes.

    Attributes
    ----------
    written : set of str
        All files to which the program may have written.
    needed : set of str
        Files that the program created and then used. Their earlier absence is an input of the
        program.
    """

    def __init__(self) -> None:
        self.written: set[str] = set()
        self.needed: set[str] = set()
        self._own: set[str] = set()
        self._created: set[str] = set()
        self._gone: set[str] = set()
        self._folders: set[str] = set()
        self._sources: dict[str, str] = {}
        self._last = (0, "")

    def take(self, kind: int, path: str) -> None:
        """Record one change, whose kind is one of `records.CHANGES`."""
        if kind in PAIRS:
            # The change is reported twice, by Python and by the tracer.
            if (kind, path) != self._last:
                source, _, target = path.partition("//")
                self._pair(kind, source, f"/{target}")
        elif kind == REMOVED:
            self._sources.pop(path, None)
            self._gone.add(path)
        elif kind == MADE:
            self._folders.add(path)
        else:
            self._write(kind, {path, self.meant(path)})
        self._last = kind, path

    def _write(self, kind: int, paths: set[str]) -> None:
        self.written |= paths
        if kind == TOUCHED:
            return
        self._own |= paths
        self._gone -= paths
        if kind == CREATED:
            self._created |= paths
        elif kind == WRITTEN:
            self._created -= paths

    def _pair(self, kind: int, path: str, target: str) -> None:
        source = self.meant(path)
        self.written.add(target)
        self._own.discard(target)
        self._gone.discard(target)
        self._sources.pop(target, None)
        if source in self._folders:
            self._folders.add(target)
        elif self.is_own(source):
            self._own.add(target)
        elif source != target:  # else it is back where it was
            self._sources[target] = source
        if kind == MOVED:
            self._sources.pop(path, None)
            self._gone.add(path)

    def meant(self, path: str) -> str:
        """Return the original path of a file that the program moved or linked; else `path`."""
        for target, source in self._sources.items():
            if path == target or path.startswith(f"{target}/"):
                return source + path[len(target) :]
        return path

    def is_gone(self, path: str) -> bool:
        """Tell whether the program itself moved away or removed a path."""
        return path in self._gone

    def is_own_file(self, path: str) -> bool:
        """Tell whether the program itself wrote the file."""
        return path in self._own

    def is_own(self, path: str) -> bool:
        """Tell whether the program itself made a file or folder, or a folder above it."""
        if "/.." in path:
            path = os.path.normpath(path)
        if path in self._own:
            return True
        return bool(self._folders) and any(f in self._folders for f in _upwards(path))

    def use(self, path: str) -> None:
        """Record that the program uses a file: a file that it created is added to `needed`."""
        if path in self._created:
            self.needed.add(path)


def _upwards(path: str) -> list[str]:
    """List a path and all folders above it."""
    found = [path]
    while "/" in path[1:]:
        path = path.rpartition("/")[0]
        found.append(path)
    return found
