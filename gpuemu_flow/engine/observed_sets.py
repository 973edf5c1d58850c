"""Which task was seen to use what, for all tasks at once: the long way and the plan look here."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpuemu_flow.engine.discovery import Discovery
from gpuemu_flow.engine.files import Stamp, stamp_of
from gpuemu_flow.store.discovered import Discovered
from gpuemu_flow.store.keys import digest_json
from gpuemu_flow.types import Json


@dataclass
class Needed:
    """What must be unchanged for all sets to hold, besides files.

    Attributes
    ----------
    absent : list of str
        Absolute paths.
    folders : dict of str to Stamp
    links, variables : dict of str to str
    """

    absent: list[str] = field(default_factory=list)
    folders: dict[str, Stamp] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)


@dataclass
class ObservedSets:
    """Sets of inputs, each kept once, with the state that they had when their tasks were current.

    Attributes
    ----------
    sets : dict of str to (Discovered, dict)
        By a digest of both.
    task_sets : dict of str to str
        Task to a key of `sets`.
    """

    sets: dict[str, tuple[Discovered, dict[str, str]]] = field(default_factory=dict)
    task_sets: dict[str, str] = field(default_factory=dict)

    def record(self, task: str, names: Discovered, parts: Mapping[str, str]) -> None:
        """Remember what a task used, in the state that its key holds."""
        key = digest_json([names.to_json(), dict(parts)])
        self.sets[key] = names, dict(parts)
        self.task_sets[task] = key

    def of(self, tasks: Iterable[str]) -> ObservedSets:
        """Return what is known of these tasks only."""
        kept = {task: self.task_sets[task] for task in tasks if task in self.task_sets}
        return ObservedSets({key: self.sets[key] for key in set(kept.values())}, kept)

    def names(self, tasks: Iterable[str]) -> Discovered:
        """Return all that these tasks were seen to use."""
        found = Discovered()
        for key in {self.task_sets[task] for task in tasks if task in self.task_sets}:
            found |= self.sets[key][0]
        return found

    def changed(self, lookup: Discovery) -> set[str]:
        """Return the tasks of whose inputs one is in another state than when they were recorded."""
        with lookup.at_once():
            moved = {
                key for key, (names, parts) in self.sets.items() if lookup.parts(names) != parts
            }
        return {task for task, key in self.task_sets.items() if key in moved}

    def needed(self, lookup: Discovery) -> Needed:
        """Return what the plan must hold besides the files that the lookup has digested."""
        found = Needed()
        names = self.names(self.task_sets)
        ends = {_first_missing(lookup.path(member)) for member in names.missed}
        beside: set[str] = set()
        for path in ends:
            folder = os.path.dirname(path)  # noqa: PTH120
            # A folder in which much is missed is watched as a whole.
            beside.add(folder)
        for folder in {*beside, *map(lookup.path, names.listed)}:
            stamp = stamp_of(folder)
            if stamp is None:
                found.absent.append(folder)
            else:
                found.folders[folder] = stamp
        for member in names.links:
            path = lookup.path(member)
            try:
                found.links[path] = os.readlink(path)  # noqa: PTH115
            except OSError:
                found.absent.append(path)
        with lookup.at_once():
            states = lookup.parts(Discovered(variables=names.variables))
        found.variables = {name.partition(" ")[2]: state for name, state in states.items()}
        return found

    def to_json(self) -> dict[str, Json]:
        """As plain JSON; `from_json` is its inverse."""
        return {
            "sets": {key: [names.to_json(), parts] for key, (names, parts) in self.sets.items()},
            "tasks": dict(self.task_sets),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> ObservedSets:
        """Rebuild from `to_json`'s form; KeyError, TypeError or ValueError when it is not that."""
        sets = {
            key: (Discovered.from_json(names), {str(n): str(s) for n, s in parts.items()})
            for key, (names, parts) in data["sets"].items()
        }
        tasks = {str(task): str(key) for task, key in data["tasks"].items()}
        if not set(tasks.values()) <= set(sets):
            raise ValueError("a task without its set of inputs")
        return cls(sets, tasks)


def _first_missing(path: str) -> str:
    """The uppermost part of a path that is not there."""
    while len(path) > 1:
        folder = os.path.dirname(path)  # noqa: PTH120
        if os.path.isdir(folder):  # noqa: PTH112
            break
        path = folder
    return path
