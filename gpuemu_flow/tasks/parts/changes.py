"""Results of both ``diff`` stages: the present state, the previous state, and the changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuemu_flow.model.types import Json
from gpuemu_flow.store.workspace_cache import WorkspaceCache
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import RESULT, TaskSpec


def read_previous(cache: WorkspaceCache, spec: TaskSpec) -> dict[str, Json]:
    """Return the state in a task's last result; {} if the result is missing or invalid."""
    last = cache.state.get(RESULT + spec.name)
    found = last.get("current") if isinstance(last, dict) else None
    return found if isinstance(found, dict) else {}


def result_of(
    stage: str,
    current: Mapping[str, Json],
    previous: Mapping[str, Json],
    changes: Sequence[Mapping[str, Json]],
) -> dict[str, Json]:
    """Return the result of a ``diff`` stage."""
    return {
        "stage": stage,
        "version": stages.VERSIONS[stage],
        "current": current,
        "previous": previous,
        "changes": changes,
    }
