"""Select tasks: by words, by sets such as ``@changed``, since a commit, and by shards."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field, to_builtins

from gpuemu_flow.build.discovery import ObservedSets
from gpuemu_flow.build.files import FileTable, is_listed
from gpuemu_flow.build.graph import Graph
from gpuemu_flow.model.errors import FlowError, Problem, StoreError, UsageError, did_you_mean
from gpuemu_flow.model.types import BAD, Json
from gpuemu_flow.store.cache import JsonStore
from gpuemu_flow.store.discovered import Discovered
from gpuemu_flow.store.keys import digest_json
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import TaskSpec, read_result

if TYPE_CHECKING:
    from gpuemu_flow.build.workspace import Workspace


# Select tasks by the words of a command line, and by sets such as ``@changed``.


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
    use: files, folders that it listed, and paths at which it found nothing. Observed files that git
    reports as unchanged are compared, too, since git's attributes can normalise their content, and
    git does not record all permissions. Files that git ignores count as changed, since git does not
    record their content. If a program was never run in its present version, its inputs are unknown.
    Changed files that no task names then count as its inputs. If the extracted commit has no
    readable configuration, all tasks are returned. Raises UsageError: ``git-missing``,
    ``bad-git-ref``, ``not-a-repository``."""
    top = Path(_git(workspace.root, "rev-parse", "--show-toplevel").rstrip("\n"))
    base = parting_commit(workspace.root, ref)
    change = _change(top, base)
    observed, path_of = workspace.snapshot.observed, workspace.inputs.path
    _add_unseen_by_git(workspace, top, base, change)
    seen = change.tasks(observed, path_of)
    seen |= _unknown_to_git(workspace, top, change).tasks_reading(observed, path_of)
    differ, named = _different(workspace, top, base)
    never_run, as_another = _unobserved(workspace)
    named |= _named_files(workspace)
    # A source file concerns the tasks that name it. For other files, the readers are known if their
    # programs were observed.
    if _inputs(workspace, change.written) - named:
        differ |= never_run | as_another
    elif as_another and _ignored(workspace, top):
        differ |= as_another
    return workspace.graph.downstream(differ | seen & set(workspace.graph.tasks))


def _add_unseen_by_git(workspace: Workspace, top: Path, base: str, change: Change) -> None:
    """Add to `change` the observed files that git reports as unchanged, although they differ. A
    file differs if a checkout would give it other content or other permissions."""
    observed, inputs = workspace.snapshot.observed, workspace.inputs

    def present(members: Iterable[str]) -> dict[str, str]:
        paths = {os.path.realpath(inputs.path(member)) for member in members} - change.written
        inside = (path for path in paths if path.startswith(f"{top}/"))
        return {path: path[len(f"{top}/") :] for path in inside if os.path.isfile(path)}  # noqa: PTH113

    names = observed.names(observed.task_sets)
    files, looked = present(names.files), present(names.looked)
    if not (files or looked):
        return
    listed = _git(top, "ls-tree", "-r", "-z", "--full-tree", base).split("\0")
    blobs = {name: about.split() for about, _, name in (line.partition("\t") for line in listed)}
    # git reads one path from each line.
    plain = [path for path, name in files.items() if name in blobs and "\n" not in path]
    for path, digest in digests_by_git(top, plain).items():
        if digest != blobs[files[path]][2] and not _is_as_checked_out(top, base, files[path]):
            change.written.add(path)
    # Of permissions, git records one bit. Others are compared with what the last run found.
    moved = set(present(observed.moved(inputs, "look")))
    for path, name in looked.items():
        if name in blobs and os.access(path, os.X_OK) != (blobs[name][0] == "100755"):
            moved.add(path)
    change.written.update(moved)
    change.moved.update(moved)


def digests_by_git(top: Path, paths: Sequence[str]) -> dict[str, str]:
    """Return git's digest of each file's content; an empty text if the file has vanished."""
    found = dict.fromkeys(paths, "")
    left = list(paths)
    while left:
        try:
            digests = _git(
                top, "hash-object", "--no-filters", "--stdin-paths", given="\n".join(left)
            )
        except UsageError:
            there = [path for path in left if os.path.isfile(path)]  # noqa: PTH113
            if there == left:
                raise
            left = there
        else:
            return {**found, **dict(zip(left, digests.split(), strict=True))}
    return found


def _is_as_checked_out(top: Path, base: str, name: str) -> bool:
    """Tell whether a file has the content that a checkout of the commit `base` would give it."""
    made = os.fsencode(_git(top, "cat-file", "--filters", f"{base}:{name}"))
    try:
        return made == (top / name).read_bytes()
    except OSError:  # it vanished meanwhile
        return False


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


