"""Select tasks: by words, by sets such as ``@changed``, since a commit, and by shards."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, to_builtins

from gpuemu_flow.build.files import FileTable
from gpuemu_flow.build.graph import Graph
from gpuemu_flow.model.errors import FlowError, Problem, StoreError, UsageError, did_you_mean
from gpuemu_flow.model.types import BAD, Json
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
