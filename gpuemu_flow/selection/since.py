"""Find the tasks that differ between a commit and the working tree."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpuemu_flow.errors import FlowError, Problem, UsageError
from gpuemu_flow.selection.since_observed import Change, Unknown, read_change
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import TaskSpec
from gpuemu_flow.types import Json

if TYPE_CHECKING:
    from gpuemu_flow.selection.protocols import SelectableWorkspace

_SECONDS = 300.0
_PLAIN = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")


def touched_since(workspace: SelectableWorkspace, ref: str) -> set[str]:
    """Return the tasks that changed since the history branched off `ref`, and their dependents.

    The commit at which the two histories branched is extracted to another folder and compiled. A
    task has changed if its programs, its part of the configuration or its inputs differ from that
    commit, even if the change is not committed. Inputs include what the task's program was seen to
    use: files, folders that it listed, and paths at which it found nothing. Observed files that git
    reports as unchanged are compared, too, since git's attributes can normalise their content, and
    git does not record all permissions.

    Files that git ignores count as changed, since git does not record their content. If a program
    was never run in its present version, its inputs are unknown. Changed files that no task names
    then count as its inputs. If the extracted commit has no readable configuration, all tasks are
    returned.

    Raises UsageError: ``git-missing``, ``bad-git-ref``, ``not-a-repository``.
    """
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


def _add_unseen_by_git(
    workspace: SelectableWorkspace, top: Path, base: str, change: Change
) -> None:
    """Add to `change` the observed files that git reports as unchanged, although they differ.

    A file differs if a checkout would give it other content or other permissions.
    """
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


def _unobserved(workspace: SelectableWorkspace) -> tuple[set[str], set[str]]:
    """Return the tasks whose programs never ran, and those whose programs changed after a run."""
    states = workspace.states()
    never_run, as_another = set[str](), set[str]()
    for name, spec in workspace.graph.tasks.items():
        if spec.stage not in stages.OBSERVED or not spec.sources:
            continue
        record = states.record(name)
        if record is None:
            never_run.add(name)
            continue
        now = states.static_parts(spec).to_json()
        if any(record.parts.get(part) != now[part] for part in ("code", "params")):
            as_another.add(name)
    return never_run, as_another


def _named_files(workspace: SelectableWorkspace) -> set[str]:
    """Return the paths of the tasks' sources and outputs, and of the configuration's files."""
    tasks = workspace.graph.tasks.values()
    own = {path for spec in tasks for path in (*spec.sources, *spec.outputs)}
    own.update(path for path, _ in workspace.snapshot.basis.config)
    return {os.path.realpath(workspace.root / path) for path in own}


def _unknown_to_git(workspace: SelectableWorkspace, top: Path, change: Change) -> Unknown:
    """Return the files in which git cannot detect changes, except the outputs of rules."""
    listed = _git(top, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    known = {f"{top}/{name}" for name in listed.split("\0") if name}
    tasks = workspace.graph.tasks.values()
    made = {os.path.realpath(workspace.root / path) for spec in tasks for path in spec.outputs}
    return Unknown(str(top), known | change.before() | made, str(workspace.cache.folder))


def _ignored(workspace: SelectableWorkspace, top: Path) -> bool:
    """Tell whether git ignores at least one file that could be an input; see `_inputs`."""
    listed = _git(
        top, "ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory"
    )
    return bool(_inputs(workspace, (f"{top}/{name}" for name in listed.split("\0") if name)))


def _inputs(workspace: SelectableWorkspace, paths: Iterable[str]) -> set[str]:
    """Return the resolved paths, without those in our cache and those of Python's bytecode.

    Such paths cannot be inputs of a task.
    """
    cache = os.path.realpath(workspace.cache.folder)
    found = {os.path.realpath(path) for path in paths}
    return {
        path
        for path in found
        if not f"{path}/".startswith(f"{cache}/") and "/__pycache__/" not in f"{path}/"
    }


def parting_commit(root: Path, ref: str) -> str:
    """Return the last common commit of ``HEAD`` and `ref`, at which their histories branched.

    Raises UsageError: ``git-missing``, ``bad-git-ref``.
    """
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


def _different(workspace: SelectableWorkspace, top: Path, base: str) -> tuple[set[str], set[str]]:
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


def _parts(workspace: SelectableWorkspace, spec: TaskSpec) -> Json:
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
