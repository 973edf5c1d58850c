"""The inputs that tasks were seen to use, stored once for all tasks."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct, field

from gpuemu_flow.build.discovery import KINDS, Discovery, grouped
from gpuemu_flow.build.files import Stamp, stamp_of
from gpuemu_flow.build.plan import look_of
from gpuemu_flow.model.types import Json
from gpuemu_flow.store.discovered import Discovered
from gpuemu_flow.store.keys import digest_json

MOST_NAMES = 8
"""Maximum number of missing names in a folder that are watched one by one. If there are more, the
folder itself is watched."""


class Needed(Struct):
    """The states that must be unchanged for tasks to be up to date, besides contents of files."""

    absent: list[str] = field(default_factory=list)
    folders: dict[str, Stamp] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    looks: dict[str, str] = field(default_factory=dict)


_Numbers = tuple[int, ...]


class _Fact(NamedTuple):
    """One input of a kind in `KINDS`, and the state that it had when it was recorded.

    `members` holds the input's name, such as a path. A package has one member for each place
    in which it is installed.
    """

    kind: str
    members: tuple[str, ...]
    state: str


_UNKNOWN = _Fact("", (), "")
"""Marks a set whose states do not belong to its names, so that it counts as changed."""


class ObservedSets:
    """The inputs that each task was seen to use, and their states when the task was up to date.

    Thousands of programs share most of their inputs. So each pair of input and state (a fact) is
    kept and checked once. A set holds the inputs of a task, and is stored as the numbers of its
    facts.
    """

    def __init__(self) -> None:
        self.task_sets: dict[str, str] = {}
        self._facts: dict[_Fact, int] = {}
        self._members: dict[str, _Numbers] = {}
        self._untracked: dict[str, frozenset[str]] = {}

    @property
    def sets(self) -> dict[str, tuple[Discovered, dict[str, str]]]:
        """Map the key of each set to the set's inputs and to their recorded states.

        The key is a digest of the inputs and the states.
        """
        return {key: (self._names([key]), self._parts(key)) for key in self._members}

    def record(self, task: str, names: Discovered, parts: Mapping[str, str]) -> None:
        """Record the inputs of a task, with the states that its key contains."""
        key = digest_json([names.to_json(), dict(parts)])
        self.task_sets[task] = key
        if key in self._members:
            return
        states = dict(parts)
        facts = [
            _Fact(kind, members, states.pop(f"{kind} {shown}"))
            if f"{kind} {shown}" in states
            else _UNKNOWN
            for kind, shown, members in grouped(names)
        ]
        if states:
            facts.append(_UNKNOWN)
        numbers = (self._facts.setdefault(fact, len(self._facts)) for fact in facts)
        self._members[key] = tuple(sorted(numbers))
        if names.untracked:
            self._untracked[key] = names.untracked

    def of(self, tasks: Container[str]) -> ObservedSets:
        """Return the sets of the tasks with these names."""
        found = ObservedSets()
        found._facts = dict(self._facts)
        found.task_sets = {task: key for task, key in self.task_sets.items() if task in tasks}
        for key in set(found.task_sets.values()):
            found._members[key] = self._members[key]
            if key in self._untracked:
                found._untracked[key] = self._untracked[key]
        return found

    def names(self, tasks: Iterable[str]) -> Discovered:
        """Return all inputs that these tasks were seen to use."""
        return self._names({self.task_sets[task] for task in tasks if task in self.task_sets})

    def untracked(self, task: str) -> frozenset[str]:
        """Return the reasons why a task may have used more than was seen."""
        return self._untracked.get(self.task_sets.get(task, ""), frozenset())

    def _names(self, keys: Collection[str]) -> Discovered:
        facts = list(self._facts)
        kinds: dict[str, set[str]] = {}
        for number in self._used(keys):
            fact = facts[number]
            if fact is not _UNKNOWN and fact.kind:
                kinds.setdefault(KINDS[fact.kind], set()).update(fact.members)
        untracked = frozenset[str]().union(*(self._untracked.get(key, ()) for key in keys))
        found = {kind: frozenset(members) for kind, members in kinds.items()}
        return Discovered(**found, untracked=untracked)

    def _parts(self, key: str) -> dict[str, str]:
        facts, numbers = list(self._facts), self._used([key])
        states = {(f.kind, f.members): f.state for f in map(facts.__getitem__, numbers)}
        return {
            f"{kind} {shown}": states[kind, members]
            for kind, shown, members in grouped(self._names([key]))
        }

    def changed(self, lookup: Discovery, *, but: Container[str] = ()) -> set[str]:
        """Return the tasks with an input whose state differs from the recorded one."""
        used = self._used(self._members)
        with lookup.at_once():
            moved = {
                number
                for number, fact in enumerate(self._facts)
                if number in used
                and fact.kind not in but
                and (not fact.kind or lookup.state(fact.kind, fact.members) != fact.state)
            }
        if not moved:
            return set()
        hit = {key for key, numbers in self._members.items() if not moved.isdisjoint(numbers)}
        return {task for task, key in self.task_sets.items() if key in hit}

    def moved(self, lookup: Discovery, kind: str) -> set[str]:
        """Return the inputs of one kind whose state differs from a recorded one; see `KINDS`."""
        used = self._used(self._members)
        with lookup.at_once():
            return {
                member
                for number, fact in enumerate(self._facts)
                if fact.kind == kind and number in used
                for member in fact.members
                if lookup.state(kind, (member,)) != fact.state
            }

    def _used(self, keys: Iterable[str]) -> set[int]:
        """Return the indices of all facts that are in at least one of the sets with these keys."""
        return set().union(*map(self._members.__getitem__, keys))

    def needed(self, lookup: Discovery) -> Needed:
        """Collect what must be unchanged for the tasks to be up to date, besides contents of files.

        This includes absent paths, listed folders, links and environment variables.
        """
        found = Needed()
        names = self.names(self.task_sets)
        missing = {_first_missing(lookup.path(member)) for member in names.missed}
        # If a link dangles, the path that it leads to may appear.
        dangling = [path for path in missing if os.path.islink(path)]  # noqa: PTH114 - often
        missing |= {_first_missing(os.path.realpath(path)) for path in dangling}
        beside = Counter(os.path.dirname(path) for path in missing)  # noqa: PTH120
        # A folder is watched as a whole where much was looked for in it, but not for a few names:
        # in a home, or in the folder of temporary files, others make files all the time.
        crowded = {folder for folder, count in beside.items() if count > MOST_NAMES}
        crowded.update(map(os.path.dirname, dangling))
        found.absent += [p for p in missing if os.path.dirname(p) not in crowded]  # noqa: PTH120
        # Where a package that was asked for in vain would be installed.
        sites = {
            member.rpartition("|")[0] for member in names.packages if not lookup.records(member)
        }
        listed = names.listed | sites
        for folder in {*crowded, *map(lookup.path, listed)}:
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
        with lookup.at_once():
            states = lookup.parts(Discovered(variables=names.variables))
        found.variables = {name.partition(" ")[2]: state for name, state in states.items()}
        return found

    def to_json(self) -> dict[str, Json]:
        """Return plain JSON, without facts that no set has."""
        facts = list(self._facts)
        places = {number: place for place, number in enumerate(sorted(self._used(self._members)))}
        return {
            "facts": [[facts[n].kind, facts[n].state, *facts[n].members] for n in places],
            "sets": {key: [places[n] for n in numbers] for key, numbers in self._members.items()},
            "untracked": {key: sorted(reasons) for key, reasons in self._untracked.items()},
            "tasks": self.task_sets,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> ObservedSets:
        """Rebuild from the result of `to_json`.

        Raises KeyError, TypeError, ValueError: The data have another form.
        """
        found = cls()
        for kind, state, *members in data["facts"]:
            found._facts[_Fact(kind, tuple(members), state)] = len(found._facts)
        found._members = {key: tuple(numbers) for key, numbers in data["sets"].items()}
        found._untracked = {key: frozenset(why) for key, why in data["untracked"].items()}
        found.task_sets = dict(data["tasks"])
        known = found._used(found.task_sets.values()) | found._used(found._members)
        if not known <= set(range(len(found._facts))):
            raise ValueError("a fact is missing")
        return found


def _look(found: Needed, path: str, seen: str) -> None:
    if not seen:
        found.absent.append(path)
    else:
        found.looks[path] = seen


def _first_missing(path: str) -> str:
    """Return the shortest leading part of a path at which nothing exists."""
    while len(path) > 1:
        folder = os.path.dirname(path)  # noqa: PTH120
        if os.path.isdir(folder):  # noqa: PTH112
            break
        path = folder
    return path
