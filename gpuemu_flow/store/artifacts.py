"""Store the latest metrics of each kernel that the daemon knows, in the wire protocol's form."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType, ValidationError, convert, to_builtins

from gpuemu_flow.store.cache import JsonStore
from gpuemu_flow.store.workspace_cache import WorkspaceCache

FOLDER = "wire-artifacts"
_KERNEL = "kernel:"


class ArtifactMetrics(Struct, frozen=True):
    """The metrics of one kernel: the protocol's ``ArtifactMetrics``.

    ``source`` is ``Ptx``, ``Sass`` or ``Both``, ``timestamp`` Unix time in seconds. The last three
    are no part of the protocol; they are known only for kernels that gpuemu-flow itself measured.
    """

    kernel_name: str
    register_count: int
    spill_count: int
    local_memory_bytes: int
    shared_memory_bytes: int
    instruction_count: int
    patterns_found: tuple[str, ...]
    source: str
    timestamp: int
    ptx_content: None = None
    registers: int | UnsetType | None = UNSET
    metric_source: str | UnsetType = UNSET
    max_live: int | UnsetType | None = UNSET


class ArtifactStore:
    """Metrics by kernel name. Thread-safe."""

    def __init__(self, cache: WorkspaceCache) -> None:
        self._records = JsonStore(cache.folder / FOLDER, cache.set_aside)

    def put(self, metrics: ArtifactMetrics) -> None:
        """Store a kernel's metrics, replacing earlier ones."""
        self._records.put(_KERNEL + metrics.kernel_name, to_builtins(metrics))

    def get(self, name: str) -> ArtifactMetrics | None:
        """Return a kernel's metrics; None if there are none or they cannot be read."""
        try:
            return convert(self._records.get(_KERNEL + name), ArtifactMetrics)
        except ValidationError:
            return None

    def everything(self) -> dict[str, ArtifactMetrics]:
        """Return the metrics of all kernels, sorted by name."""
        names = sorted(k.removeprefix(_KERNEL) for k in self._records if k.startswith(_KERNEL))
        return {name: metrics for name in names if (metrics := self.get(name)) is not None}

    def close(self) -> None:
        """Close this thread's connection."""
        self._records.close()
