"""Protocols of the workspace whose tasks are selected; `engine.workspace` implements them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from gpuemu_flow.graph.graph import Graph
from gpuemu_flow.graph.snapshot import Snapshot
from gpuemu_flow.inputs.discovery import Discovery
from gpuemu_flow.store.keys import KeyParts
from gpuemu_flow.store.workspace_cache import WorkspaceCache
from gpuemu_flow.tasks.base import TaskSpec
from gpuemu_flow.types import Json


class SelectableRecord(Protocol):
    """The record of a task's last success."""

    @property
    def parts(self) -> Mapping[str, Json]: ...


class SelectableStates(Protocol):
    """The states of a workspace's tasks."""

    def record(self, name: str) -> SelectableRecord | None:
        """Return the record of a task's last success; None if there is none."""

    def has_failed(self, name: str) -> bool:
        """Tell whether a task has ever failed to make its target, even if it succeeded since."""

    def static_parts(self, spec: TaskSpec) -> KeyParts:
        """Return the parts of a task's key that are known before it runs."""


class SelectableWorkspace(Protocol):
    """A workspace whose tasks can be selected."""

    root: Path
    config_path: Path
    cache: WorkspaceCache
    snapshot: Snapshot

    @property
    def graph(self) -> Graph: ...

    @property
    def inputs(self) -> Discovery: ...

    def states(self) -> SelectableStates:
        """Return the states of the tasks."""

    def stale(self, names: set[str]) -> set[str]:
        """Return the members of `names` that may have to run."""

    def in_copy(self, folder: Path) -> SelectableWorkspace:
        """Open the copy of this workspace in another folder."""
