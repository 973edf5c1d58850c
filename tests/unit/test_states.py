"""Test which records of tasks are read again while a run is the only writer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuemu_flow.engine.states import TaskStates
from gpuemu_flow.inputs.files import FileTable
from gpuemu_flow.store.discovered import Discovered
from gpuemu_flow.store.workspace_cache import WorkspaceCache
from gpuemu_flow.tasks.base import TaskSpec
from gpuemu_flow.tasks.params import GenerateParams

PARAMS = GenerateParams(
    schema={}, seed=1, samples_seed=1, count=1, strategies=[], layouts=[], dtype="float32"
)
SPEC = TaskSpec("generate:a", "generate", "1", "a", "", (), (), PARAMS, {}, "tasks/generate/a.json")


@pytest.fixture
def states(tmp_path: Path) -> TaskStates:
    cache = WorkspaceCache(tmp_path / ".gpuemu-cache")
    return TaskStates(cache, FileTable(tmp_path), {})


def save(states: TaskStates, digest: str, spec: TaskSpec = SPEC) -> None:
    states.save(spec, states.static_parts(spec), digest, True, {}, Discovered())


def digest_of(states: TaskStates, name: str = SPEC.name) -> str | None:
    record = states.record(name)
    return None if record is None else record.digest


def test_each_change_of_a_record_shows_at_once(states: TaskStates) -> None:
    with states.only_writer():
        assert digest_of(states) is None
        save(states, "1")
        assert digest_of(states) == "1"
        save(states, "2")
        assert digest_of(states) == "2"
        states.forget(SPEC.name)
        assert digest_of(states) is None


def test_a_record_is_read_once_by_the_only_writer(states: TaskStates, tmp_path: Path) -> None:
    other = TaskStates(WorkspaceCache(tmp_path / ".gpuemu-cache"), FileTable(tmp_path), {})
    with states.only_writer():
        save(states, "1")
        assert digest_of(states) == "1"
        save(other, "2")  # which nobody may do
        assert digest_of(states) == "1"
    assert digest_of(states) == "2"


def test_few_of_many_records_are_held(states: TaskStates) -> None:
    names = [f"generate:{n}" for n in range(100)]
    with states.only_writer():
        for name in names:
            save(states, name, replace(SPEC, name=name))
        assert [digest_of(states, name) for name in names * 2] == names * 2
        assert states._cached is not None
        assert len(states._cached) < len(names)
