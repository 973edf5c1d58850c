"""Make the sandboxes of a workspace's ops, and the part of action keys that describes them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from functools import cache, cached_property
from pathlib import Path
from typing import TypedDict

from gpuemu_flow.model.types import Json
from gpuemu_flow.workers.imports import is_workspace_path
from gpuemu_flow.workers.sandbox import filters
from gpuemu_flow.workers.sandbox.spec import NONE, OFF, Sandbox, is_below, level_of


class Fence:
    """Factory of the sandboxes of one workspace."""

    def __init__(
        self,
        mode: str,
        root: Path,
        writable: tuple[str, ...] = (),
        compiled: str = "",
        hidden: tuple[str, ...] = (),
        apart: tuple[str, ...] = (),
        made: tuple[str, ...] = (),
        references: frozenset[str] = frozenset(),
        listed: str = "",
    ) -> None:
        self._mode = mode
        self._compiled = compiled
        self._root = str(root)
        self._writable = writable
        self._hidden = hidden
        self._apart = apart
        self._made = made
        self.references = references
        self._listed = listed
        self._packages = [path for path in references if path.endswith("/__init__.py")]

    @cached_property
    def level(self) -> str:
        """Return the level at which ops run on this system."""
        return level_for(self._mode)

    def key(self) -> dict[str, Json]:
        """Return the properties of the sandbox that go into an op's action key."""
        if self.level == OFF:
            return {"level": OFF}
        inside = self._root.rstrip("/") + "/"
        key: dict[str, Json] = {
            "level": self.level,
            "writable": [path.removeprefix(inside) for path in self._writable],
        }
        if self._hidden:
            key["also_hidden"] = sorted(os.path.relpath(path, self._root) for path in self._hidden)
        if self._apart:
            key["apart"] = list(self._apart)
        return key

    @cached_property
    def _set_apart(self) -> tuple[str, ...]:
        """Return the sorted real paths of files and folders that match `apart` or are in `made`."""
        found = {os.path.realpath(path) for path in self._made}
        found |= {
            os.path.realpath(path)
            for pattern in self._apart
            # A glob may be absolute if the configuration may name files outside of the workspace.
            for path in Path("/" if pattern[0] == "/" else self._root).glob(pattern.lstrip("/"))
        }
        return tuple(sorted(found - {self._root}))

    def own_apart(self, off_limits: OffLimits, own: Iterable[str]) -> tuple[str, ...]:
        """Return the sorted real paths of the op's own files that `apart` hides from other ops.
        Links are left out: they might lead to the file of another op."""
        if not self._apart:
            return ()
        closed = (*off_limits["forbidden"], *self._hidden)
        found = {path for path in own if not os.path.islink(path)}  # noqa: PTH114
        return tuple(
            sorted(
                path
                for path in map(os.path.realpath, found)
                if is_below(path, self._set_apart) and not is_below(path, closed)
            )
        )

    def around(
        self, off_limits: OffLimits, path: str, *, emulated: bool, own: Iterable[str] = ()
    ) -> Sandbox | None:
        """Return the sandbox of an op; None if the level is ``off``."""
        if self.level == OFF:
            return None
        own = tuple(own)
        mine, shared = self.own_apart(off_limits, own), self.shared(own)
        return Sandbox(
            level=self.level,
            root=self._root,
            hidden=(
                *off_limits["forbidden"],
                *self._hidden,
                *(p for p in self._set_apart if p not in mine),
                *(() if self._listed else sorted(self.references.difference(shared))),
            ),
            shown=(*((path,) if path else ()), *mine),
            read_only=off_limits["read_only"],
            writable=(*self._writable, *([self._compiled] if emulated and self._compiled else [])),
            required=self._mode == "require",
            references=self._listed,
            shared=shared,
        )

    def shared(self, own: Iterable[str]) -> tuple[str, ...]:
        """Return those references that are a program's own files, or packages around these. Links
        are left out: who makes them does not decide what is shared."""
        real = {os.path.realpath(path) for path in own if not os.path.islink(path)}  # noqa: PTH114
        around = (p for p in self._packages if any(is_below(f, (p[:-12],)) for f in real))
        return tuple(sorted(self.references.intersection(real).union(around)))


# List the files that an op's process must not touch; this module is cheap to import.


class OffLimits(TypedDict):
    """Files that a program must not use, or not change."""

    forbidden: tuple[str, ...]
    read_only: tuple[str, ...]


NOTHING = OffLimits(forbidden=(), read_only=())


def off_limits(
    own: Iterable[Path] = (),
    hidden: Iterable[Path] = (),
    sources: Iterable[Path] = (),
    *,
    cache: Path,
    root: Path,
) -> OffLimits:
    """List the files that a program with the files `own` must not touch, or not change."""
    return OffLimits(
        forbidden=_forbidden(own, hidden, cache, root),
        read_only=tuple(sorted(map(str, sources))),
    )


def _is_around(package: Path, file: Path) -> bool:
    """Tell whether `package` is the ``__init__`` file of a package that contains `file`."""
    return package.name == "__init__.py" and file.is_relative_to(package.parent)


def _real(path: Path | None) -> Path:
    return Path(os.path.realpath(path or ""))


def _forbidden(
    own_files: Iterable[Path], hidden: Iterable[Path], cache: Path, root: Path
) -> tuple[str, ...]:
    """Return the hidden files and the cache folder. A file or package that also contains the op is
    left out. So is everything outside of the workspace, such as an interpreter that runs the
    reference."""
    own = set(map(_real, own_files))
    found = [
        path
        for path in map(_real, hidden)
        if path not in own
        and is_workspace_path(str(path), str(root))
        and not any(_is_around(path, file) for file in own)
    ]
    if not root.is_relative_to(cache):
        found.append(cache)
    return tuple(str(path) for path in found)


# Find the parts of the sandbox that this system supports.


@cache
def system_level() -> str:
    """Name the parts that the system has, such as ``landlock 7, seccomp``."""
    if sys.platform != "linux":
        return NONE
    return level_of(filters.version(), seccomp=filters.available())


def level_for(mode: str) -> str:
    """Return the level at which ops run under a mode of the configuration."""
    return OFF if mode == "off" else system_level()
