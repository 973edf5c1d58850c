"""The latest figures of each kernel that clients measured or sent, as the wire has them."""

from __future__ import annotations

from collections.abc import Mapping

from gpuemu_flow.store.cache import JsonStore
from gpuemu_flow.store.workspace_cache import WorkspaceCache
from gpuemu_flow.types import Json

FOLDER = "wire-artifacts"
_KERNEL = "kernel:"


class ArtifactStore:
    """Figures by the name of the kernel. Thread-safe.

    Parameters
    ----------
    cache : WorkspaceCache
    """

    def __init__(self, cache: WorkspaceCache) -> None:
        self._records = JsonStore(cache.folder / FOLDER, cache.set_aside)

    def put(self, name: str, metrics: Mapping[str, Json]) -> None:
        """Keep a kernel's figures in place of its last ones."""
        self._records.put(_KERNEL + name, dict(metrics))

    def get(self, name: str) -> dict[str, Json] | None:
        """Return a kernel's figures; None when there are none."""
        found: dict[str, Json] | None = self._records.get(_KERNEL + name)
        return found

    def everything(self) -> dict[str, dict[str, Json]]:
        """Return the figures of every kernel, sorted by name."""
        names = sorted(k.removeprefix(_KERNEL) for k in self._records if k.startswith(_KERNEL))
        return {name: metrics for name in names if (metrics := self.get(name)) is not None}

    def close(self) -> None:
        """Close this thread's connection."""
        self._records.close()
