"""Our replacement for doit's Dependency, which uses our keys, digests and store."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from doit.dependency import Dependency, DependencyStatus
from doit.task import Task

from gpuemu_flow.engine.durations import with_real_duration
from gpuemu_flow.engine.states import TaskStates
from gpuemu_flow.store.keys import KeyParts
from gpuemu_flow.tasks.base import StageResult, TaskSpec
from gpuemu_flow.types import Json


class FlowDependency(Dependency):  # type: ignore[misc]  # doit has no types
    """doit's interface to `TaskStates`.

    doit's own class keeps its state in memory until the end, so that a killed run loses everything.
    It also trusts equal mtimes, and checks only that a target exists, not its content.
    """

    def __init__(
        self, states: TaskStates, specs: Mapping[str, TaskSpec], forced: Collection[str] = ()
    ) -> None:
        # The base class opens a database of its own; none of its attributes are used.
        self._states = states
        self._specs = specs
        self._forced = forced
        self.parts: dict[str, KeyParts] = {}
        self.left: set[str] = set()  # tasks that did not run, so that their records stay valid

    def get_status(self, task: Task, tasks_dict: Any, get_log: bool = False) -> DependencyStatus:
        """Return ``run`` or ``up-to-date``, and keep the task's key for `save`."""
        spec = self._specs[task.name]
        parts = self.parts[task.name] = self._states.parts(spec)
        task.dep_changed = []
        result = DependencyStatus(get_log)
        stale = task.name in self._forced or self._states.reasons(spec, parts)
        result.status = "run" if stale else "up-to-date"
        return result

    def save_success(self, task: Task, result_hash: object = None) -> None:
        """Store the success of one task."""
        self.save(self._specs[task.name], StageResult(**task.values))

    def save(self, spec: TaskSpec, result: StageResult) -> None:
        """Store the success of one task under the key that `get_status` kept."""
        before = self._states.record(spec.name)
        values = with_real_duration(
            result.values, {} if before is None else before.values, executed=result.executed
        )
        self._states.save(
            spec,
            self.parts[spec.name],
            result.digest,
            result.complete,
            values,
            result.discovered,
        )

    def remove_success(self, task: Task) -> None:
        """Delete the record of a task that failed, unless the task was not run at all."""
        if task.name not in self.left:
            self._states.forget(task.name)

    def status_is_ignore(self, task: Task) -> bool:
        """Return False: no task is ever ignored."""
        return False

    def get_values(self, task_name: str) -> dict[str, Json]:
        """Return the values that the last success of a task stored; empty if there is none."""
        record = self._states.record(task_name)
        return dict(record.values) if record else {}

    def close(self) -> None:
        """Do nothing: everything is already on disk."""