def _unknown_to_git(workspace: Workspace, top: Path, change: Change) -> Unknown:
    """Return the files in which git cannot detect changes, except the outputs of rules."""
    listed = _git(top, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    known = {f"{top}/{name}" for name in listed.split("\0") if name}
    tasks = workspace.graph.tasks.values()
    made = {os.path.realpath(workspace.root / path) for spec in tasks for path in spec.outputs}
    return Unknown(str(top), known | change.before() | made, str(workspace.cache.folder))


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


def _change(top: Path, base: str) -> Change:
    """Return the differences between a commit and the working tree."""

    def before() -> set[str]:
        listed = _git(top, "ls-tree", "-r", "-z", "--name-only", "--full-tree", base)
        return {f"{top}/{name}" for name in listed.split("\0") if name}

    raw = _git(top, "diff", "--raw", "--no-ext-diff", "--no-renames", "-z", base, "--")
    others = _git(top, "ls-files", "--others", "--exclude-standard", "-z")
    return read_change(str(top), raw, others, before)


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
    given: str = "",
) -> str:
    """Run git with `given` as input, without shell, pager, prompt or hook; return its output."""
    environ = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", **(more or {})}
    try:
        done = subprocess.run(
            ["git", "--no-pager", *_PLAIN, "-C", str(folder), *arguments],
            env=environ,
            input=os.fsencode(given),
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


# Find the tasks with an observed input that differs between a commit and the working tree.


class Change(Struct, dict=True):
    """The differences between a commit and the working tree; all paths are absolute."""

    top: str
    written: set[str]
    moved: set[str]
    before: Callable[[], set[str]]
    _spelled: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @cached_property
    def _above(self) -> set[str]:
        """Return all folders of the repository that contain moved files, at any depth."""
        return {folder for path in self.moved for folder in _folders(path, self.top)}

    @cached_property
    def _files_before(self) -> set[str]:
        return self.before()

    @cached_property
    def _entries_before(self) -> dict[str, set[str]]:
        return self._entries(self._files_before)

    @cached_property
    def _entries_now(self) -> dict[str, set[str]]:
        there = {path for path in self._files_before | self.moved if os.path.lexists(path)}
        return self._entries(there)

    def _entries(self, files: Iterable[str]) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for path in files:
            name = path
            for folder in _folders(path, self.top):
                found.setdefault(folder, set()).add(name)
                name = f"{folder}/"
        return found

    def tasks(self, observed: ObservedSets, path_of: Callable[[str], str]) -> set[str]:
        """Return the tasks with an observed input that differs between commit and working tree."""
        if not self.written:
            return set()
        hit = {key for key, (names, _) in observed.sets.items() if self._touches(names, path_of)}
        return {task for task, key in observed.task_sets.items() if key in hit}

    def _touches(self, names: Discovered, path_of: Callable[[str], str]) -> bool:
        def paths(members: Iterable[str]) -> Iterator[str]:
            for member in members:
                yield from self._spellings(path_of(member))

        gone_or_come = self.moved | self._above
        return (
            any(path in self.written for path in paths(names.files | names.links))
            or any(path in gone_or_come for path in paths(names.missed))
            or any(self._looks_otherwise(path) for path in paths(names.looked))
            or any(self._lists_otherwise(path) for path in paths(names.listed))
        )

    def _spellings(self, path: str) -> tuple[str, ...]:
        """Return a path as it is and with its links resolved. A result that lies outside of the
        repository is left out."""
        known = self._spelled.get(path)
        if known is None:
            found = dict.fromkeys((os.path.normpath(path), os.path.realpath(path)))
            known = tuple(p for p in found if p == self.top or p.startswith(f"{self.top}/"))
            self._spelled[path] = known
        return known

    def _looks_otherwise(self, path: str) -> bool:
        if path in self.moved:
            return True
        return path in self._above and (path in self._entries_before) != (path in self._entries_now)

    def _lists_otherwise(self, folder: str) -> bool:
        if folder not in self._above:
            return False
        differ = self._entries_before.get(folder, set()) ^ self._entries_now.get(folder, set())
        names = (path.rstrip("/").rpartition("/")[2] for path in differ)
        return any(is_listed(name) for name in names)


class Unknown(Struct):
    """The files in a repository for which git cannot tell whether they changed."""

    top: str
    known: set[str]
    cache: str

    def tasks_reading(self, observed: ObservedSets, path_of: Callable[[str], str]) -> set[str]:
        """Return the tasks with an observed input file of which git cannot tell whether it
        changed."""

        def holds(member: str) -> bool:
            path = os.path.realpath(path_of(member))
            inside = path.startswith(f"{self.top}/") and not path.startswith(f"{self.cache}/")
            return inside and path not in self.known and os.path.isfile(path)  # noqa: PTH113

        hit = {key for key, (names, _) in observed.sets.items() if any(map(holds, names.files))}
        return {task for task, key in observed.task_sets.items() if key in hit}


def read_change(top: str, raw: str, untracked: str, before: Callable[[], set[str]]) -> Change:
    written, moved = set[str](), set[str]()
    words = raw.split("\0")
    for about, name in zip(words[::2], words[1::2], strict=False):
        old, new, *_ = about.lstrip(":").split(" ")
        written.add(f"{top}/{name}")
        if old != new:  # modes: file type and permissions, or 0 for no file
            moved.add(f"{top}/{name}")
    others = {f"{top}/{name}" for name in untracked.split("\0") if name}
    return Change(top, written | others, moved | others, before)


def _folders(path: str, top: str) -> Iterator[str]:
    while len(path) > len(top):
        path = path.rpartition("/")[0]
        yield path


# Protocols of the workspace whose tasks are selected; `build.workspace` implements them.


# Split a workspace's ops into shards, in the same way on all machines with the same files.

DURATIONS_NAME = "gpuemu.durations.json"
MAX_BYTES = 16 << 20
MAX_SHARDS = 10_000


class Shard(Struct, frozen=True):
    """One of `count` parts of a workspace; `index` is counted from 1."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def subjects(graph: Graph) -> set[str]:
    """Return the names of a graph's ops, kernels and rules, even of those that cannot run here."""
    return {spec.subject for spec in graph.tasks.values()} | {skip.op for skip in graph.skips}


def split(names: Iterable[str], seconds: Mapping[str, float], count: int) -> dict[str, int]:
    """Assign each name to a shard, a number from 1 to `count`. The result depends only on the
    arguments, so that all machines get the same split. Names are assigned in order of duration, the
    longest first, each to the shard with the smallest total. If the duration of a name is unknown,
    the median of the known ones is used. If none is known, the shard of a name depends only on the
    name, so that adding a name moves no other name."""
    names = sorted(names)
    known = [seconds[name] for name in names if name in seconds]
    if not known:
        return {name: _hash(name) % count + 1 for name in names}
    ordered = sorted(known)
    usual = (ordered[(len(known) - 1) // 2] + ordered[len(known) // 2]) / 2
    loads = [0.0] * count
    found = {}
    for name in sorted(names, key=lambda n: (-seconds.get(n, usual), n)):
        place = loads.index(min(loads))
        loads[place] += seconds.get(name, usual)
        found[name] = place + 1
    return found


def _hash(name: str) -> int:
    data = name.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big")


def assignment(graph: Graph, root: Path, count: int) -> dict[str, int]:
    """Return the shard of each op, kernel and rule of a workspace. Raises UsageError:
    ``durations-unreadable``."""
    return split(subjects(graph), read_durations(root / DURATIONS_NAME), count)


def owned(graph: Graph, root: Path, shard: Shard) -> set[str]:
    """Return the names of the ops, kernels and rules in a shard."""
    every = assignment(graph, root, shard.count)
    return {name for name, place in every.items() if place == shard.index}


def split_digest(graph: Graph, root: Path, count: int) -> str:
    """Return a digest of the assignment of all names to shards."""
    return digest_json(assignment(graph, root, count))


def remember_split(state: JsonStore, graph: Graph, root: Path, shard: Shard) -> list[Problem]:
    """Record how the ops were split for this shard; warn if another shard ran with another split.
    The list has one warning or none. The warning is given if the other split was made from other
    durations, or only one of the two was made from durations: an op may then be in no shard. It is
    not given if the splits differ only because ops were added or removed."""
    seconds = read_durations(root / DURATIONS_NAME)
    mine = [digest_json(seconds) if seconds else "", split_digest(graph, root, shard.count)]
    key = f"shards:{shard.count}"
    stored = state.get(key)
    known: dict[str, list[str]] = stored if isinstance(stored, dict) else {}
    if known.get(str(shard.index)) != mine:
        state.put(key, {**known, str(shard.index): mine})
    apart = [
        int(index)
        for index, (durations, split) in known.items()
        if index != str(shard.index) and durations != mine[0] and split != mine[1]
    ]
    if not apart:
        return []
    by = f"with the durations in {DURATIONS_NAME}" if seconds else f"without {DURATIONS_NAME}"
    shown = ", ".join(f"{n}/{shard.count}" for n in sorted(apart))
    message = f"{shard} is split {by}, {shown} last was not: an op may be in none of them"
    hint = f"run all shards with one {DURATIONS_NAME}"
    return [Problem("shards-apart", message, hint, warning=True)]


_JUDGED = (stages.GENERATE, stages.COMPARE)
"""Stages whose parameters decide the cases and how they are judged."""


def settings_digests(graph: Graph, *, drawn: bool) -> dict[str, str]:
    """Return, for each op, a digest of the settings that decide its cases and their verdicts."""
    left_out = {"seed"} if drawn else set()
    found: dict[str, list[Json]] = {}
    for _, spec in sorted(graph.tasks.items()):
        if spec.stage in _JUDGED:
            params = spec.params.items()
            deciding = {name: value for name, value in params if name not in left_out}
            found.setdefault(spec.subject, []).append([spec.stage, spec.dtype, deciding])
    return {op: digest_json(settings)[:16] for op, settings in found.items()}


_OF_MACHINE = frozenset(("python", "sandbox", "tools", "unusable", "triton_version", "kind"))
"""Parameters of tasks that depend on the machine and not on the commit."""


def code_digests(graph: Graph, files: FileTable, top: Path) -> dict[str, str]:
    """Return, for each op, kernel and rule, a digest of the code that is known before a run. The
    digest of an op, for example, covers the sources and parameters of its programs, and of the
    rules and kernels that it needs. Sources include the files that globs of the configuration
    match. Outputs of rules, and files outside of the repository, are left out. The digest is
    therefore equal on all machines with the same commit."""
    left_out = {output for spec in graph.tasks.values() for output in spec.outputs}
    # Each machine has a different interpreter.
    left_out |= {spec.params.get("python", "") for spec in graph.tasks.values()}
    members: dict[str, list[str]] = {}
    for name, spec in graph.tasks.items():
        # Compiled code comes from a build only if there is a compiler.
        if spec.stage != stages.CODE:
            members.setdefault(spec.subject, []).append(name)
    return {
        subject: digest_json(
            [
                _code_of(spec, files, top, left_out)
                for name in sorted(graph.upstream(names))
                if (spec := graph.tasks[name]).stage != stages.CODE
            ]
        )[:16]
        for subject, names in members.items()
    }


def _code_of(spec: TaskSpec, files: FileTable, top: Path, left_out: Collection[str]) -> Json:
    """Return the digests of a task's sources, and the task's parameters. Parameters that depend on
    the machine are left out, and so are sources that are in `left_out` or outside of the folder
    `top`. No parameters are returned for the stages that generate or compare cases."""
    sources = {
        os.path.relpath(files.root / path, files.root): files.digest(path)
        for path in spec.sources
        if path not in left_out and Path(os.path.normpath(files.root / path)).is_relative_to(top)
    }
    params = {} if spec.stage in _JUDGED else spec.params
    return [sources, {name: value for name, value in params.items() if name not in _OF_MACHINE}]


def durations_text(seconds: Mapping[str, float]) -> str:
    """Return the content of a file of durations, as `read_durations` reads it."""
    rounded = {name: round(value, 3) for name, value in sorted(seconds.items())}
    return json.dumps({"schema_version": 1, "seconds": rounded}, indent=2)


def read_durations(path: Path) -> dict[str, float]:
    """Return the seconds of each op in a file of durations; empty if there is no file. Raises
    UsageError: ``durations-unreadable``. If the file were ignored, this machine would split the ops
    differently from others."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from None
    if len(data) > MAX_BYTES:
        raise _unreadable(path, f"it has more than {MAX_BYTES >> 20} MiB")
    try:
        found = json.loads(data)
        given = found["seconds"]
        if found["schema_version"] != 1:
            raise _unreadable(path, "it is of another version")
        pairs = [(str(name), value) for name, value in given.items()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _unreadable(path, "it is not what `list --durations` writes") from None
    for name, value in pairs:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0 <= value < 1e9:
            raise _unreadable(path, f"the seconds of {name[:80]!r} are no number of seconds")
    return {name: float(value) for name, value in pairs}


def _unreadable(path: Path, reason: str) -> UsageError:
    hint = f"write it anew: gpuemu-flow list --durations > {path.name}"
    return UsageError(Problem("durations-unreadable", reason, hint, file=path.name))
