"""Store the latest metrics of each kernel that the daemon knows, in the wire protocol's form."""

from __future__ import annotations

from collections.abc import Mapping

from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.store.cache import JsonStore
from gpuemu_flow.store.workspace_cache import WorkspaceCache
from gpuemu_flow.types import Json

FOLDER = "wire-artifacts"
_KERNEL = "kernel:"


@dataclass(frozen=True)
class OwnFigures:
    """Metrics of a kernel that are no part of the wire protocol.

    They are known only for kernels that gpuemu-flow itself measured.
    """

    registers: int | None
    metric_source: str
    max_live: int | None


@dataclass(frozen=True)
class ArtifactMetrics:
    """The metrics of one kernel; `to_json` returns the protocol's ``ArtifactMetrics``."""

    kernel_name: str
    register_count: int
    spill_count: int
    local_memory_bytes: int
    shared_memory_bytes: int
    instruction_count: int
    patterns_found: tuple[str, ...]
    source: str
    timestamp: int
    own: OwnFigures | None = None

    def to_json(self) -> dict[str, Json]:
        """Return plain JSON; `from_json` is its inverse."""
        out: dict[str, Json] = {name: value for name, value in vars(self).items() if name != "own"}
        out |= {"patterns_found": list(self.patterns_found), "ptx_content": None}
        return out | ({} if self.own is None else vars(self.own))

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> ArtifactMetrics:
        """Rebuild from `to_json`'s result, or raise KeyError, TypeError or ValueError."""
        own = None
        if "metric_source" in data:
            own = OwnFigures(data["registers"], str(data["metric_source"]), data["max_live"])
        return cls(
            kernel_name=str(data["kernel_name"]),
            **{name: int(data[name]) for name in COUNTS},
            patterns_found=tuple(map(str, data["patterns_found"])),
            source=str(data["source"]),
            timestamp=int(data["timestamp"]),
            own=own,
        )


COUNTS = (
    "register_count", "spill_count", "local_memory_bytes", "shared_memory_bytes",
    "instruction_count",
)  # fmt: skip


def artifact_metrics(data: Json) -> ArtifactMetrics | None:
    """Convert stored JSON to a kernel's metrics; return None if it is invalid."""
    try:
        return ArtifactMetrics.from_json(data)
    except (KeyError, TypeError, ValueError):
        return None


class ArtifactStore:
    """Metrics by kernel name. Thread-safe."""

    def __init__(self, cache: WorkspaceCache) -> None:
        self._records = JsonStore(cache.folder / FOLDER, cache.set_aside)

    def put(self, metrics: ArtifactMetrics) -> None:
        """Store a kernel's metrics, replacing earlier ones."""
        self._records.put(_KERNEL + metrics.kernel_name, metrics.to_json())

    def get(self, name: str) -> ArtifactMetrics | None:
        """Return a kernel's metrics; None if there are none or they cannot be read."""
        return artifact_metrics(self._records.get(_KERNEL + name))

    def everything(self) -> dict[str, ArtifactMetrics]:
        """Return the metrics of all kernels, sorted by name."""
        names = sorted(k.removeprefix(_KERNEL) for k in self._records if k.startswith(_KERNEL))
        return {name: metrics for name in names if (metrics := self.get(name)) is not None}

    def close(self) -> None:
        """Close this thread's connection."""
        self._records.close()
