"""Make the sandboxes of a workspace's ops, and the part of action keys that describes them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

from gpuemu_flow.runners.off_limits import OffLimits
from gpuemu_flow.runners.sandbox.level import level_for
from gpuemu_flow.runners.sandbox.spec import OFF, Sandbox
from gpuemu_flow.types import Json


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
    ) -> None:
        self._mode = mode
        self._compiled = compiled
        self._root = str(root)
        self._writable = writable
        self._hidden = hidden
        self._apart = apart
        self._made = made

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

        Links are left out: they might lead to the file of another op.
        """
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
        mine = self.own_apart(off_limits, own)
        return Sandbox(
            level=self.level,
            root=self._root,
            hidden=(
                *off_limits["forbidden"],
                *self._hidden,
                *(p for p in self._set_apart if p not in mine),
            ),
            shown=(*((path,) if path else ()), *mine),
            read_only=off_limits["read_only"],
            writable=(*self._writable, *([self._compiled] if emulated and self._compiled else [])),
            required=self._mode == "require",
        )


def is_below(path: str, places: Iterable[str]) -> bool:
    """Tell whether a path is one of several paths, or is below one of them."""
    return any(path == place or path.startswith(f"{place.rstrip('/')}/") for place in places)
