"""Find the tasks that may have to run."""

from __future__ import annotations

from collections.abc import Iterable, Set

from gpuemu_flow.engine.states import TaskStates
from gpuemu_flow.graph.snapshot import Snapshot
from gpuemu_flow.inputs.discovery import Discovery
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.store.keys import TRIGGERS


@dataclass(frozen=True)
class StaleSearch:
    """A search for the tasks that may have to run: changed, or downstream of a change."""

    snapshot: Snapshot
    states: TaskStates
    names: Set[str]
    triggers: Set[str]

    def stale(self, lookup: Discovery) -> set[str]:
        """Return the tasks that may have to run.

        A task is checked only if it reads or writes a changed file, was not current before, or
        always has to be checked; see `TaskSpec.wavers`.
        """
        files = self.snapshot.files
        self.snapshot.current = self.states.with_manifest(
            self.snapshot.current, self.snapshot.graph
        )
        changed = files.refresh()
        with files.as_refreshed():
            moved_sets = self.snapshot.observed.changed(lookup)
            return self._have_to_run(self._touched(changed, moved_sets))

    def _touched(self, changed: set[str], moved_sets: set[str]) -> set[str]:
        """Return the tasks to check: those with a changed file or a changed set of observed inputs.

        Tasks that were not current before, or that are always checked, are included.
        """
        targets, current = self.states.targets_in(changed), self.snapshot.current
        return {
            name
            for name, spec in self.snapshot.graph.tasks.items()
            if name not in current
            or spec.wavers
            or name in moved_sets
            or spec.target in targets
            or not changed.isdisjoint(spec.sources)
        }

    def _have_to_run(self, touched: set[str]) -> set[str]:
        """Return the touched tasks that are not current, and all tasks downstream of them."""
        snapshot, graph, states = self.snapshot, self.snapshot.graph, self.states
        suspects = {n for t in touched for n in (t, *graph.readers(t))}
        snapshot.current -= suspects
        specs = map(graph.tasks.__getitem__, suspects & self.names)
        moved = {spec.name for spec in specs if states.reasons(spec, states.parts(spec))}
        self._observe((suspects & self.names) - moved)
        if self.triggers == set(TRIGGERS):
            snapshot.current |= (suspects & self.names) - graph.downstream(moved)
        return graph.downstream(moved) & self.names

    def _observe(self, names: Iterable[str]) -> None:
        """Copy the observed inputs of these tasks from their records to the snapshot.

        A new snapshot lacks the inputs. An old one may have outdated inputs, for example after a
        run was killed.
        """
        for name in names:
            record = self.states.record(name)
            if record is not None and record.inputs:
                self.snapshot.observed.record(name, record.discovered, record.observed)
