"""Tell cheaply whether files and variables are as they were at an earlier time."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from gpuemu_flow.quick_dataclass import dataclass

_Look = tuple[int, int, int, int, int]


def _status(path: str) -> _Look | None:
    try:
        s = os.stat(path)  # noqa: PTH116 - hot
    except (OSError, ValueError):
        return None
    # Setting the time of modification also updates the time of change, which cannot be set back.
    return s.st_ctime_ns, s.st_ino, s.st_size, s.st_mode, s.st_dev


def _link_status(path: str) -> _Look | None:
    try:
        s = os.lstat(path)
    except (OSError, ValueError):
        return None
    return s.st_ctime_ns, s.st_ino, s.st_size, s.st_mode, s.st_dev


def _mode(path: str) -> int:
    try:
        return os.stat(path).st_mode  # noqa: PTH116 - hot
    except (OSError, ValueError):
        return -1


def raw(variables: Mapping[str, str]) -> dict[Any, Any]:
    """Return a copy of an environment from which variables can be read quickly.

    The copy of `os.environ` has names and values as bytes, since `os.environ` itself decodes a
    variable each time it is read. Any other mapping is copied as it is.
    """
    return dict(getattr(variables, "_data", variables))


@dataclass(frozen=True)
class Unchanged:
    """The state of paths and variables at one time; made by `Unchanged.now`."""

    followed: tuple[tuple[str, _Look | None], ...]
    links: tuple[tuple[str, _Look | None], ...]
    modes: tuple[tuple[str, int], ...]
    variables: Mapping[Any, Any]

    @classmethod
    def now(
        cls,
        *,
        followed: Iterable[str],
        links: Iterable[str],
        modes: Iterable[str],
        variables: Mapping[str, str],
    ) -> Unchanged:
        """Return the present state of some paths and variables."""
        own = tuple((path, _link_status(path)) for path in dict.fromkeys(links))
        absent = {path for path, seen in own if seen is None}  # their modes cannot differ
        return cls(
            tuple((path, _status(path)) for path in dict.fromkeys(followed)),
            own,
            tuple((path, _mode(path)) for path in dict.fromkeys(modes) if path not in absent),
            raw(variables),
        )

    def times(self) -> dict[str, int]:
        """Return the time of change, in ns, of each file that was followed and exists."""
        return {path: seen[0] for path, seen in self.followed if seen is not None}

    def link_times(self) -> dict[str, int]:
        """Return the time of change, in ns, of each path in `links` that exists."""
        return {path: seen[0] for path, seen in self.links if seen is not None}

    def existing(self) -> set[str]:
        """Return the paths in `modes` at which something exists."""
        return {path for path, mode in self.modes if mode != -1}

    def holds(self, variables: Mapping[str, str]) -> bool:
        """Tell whether all paths, and all variables, are as they were."""
        for path, seen in self.followed:
            if _status(path) != seen:
                return False
        for path, seen in self.links:
            if _link_status(path) != seen:
                return False
        for path, mode in self.modes:
            if _mode(path) != mode:
                return False
        return raw(variables) == self.variables
