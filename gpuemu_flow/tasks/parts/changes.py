"""Manifests of both ``diff`` stages: the present state, the previous state, and the changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuemu_flow.model.errors import StoreError
from gpuemu_flow.model.types import Json
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import read_manifest, write_manifest


def read_previous(target: Path, stage: str) -> dict[str, Json]:
    """Return the state in a stage's last manifest; {} if the manifest is missing or invalid."""
    try:
        previous: dict[str, Json] = read_manifest(target, stage)["current"]
    except (StoreError, KeyError):
        return {}
    return previous


def write_changes(
    target: Path,
    stage: str,
    current: Mapping[str, Json],
    previous: Mapping[str, Json],
    changes: Sequence[Mapping[str, Json]],
) -> str:
    """Write a ``diff`` stage's manifest, and return its digest."""
    content = {
        "stage": stage,
        "version": stages.VERSIONS[stage],
        "current": current,
        "previous": previous,
        "changes": changes,
    }
    return write_manifest(target, content)
