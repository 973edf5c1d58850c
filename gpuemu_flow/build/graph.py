"""The task graph as data, and the events of a run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from fnmatch import fnmatchcase

from msgspec import Struct, field

from gpuemu_flow.model.errors import Problem, UsageError, did_you_mean, nearest
from gpuemu_flow.tasks.base import Progress, TaskSpec

# Events of a run, as data for a display.


class TaskEvent(Struct, frozen=True):
    """A change of a task's status."""

    task: str
    what: str


class Listener:
    """Receives the events of a run, from several threads. This base class ignores them."""

    def on_plan(self, total: int, todo: int) -> None:
        """Handle the start: `total` tasks are selected, and `todo` of them may have to run."""

    def on_task(self, event: TaskEvent) -> None:
        """Handle a change of a task's status."""

    def on_progress(self, progress: Progress) -> None:
        """Handle progress in a task: some more of its cases have ended."""

    def on_wait(self, holder: str) -> None:
        """Handle the start of waiting for another run of the workspace, described by `holder`."""


_WILDCARDS = frozenset("*?[")
STAGES = ("generate", "op", "reference", "compare", "build", "code", "lint", "diff")


class Skip(Struct, frozen=True):
    """An op and dtype for which the graph has no tasks, and the reason."""

    op: str
    dtype: str
    reason: str


class Graph(Struct, frozen=True):
    """All tasks of a workspace."""

    tasks: Mapping[str, TaskSpec]
    groups: Mapping[str, tuple[str, ...]]
    skips: tuple[Skip, ...] = ()
    _readers: dict[str, list[str]] = field(default_factory=dict)

    def differing(self, other: Graph) -> list[TaskSpec] | None:
        """Return the tasks of this graph that differ from the task of the same name in `other`."""
        mine, theirs = self.tasks, other.tasks
        named = (self.skips, self.groups, mine.keys())
        if named != (other.skips, other.groups, theirs.keys()):
            return None
        return [spec for name, spec in mine.items() if spec != theirs[name]]

    def names(self) -> list[str]:
        """Return the names of the groups to show to users, such as ops, stages and targets. Groups
        without tasks are left out."""
        return [
            name
            for name, members in self.groups.items()
            if members and (name in STAGES or name.partition(":")[0] not in STAGES)
        ]

    def readers(self, task: str) -> list[str]:
        if not self._readers:
            for name, spec in self.tasks.items():
                for source in spec.reads:
                    self._readers.setdefault(source, []).append(name)
        return self._readers.get(task, [])

    def downstream(self, names: Iterable[str]) -> set[str]:
        """Return `names` and all tasks that depend on them, directly or through other tasks."""
        return _reached(names, self.readers)

    def upstream(self, names: Iterable[str]) -> set[str]:
        """Return `names` and all tasks that they depend on, directly or through other tasks."""
        found = set(names)
        if len(found) == len(self.tasks):
            return found
        return _reached(found, lambda name: self.tasks[name].reads)

    def select(self, words: Iterable[str], dtypes: Iterable[str] = ()) -> set[str]:
        """Return the tasks that the words of a command line name, without their dependencies.
        Raises UsageError: ``unknown-task`` for a word or pattern that matches nothing; ``no-such-
        dtype`` for a dtype that no op has, and for a word that matches no task of the chosen
        dtypes."""
        chosen: set[str] = set()
        words, wanted = list(words), list(dtypes)
        problems = []
        for word in words:
            named = self._named(word)
            if named is None:
                problems.append(self._unknown(word))
            else:
                chosen.update(named)
                problems += self._left_out(word, named, wanted)
        if not words:
            chosen = set(self.tasks)
        if wanted:
            known_dtypes = sorted({s.dtype for s in self.tasks.values() if s.dtype})
            problems += [
                Problem(
                    "no-such-dtype", f"no op is checked in {d!r}", did_you_mean(d, known_dtypes)
                )
                for d in wanted
                if d not in known_dtypes
            ]
            chosen = {n for n in chosen if self.tasks[n].dtype in wanted}
        if problems:
            raise UsageError(*problems)
        return chosen

    def _named(self, word: str) -> set[str] | None:
        """Return the tasks that a word or a pattern names; None if it names none. ``OP:DTYPE``
        names all stages of an op in one dtype."""
        if word in self.tasks:
            return {word}
        if word in self.groups:
            return set(self.groups[word])
        subject, _, dtype = word.rpartition(":")
        if not _WILDCARDS & set(word):
            found = (self.tasks[name] for name in self.groups.get(subject, ()))
            return {s.name for s in found if s.dtype == dtype and s.subject == subject} or None
        tasks = {
            name
            for name, spec in self.tasks.items()
            if fnmatchcase(name, word)
            or (dtype and spec.dtype and fnmatchcase(f"{spec.subject}:{spec.dtype}", word))
        }
        groups = [members for name, members in self.groups.items() if fnmatchcase(name, word)]
        return tasks.union(*groups) if tasks or groups else None

    def _left_out(self, word: str, named: Iterable[str], dtypes: Collection[str]) -> list[Problem]:
        """Return a problem, in a list, if a word names only tasks of other dtypes than `dtypes`."""
        there = {self.tasks[name].dtype for name in named} - {""}
        if not dtypes or not there or not there.isdisjoint(dtypes) or _WILDCARDS & set(word):
            return []
        text = f"{word!r} is not checked in {' or '.join(dtypes)}"
        return [Problem("no-such-dtype", text, f"only in {', '.join(sorted(there))}")]

    def _unknown(self, word: str) -> Problem:
        """Return the problem about a word that names no task; if its op was skipped, say why."""
        stage, _, rest = word.partition(":")
        for skip in self.skips:
            if stage in STAGES and rest in (skip.op, f"{skip.op}:{skip.dtype}"):
                message = f"{word!r} is no task, because {skip.op} has none: {skip.reason}"
                return Problem("unknown-task", message)
        near = nearest(word, [*self.groups, *self.tasks])
        hint = f"did you mean {near!r}?" if near else f"known: {', '.join(self.names())}"
        return Problem("unknown-task", f"{word!r} is no op, task, group or target", hint)


def _reached(names: Iterable[str], following: Callable[[str], Iterable[str]]) -> set[str]:
    """Return `names` and all names that repeated calls of `following` reach from them."""
    found: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending.extend(following(name))
    return found
