"""Make the sandboxes of a workspace's ops from the configuration, and their part of keys."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path

from gpuemu_flow.runners.off_limits import OffLimits
from gpuemu_flow.runners.sandbox.level import level_for
from gpuemu_flow.runners.sandbox.spec import OFF, STRICT, Sandbox
from gpuemu_flow.types import Json


class Fence:
    """Factory of the sandboxes of one workspace.

    Parameters
    ----------
    mode : str
        One of `spec.MODES`.
    root : Path
        The workspace.
    writable : tuple of str
        Absolute paths that the configuration lets ops write.
    compiled : str
        Folder in which the emulator keeps what it makes of kernels.
    hidden : tuple of str
        Absolute paths that the configuration hides from ops.
    """

    def __init__(
        self,
        mode: str,
        root: Path,
        writable: tuple[str, ...] = (),
        compiled: str = "",
        hidden: tuple[str, ...] = (),
    ) -> None:
        self._mode = mode
        self._compiled = compiled
        self._root = str(root)
        self._writable = writable
        self._hidden = hidden

    @cached_property
    def level(self) -> str:
        """Return the level that ops run at on this system."""
        return level_for(self._mode)

    def key(self) -> dict[str, Json]:
        """Return the part of the sandbox that belongs to an op's action key."""
        if self.level == OFF:
            return {"level": OFF}
        inside = self._root.rstrip("/") + "/"
        key: dict[str, Json] = {
            "level": self.level,
            "writable": [path.removeprefix(inside) for path in self._writable],
        }
        if self._hidden:
            key["also_hidden"] = sorted(os.path.relpath(path, self._root) for path in self._hidden)
        return key

    def around(self, kept_from: OffLimits, path: str, *, emulated: bool) -> Sandbox | None:
        """Return the sandbox of an op; None if there is none.

        Parameters
        ----------
        kept_from : OffLimits
        path : str
            The op's own file, which may lie in the cache.
        emulated : bool
            The op is a compiled kernel, which our emulator runs.
        """
        if self.level == OFF:
            return None
        return Sandbox(
            level=self.level,
            root=self._root,
            hidden=(*kept_from["forbidden"], *self._hidden),
            shown=(path,) if path else (),
            kept=kept_from["read_only"],
            writable=(*self._writable, *([self._compiled] if emulated and self._compiled else [])),
            required=self._mode in ("require", STRICT),
            strict=self._mode == STRICT,
        )
