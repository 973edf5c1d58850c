"""Types for facts about a workspace that are known without a run.

These are reasons to run tasks, descriptions and counts of tasks, and sizes of caches.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from gpuemu_flow.store.keys import BuildReason


class OriginTask(Struct, frozen=True):
    """A task that would run even if none of its upstream tasks did."""

    task: str
    changes: tuple[str, ...]


class TaskExplanation(Struct, frozen=True):
    """An explanation of one task: the reasons why it would run, or none if it is current."""

    task: str
    current: bool
    key: str
    changes: tuple[BuildReason, ...]
    because: tuple[OriginTask, ...]
    reads: tuple[str, ...]


class ListedTask(Struct, frozen=True, omit_defaults=True):
    """A task of the graph; `status` is empty unless it was requested."""

    task: str
    stage: str
    subject: str
    status: str = ""


class TaskSummary(Struct, frozen=True):
    """A task in one line."""

    task: str
    state: str
    duration_s: float | None
    outputs: tuple[str, ...]


class SkippedTask(Struct, frozen=True):
    """An op and dtype, or a kernel, that has no task, and the reason."""

    op: str
    dtype: str
    reason: str


class WorkspaceListing(Struct, frozen=True):
    """The tasks of a workspace, the size of each group, and the skipped items."""

    tasks: tuple[ListedTask, ...]
    groups: Mapping[str, int]
    skipped: tuple[SkippedTask, ...]


class StatusCounts(Struct, frozen=True):
    """Numbers of tasks by state."""

    total: int
    current: int
    stale: int
    skipped: int


class CacheSize(Struct, frozen=True):
    """The cache's folder, and its present and maximum size in bytes."""

    folder: str
    blobs_bytes: int
    actions_bytes: int
    size_limit: int


class WorkspaceStatus(Struct, frozen=True):
    """The state of a workspace: task counts, verdicts and cache size."""

    root: str
    tasks: StatusCounts
    verdicts: Mapping[str, int]
    outdated: int
    cache: CacheSize
