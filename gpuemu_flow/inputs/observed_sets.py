"""The inputs that tasks were seen to use, stored once for all tasks."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field

from gpuemu_flow.inputs.discovery import Discovery
from gpuemu_flow.inputs.files import Stamp, stamp_of
from gpuemu_flow.inputs.listings import sizes_in
from gpuemu_flow.inputs.plan import look_of
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.store.discovered import Discovered
from gpuemu_flow.store.keys import digest_json
from gpuemu_flow.types import Json

MOST_NAMES = 8
"""Names that were looked for in one folder and are watched one by one."""


@dataclass
class Needed:
    """Facts besides file contents that must be unchanged for all sets to be current.

    Attributes
    ----------
    absent : list of str
        Absolute paths.
    folders : dict of str to Stamp
    links, variables, looks : dict of str to str
        Targets of links; digests of variables; kind and mode of paths, see `plan.look_of`.
    """

    absent: list[str] = field(default_factory=list)
    folders: dict[str, Stamp] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    looks: dict[str, str] = field(default_factory=dict)


@dataclass
class ObservedSets:
    """Sets of inputs, each stored once, with their state when the tasks were current.

    Attributes
    ----------
    sets : dict of str to (Discovered, dict)
        Sets and states by a digest of both.
    task_sets : dict of str to str
        Task to a key of `sets`.
    """

    sets: dict[str, tuple[Discovered, dict[str, str]]] = field(default_factory=dict)
    task_sets: dict[str, str] = field(default_factory=dict)

    def record(self, task: str, names: Discovered, parts: Mapping[str, str]) -> None:
        """Record the inputs of a task, with the states that its key contains."""
        key = digest_json([names.to_json(), dict(parts)])
        self.sets[key] = names, dict(parts)
        self.task_sets[task] = key

    def of(self, tasks: Iterable[str]) -> ObservedSets:
        """Select the sets of these tasks."""
        kept = {task: self.task_sets[task] for task in tasks if task in self.task_sets}
        return ObservedSets({key: self.sets[key] for key in set(kept.values())}, kept)

    def names(self, tasks: Iterable[str]) -> Discovered:
        """Return all inputs that these tasks were seen to use."""
        found = Discovered()
        for key in {self.task_sets[task] for task in tasks if task in self.task_sets}:
            found |= self.sets[key][0]
        return found

    def changed(self, lookup: Discovery) -> set[str]:
        """Return the tasks with an input whose state differs from the recorded one."""
        with lookup.at_once():
            moved = {
                key for key, (names, parts) in self.sets.items() if lookup.parts(names) != parts
            }
        return {task for task, key in self.task_sets.items() if key in moved}

    def needed(self, lookup: Discovery) -> Needed:
        """Collect the facts that the plan needs besides the files whose digests the lookup took."""
        found = Needed()
        names = self.names(self.task_sets)
        missing = {_first_missing(lookup.path(member)) for member in names.missed}
        # What a link leads to may appear elsewhere.
        dangling = [path for path in missing if os.path.islink(path)]  # noqa: PTH114 - often
        missing |= {_first_missing(os.path.realpath(path)) for path in dangling}
        beside = Counter(os.path.dirname(path) for path in missing)  # noqa: PTH120
        # A folder is watched as a whole where much was looked for in it, but not for a few names:
        # in a home, or in the folder of temporary files, others make files all the time.
        crowded = {folder for folder, count in beside.items() if count > MOST_NAMES}
        crowded.update(map(os.path.dirname, dangling))
        found.absent += [p for p in missing if os.path.dirname(p) not in crowded]  # noqa: PTH120
        for folder in {*crowded, *map(lookup.path, names.listed | names.modules | names.sized)}:
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
        for path in map(lookup.path, names.looked - names.files):
            _look(found, path, look_of(path))
        for folder in map(lookup.path, names.sized):
            for name, seen in (sizes_in(folder) or {}).items():
                _look(found, f"{folder}/{name}", seen)
        with lookup.at_once():
            states = lookup.parts(Discovered(variables=names.variables))
        found.variables = {name.partition(" ")[2]: state for name, state in states.items()}
        return found

    def to_json(self) -> dict[str, Json]:
        """Return plain JSON, each text once: thousands of programs share most of their inputs."""
        texts: dict[str, int] = {}

        def number(text: str) -> int:
            return texts.setdefault(text, len(texts))

        sets = {
            key: [
                {kind: [*map(number, members)] for kind, members in names.to_json().items()},
                [number(text) for part in parts.items() for text in part],
            ]
            for key, (names, parts) in self.sets.items()
        }
        return {"texts": list(texts), "sets": sets, "tasks": dict(self.task_sets)}

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> ObservedSets:
        """Rebuild from the result of `to_json`.

        Raises
        ------
        KeyError, TypeError, ValueError
            The data have another form.
        """
        texts = data["texts"]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("a text is none")

        def text_of(number: Json) -> str:
            if not isinstance(number, int) or not 0 <= number < len(texts):
                raise ValueError("a text is missing")
            return str(texts[number])

        sets = {}
        for key, (kinds, parts) in data["sets"].items():
            names = {kind: [*map(text_of, numbers)] for kind, numbers in kinds.items()}
            flat = [*map(text_of, parts)]
            states = dict(zip(flat[::2], flat[1::2], strict=True))
            sets[key] = Discovered.from_json(names), states
        tasks = {str(task): str(key) for task, key in data["tasks"].items()}
        if not set(tasks.values()) <= set(sets):
            raise ValueError("a task without its set of inputs")
        return cls(sets, tasks)


def _look(found: Needed, path: str, seen: str) -> None:
    if not seen:
        found.absent.append(path)
    elif " " in seen or path not in found.looks:
        found.looks[path] = seen


def _first_missing(path: str) -> str:
    """Return the uppermost part of a path that is not there."""
    while len(path) > 1:
        folder = os.path.dirname(path)  # noqa: PTH120
        if os.path.isdir(folder):  # noqa: PTH112
            break
        path = folder
    return path
