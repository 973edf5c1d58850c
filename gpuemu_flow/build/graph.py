"""The task graph as data, the events of a run, and the selection of tasks by words and changes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field, to_builtins

from gpuemu_flow.build.files import FileTable
from gpuemu_flow.model.errors import (
    FlowError,
    Problem,
    StoreError,
    UsageError,
    did_you_mean,
    known_names,
    nearest,
)
from gpuemu_flow.model.types import BAD, Json
from gpuemu_flow.store.keys import Discovered, digest_json
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import Progress, TaskSpec, read_result

if TYPE_CHECKING:
    from gpuemu_flow.build.workspace import Workspace

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
        hint = f"did you mean {near!r}?" if near else known_names(self.names())
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


# Select tasks by the words of a command line, by sets such as ``@changed``, and by shard.


def select(workspace: Workspace, words: Iterable[str], dtypes: Iterable[str] = ()) -> set[str]:
    """Return the tasks that the words of a command line name, without their dependencies. Raises
    UsageError: The errors of `Graph.select`. Also ``unknown-set``, for a word that begins with
    ``@`` but is neither a name in `SETS` nor a group."""
    graph, words = workspace.graph, list(words)
    named = [word for word in words if not is_set(word) or word in graph.groups]
    sets = [word for word in words if word not in named]
    unknown = [word for word in sets if word not in SETS]
    if unknown:
        raise UsageError(*map(_unknown, unknown))
    chosen = graph.select(named, dtypes) if named or not sets else set()
    if sets:
        wanted = graph.select((), dtypes)
        for word in sets:
            chosen |= SETS[word](workspace) & wanted
    return chosen


def is_set(word: str) -> bool:
    """Tell whether a word has the form of a set of tasks: it begins with ``@``."""
    return word.startswith("@")


def _unknown(word: str) -> Problem:
    return Problem("unknown-set", f"there is no set {word!r}", did_you_mean(word, list(SETS)))


def _changed(workspace: Workspace) -> set[str]:
    return workspace.stale(set(workspace.graph.tasks))


def _new(workspace: Workspace) -> set[str]:
    states = workspace.states()
    return {
        name
        for name in workspace.graph.tasks
        if states.record(name) is None and not states.has_failed(name)
    }


def _failed(workspace: Workspace) -> set[str]:
    """Return the tasks whose verdict is failed or error, and those that failed to make a result.
    Tasks that depend on a task without a result are included."""
    states, graph = workspace.states(), workspace.graph
    broken = {
        name for name in graph.tasks if states.has_failed(name) and states.record(name) is None
    }
    bad = {
        name
        for name, spec in graph.tasks.items()
        if states.record(name) is not None and _verdict(workspace, spec) in _BAD
    }
    return bad | graph.downstream(broken)


_BAD = frozenset(verdict.value for verdict in BAD)


def _verdict(workspace: Workspace, spec: TaskSpec) -> str:
    """Return the verdict in the result of a comparison or a lint; empty if there is none."""
    if spec.stage not in (stages.COMPARE, stages.LINT):
        return ""
    try:
        result = read_result(workspace.cache, spec.name, spec.stage)
    except StoreError:
        return ""
    found = result["summary"] if spec.stage == stages.COMPARE else result
    return str(found["verdict"])


SETS: dict[str, Callable[[Workspace], set[str]]] = {
    "@changed": _changed,
    "@failed": _failed,
    "@new": _new,
}
"""Sets of tasks by their states."""


# Find the tasks that differ between a commit and the working tree.

_SECONDS = 300.0
_PLAIN = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")


def touched_since(workspace: Workspace, ref: str) -> set[str]:
    """Return the tasks that changed since the history branched off `ref`, and their dependents. The
    commit at which the two histories branched is extracted to another folder and compiled. A task
    has changed if its programs, its part of the configuration or its inputs differ from that
    commit, even if the change is not committed. Inputs include what the task's program was seen to
    use: files, folders that it listed, and paths at which it found nothing. Files that git ignores
    count as changed, since git does not record their content. If a program was never run in its
    present version, its inputs are unknown. Changed files that no task names then count as its
    inputs. If the extracted commit has no readable configuration, all tasks are returned. Raises
    UsageError: ``git-missing``, ``bad-git-ref``, ``not-a-repository``."""
    top = Path(_git(workspace.root, "rev-parse", "--show-toplevel").rstrip("\n"))
    base = parting_commit(workspace.root, ref)
    tasks = workspace.graph.tasks

    def listed(*arguments: str) -> set[str]:
        return {f"{top}/{name}" for name in _git(top, *arguments, "-z").split("\0") if name}

    untracked = listed("ls-files", "--others", "--exclude-standard")
    compared = ("diff", "--no-ext-diff", "--no-renames", "--name-only", base)
    written = listed(*compared) | untracked
    moved = listed(*compared, "--diff-filter=ADT") | untracked
    above = {folder for path in moved for folder in _folders(path, str(top))}
    outputs = {
        os.path.realpath(workspace.root / path) for t in tasks.values() for path in t.outputs
    }
    known = listed("ls-files") | written | outputs
    cache = f"{os.path.realpath(workspace.cache.folder)}/"

    def spellings(members: Iterable[str]) -> Iterator[str]:
        for path in map(workspace.inputs.path, members):
            yield from {os.path.normpath(path), os.path.realpath(path)}

    def is_ignored(path: str) -> bool:
        inside = path.startswith(f"{top}/") and not path.startswith(cache)
        return inside and path not in known and os.path.isfile(path)  # noqa: PTH113

    def touches(names: Discovered) -> bool:
        return (
            not written.isdisjoint(spellings(names.files | names.links))
            or any(is_ignored(os.path.realpath(workspace.inputs.path(m))) for m in names.files)
            or not moved.isdisjoint(spellings(names.looked))
            or not (moved | above).isdisjoint(spellings(names.missed))
            or not above.isdisjoint(spellings(names.listed))
        )

    observed = workspace.snapshot.observed
    hit = {key for key, (names, _) in observed.sets.items() if touches(names)}
    seen = {task for task, key in observed.task_sets.items() if key in hit}
    differ, named = _different(workspace, top, base)
    never_run, as_another = _unobserved(workspace)
    named |= _named_files(workspace)
    # A source file concerns the tasks that name it. For other files, the readers are known if their
    # programs were observed.
    if _inputs(workspace, written) - named:
        differ |= never_run | as_another
    elif as_another and _ignored(workspace, top):
        differ |= as_another
    return workspace.graph.downstream(differ | seen & set(tasks))


def _folders(path: str, top: str) -> Iterator[str]:
    """Yield the folders of the repository above a path."""
    while len(path) > len(top):
        path = path.rpartition("/")[0]
        yield path


def _unobserved(workspace: Workspace) -> tuple[set[str], set[str]]:
    """Return the tasks whose programs never ran, and those whose programs changed after a run."""
    states = workspace.states()
    never_run, as_another = set[str](), set[str]()
    for name, spec in workspace.graph.tasks.items():
        if spec.stage not in stages.OBSERVED or not spec.sources:
            continue
        made = states.made_from(name)
        if made is None:
            never_run.add(name)
            continue
        now = to_builtins(states.static_parts(spec))
        if any(made.parts.get(part) != now[part] for part in ("code", "params")):
            as_another.add(name)
    return never_run, as_another


def _named_files(workspace: Workspace) -> set[str]:
    """Return the paths of the tasks' sources and outputs, and of the configuration's files."""
    tasks = workspace.graph.tasks.values()
    own = {path for spec in tasks for path in (*spec.sources, *spec.outputs)}
    own.update(path for path, _ in workspace.snapshot.basis.config)
    return {os.path.realpath(workspace.root / path) for path in own}


def _ignored(workspace: Workspace, top: Path) -> bool:
    """Tell whether git ignores at least one file that could be an input; see `_inputs`."""
    listed = _git(
        top, "ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory"
    )
    return bool(_inputs(workspace, (f"{top}/{name}" for name in listed.split("\0") if name)))


def _inputs(workspace: Workspace, paths: Iterable[str]) -> set[str]:
    """Return the resolved paths, without those in our cache and those of Python's bytecode. Such
    paths cannot be inputs of a task."""
    cache = os.path.realpath(workspace.cache.folder)
    found = {os.path.realpath(path) for path in paths}
    return {
        path
        for path in found
        if not f"{path}/".startswith(f"{cache}/") and "/__pycache__/" not in f"{path}/"
    }


def parting_commit(root: Path, ref: str) -> str:
    """Return the last common commit of ``HEAD`` and `ref`, at which their histories branched.
    Raises UsageError: ``git-missing``, ``bad-git-ref``."""
    if not ref or ref.startswith("-") or "\0" in ref:
        raise _bad_ref(ref, "it is no name of a commit")
    commit = _git(root, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}", ref=ref).strip()
    return _git(root, "merge-base", commit, "HEAD", ref=ref).strip()


def _different(workspace: Workspace, top: Path, base: str) -> tuple[set[str], set[str]]:
    """Compare the tasks with the tasks of a commit."""
    tasks = workspace.graph.tasks
    inside = workspace.root.relative_to(top.resolve()).as_posix()
    with tempfile.TemporaryDirectory(prefix="gpuemu-since-") as temporary:
        folder = Path(temporary) / "tree"
        folder.mkdir()
        index = {"GIT_INDEX_FILE": str(Path(temporary) / "index")}
        tree = base if inside == "." else f"{base}:{inside}"
        try:
            _git(top, "read-tree", tree, more=index)
        except UsageError:  # the commit has no workspace there
            return set(tasks), set()
        _git(top, "checkout-index", "--all", "--quiet", f"--prefix={folder}/", more=index)
        config = folder / workspace.config_path.name
        if not config.is_file():
            return set(tasks), set()
        try:
            before = workspace.in_copy(folder)
            old = {name: _parts(before, spec) for name, spec in before.graph.tasks.items()}
        except FlowError:
            return set(tasks), set()
        named = {path for spec in before.graph.tasks.values() for path in spec.sources}
        differ = {name for name, spec in tasks.items() if old.get(name) != _parts(workspace, spec)}
        return differ, {os.path.realpath(workspace.root / path) for path in named}


def _parts(workspace: Workspace, spec: TaskSpec) -> Json:
    """Return the compared parts of a task: code, parameters, names of inputs, outputs, packages."""
    parts = workspace.states().static_parts(spec)
    inputs = [[source.role, source.task] for source in spec.inputs]
    return [parts.code, parts.params, inputs, list(spec.outputs), list(spec.packages)]


def _git(
    folder: Path,
    *arguments: str,
    ref: str = "",
    more: dict[str, str] | None = None,
) -> str:
    """Run git without shell, pager, prompt or hook; return its output."""
    environ = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", **(more or {})}
    try:
        done = subprocess.run(
            ["git", "--no-pager", *_PLAIN, "-C", str(folder), *arguments],
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        message = "--since needs git, which is not installed"
        raise UsageError(Problem("git-missing", message, "install it")) from None
    except subprocess.TimeoutExpired:
        message = f"git {arguments[0]} did not end within {_SECONDS:g} s"
        raise UsageError(Problem("not-a-repository", message)) from None
    if done.returncode == 0:
        return os.fsdecode(done.stdout)
    said = " ".join(done.stderr.decode("utf-8", "replace").split())[:300]
    if ref:
        raise _bad_ref(ref, said or "there is no such commit, or none that both histories share")
    message = f"git {arguments[0]} failed: {said or 'it says nothing'}"
    raise UsageError(Problem("not-a-repository", message, "--since compares with commits"))


def _bad_ref(ref: str, reason: str) -> UsageError:
    hint = "fetch it first: CI services check out one commit only unless told otherwise"
    return UsageError(Problem("bad-git-ref", f"--since {ref[:80]!r}: {reason}", hint))


# Split a workspace's ops into shards, in the same way on all machines with the same files.
MAX_SHARDS = 10_000


class Shard(Struct, frozen=True):
    """One of `count` parts of a workspace; `index` is counted from 1."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def owned(graph: Graph, shard: Shard) -> set[str]:
    """Return the names of the ops, kernels and rules in a shard, even of those that cannot run
    here. The name alone decides: all machines split alike, and a new op moves no other one."""
    names = {spec.subject for spec in graph.tasks.values()} | {skip.op for skip in graph.skips}
    return {name for name in names if _hash(name) % shard.count + 1 == shard.index}


_OF_MACHINE = frozenset(("python", "sandbox", "tools", "unusable", "triton_version", "kind"))
"""Parameters of tasks that depend on the machine and not on the commit."""


def code_digest(graph: Graph, files: FileTable, top: Path, *, drawn: bool) -> str:
    """Return a digest of the sources and settings of all tasks that are known before a run. What
    rules make, what lies outside of the repository `top`, and a seed that was `drawn` are left out:
    it is equal on all machines with the same commit."""
    tasks = graph.tasks.values()
    unlike = {output for spec in tasks for output in spec.outputs}
    unlike |= {spec.params.get("python", "") for spec in tasks}
    left_out = _OF_MACHINE | ({"seed"} if drawn else set())
    found = []
    for name, spec in sorted(graph.tasks.items()):
        # Compiled code comes from a build only if there is a compiler.
        if spec.stage == stages.CODE:
            continue
        sources = {
            path: files.digest(path)
            for path in spec.sources
            if path not in unlike and Path(os.path.normpath(files.root / path)).is_relative_to(top)
        }
        params = {key: value for key, value in spec.params.items() if key not in left_out}
        found.append([name, sources, params])
    return digest_json(found)


def _hash(name: str) -> int:
    data = name.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big")
