"""Types for facts about a workspace that are known without a run.

These are reasons to run tasks, descriptions and counts of tasks, and sizes of caches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.store.keys import BuildReason
from gpuemu_flow.types import Json


@dataclass(frozen=True)
class OriginTask:
    """A task that would run even if none of its upstream tasks did.

    Attributes
    ----------
    task : str
    changes : tuple of str
        One name for each reason why the task would run; see `BuildReason.what`.
    """

    task: str
    changes: tuple[str, ...]


@dataclass(frozen=True)
class TaskExplanation:
    """An explanation of one task: the reasons why it would run, or none if it is current.

    Attributes
    ----------
    task : str
    current : bool
    key : str
        The present action key.
    changes : tuple of BuildReason
        Reasons in the task itself.
    because : tuple of OriginTask
        Upstream tasks that would run for reasons of their own, which may make this task run.
    reads : tuple of str
        Texts that name the sources, the observed inputs and the manifests that the task reads.
    """

    task: str
    current: bool
    key: str
    changes: tuple[BuildReason, ...]
    because: tuple[OriginTask, ...]
    reads: tuple[str, ...]

    def to_json(self) -> dict[str, Json]:
        """Return the JSON that ``explain`` prints for one task."""
        return {
            "task": self.task,
            "current": self.current,
            "key": self.key,
            "changes": [change.to_json() for change in self.changes],
            "because": [{"task": o.task, "changes": list(o.changes)} for o in self.because],
            "reads": list(self.reads),
        }


@dataclass(frozen=True)
class ListedTask:
    """A task of the graph; `status` is empty unless it was requested."""

    task: str
    stage: str
    subject: str
    status: str = ""

    def to_json(self) -> dict[str, Json]:
        """Return plain JSON; an empty status is left out."""
        return {name: value for name, value in vars(self).items() if name != "status" or value}


@dataclass(frozen=True)
class TaskSummary:
    """A task in one line.

    Attributes
    ----------
    task : str
    state : str
        ``current``, ``stale``, ``failed`` (the last attempt made nothing) or ``new``.
    duration_s : float or None
        Duration of the task's last execution in seconds; None if it is unknown.
    outputs : tuple of str
        Files that the task makes, relative to the workspace.
    """

    task: str
    state: str
    duration_s: float | None
    outputs: tuple[str, ...]

    def to_json(self) -> dict[str, Json]:
        """Return the JSON that ``run --summary`` prints for one task."""
        return {**vars(self), "outputs": list(self.outputs)}


@dataclass(frozen=True)
class SkippedTask:
    """An op and dtype, or a kernel, that has no task, and the reason."""

    op: str
    dtype: str
    reason: str


@dataclass(frozen=True)
class WorkspaceListing:
    """The tasks of a workspace, the size of each group, and the skipped items."""

    tasks: tuple[ListedTask, ...]
    groups: Mapping[str, int]
    skipped: tuple[SkippedTask, ...]

    def to_json(self) -> dict[str, Json]:
        """Return the JSON that ``list`` prints."""
        return {
            "tasks": [task.to_json() for task in self.tasks],
            "groups": dict(self.groups),
            "skipped": [vars(one) for one in self.skipped],
        }


@dataclass(frozen=True)
class StatusCounts:
    """Numbers of tasks by state."""

    total: int
    current: int
    stale: int
    skipped: int


@dataclass(frozen=True)
class CacheSize:
    """The cache's folder, and its present and maximum size in bytes."""

    folder: str
    blobs_bytes: int
    actions_bytes: int
    size_limit: int


@dataclass(frozen=True)
class WorkspaceStatus:
    """The state of a workspace: task counts, verdicts and cache size.

    Attributes
    ----------
    root : str
    tasks : StatusCounts
    verdicts : mapping of str to int
        Maps each verdict to the number of items that last got it: kernels, and ops in each dtype.
    outdated : int
        Number of kernels, and of ops in each dtype, whose result is outdated: an input has changed
        since.
    cache : CacheSize
    """

    root: str
    tasks: StatusCounts
    verdicts: Mapping[str, int]
    outdated: int
    cache: CacheSize

    def to_json(self) -> dict[str, Json]:
        """Return the JSON that ``status`` prints."""
        return {"schema_version": 1, **asdict(self), "verdicts": dict(self.verdicts)}
