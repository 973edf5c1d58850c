"""Watch the files that results rest on, and wait until one is saved."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from msgspec import Struct, field

from gpuemu_flow.build.files import SHOWN, Stamp, glob_files, stamp_of
from gpuemu_flow.build.stamps import CACHE_NAME
from gpuemu_flow.build.workspace import Workspace

MOST_FOLDERS = 2000  # each costs a system call per check
MOST_FILES = 2000  # files that may fix a broken configuration
_TICKS_NS = 50_000_000
_NEVER_SOURCES = frozenset({"__pycache__", "node_modules", CACHE_NAME})
_SOURCE_SUFFIXES = (".py", ".cu", ".cuh", ".h", ".hpp", ".ptx", ".cubin", ".toml")


class FileWatch(Struct):
    """Watched files and folders of one workspace, with their last known state. A file counts as
    saved if its stamp (times, size and inode) changed. The engine finds out whether its content
    changed. Folders are watched for new entries: a script that was missing, a module that now
    shadows another, or a new match of ``depends``."""

    # The workspace.
    root: Path
    # True if every new name in a folder counts. While the configuration is valid, only sources
    # count, so that files that programs write do not start another run.
    anything: bool = False
    _files: dict[str, Stamp | None] = field(default_factory=dict)
    _folders: dict[str, tuple[Stamp | None, frozenset[str]]] = field(default_factory=dict)
    _globs: dict[str, list[str]] = field(default_factory=dict)
    _shown: dict[tuple[str, str], object] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(stamp is not None for stamp in self._files.values())

    def refresh(self) -> None:
        """Record the present state, with which `saved` compares later states. Call it before a run,
        so that nothing saved later is missed."""
        self._files = {path: stamp_of(path) for path in self._files}
        self._folders = {folder: _look_into(folder) for folder in self._folders}
        self._globs = {pattern: glob_files(self.root, pattern) for pattern in self._globs}
        self._shown = {(kind, path): SHOWN[kind](path) for kind, path in self._shown}

    def follow(self, workspace: Workspace, tasks: Iterable[str]) -> None:
        """Watch the inputs of the given tasks; already watched files keep their known state. Call
        it again after a run, which may have observed further inputs."""
        tasks = list(tasks)
        graph, basis = workspace.graph, workspace.snapshot.basis
        paths = {str(self.root / p) for name in tasks for p in graph.tasks[name].sources}
        # Outputs of rules are no sources: a run that makes them would start the next run.
        paths -= {str(self.root / p) for spec in graph.tasks.values() for p in spec.outputs}
        paths |= {path for path, _ in basis.config}
        observed, shown = _observed(workspace, tasks)
        self.anything = False
        known = {**observed, **self._files}
        self._files = {p: known[p] if p in known else stamp_of(p) for p in (*paths, *observed)}
        self._shown = {key: self._shown.get(key, seen) for key, seen in shown.items()}
        self._globs = dict(basis.globs)
        self._follow_folders()

    def follow_config(self, path: Path) -> None:
        """Watch an invalid configuration, and what may mend it: sources, programs, new names."""
        self.anything = True
        self._follow_folders()
        inside = (f"{f}/{n}" for f, (_, names) in self._folders.items() for n in sorted(names))
        sources = (f for f in inside if may_be_source(f) or "." not in f.rpartition("/")[2])
        for file in (str(path), *islice(sources, MOST_FILES)):
            if file not in self._folders:
                self._files.setdefault(file, stamp_of(file))

    def _follow_folders(self) -> None:
        known = self._folders
        folders = list(_source_folders(self.root))
        self._folders = {f: known[f] if f in known else _look_into(f) for f in folders}

    def saved(self) -> set[str]:
        """Return the paths that were changed, created or deleted since `refresh`. Files to which
        standard output or standard error is redirected are left out. While the configuration is
        invalid, a file whose last change did not make the configuration valid is left out for
        `PATIENCE_S` seconds."""
        now = {path: stamp_of(path) for path in self._files}
        found = {path for path, known in self._files.items() if now[path] != known}
        found |= {path for (kind, path), seen in self._shown.items() if SHOWN[kind](path) != seen}
        moved: dict[str, tuple[Stamp | None, frozenset[str]]] = {}
        appeared = set()
        for folder, (stamp, names) in self._folders.items():
            if stamp_of(folder) == stamp:
                continue
            new_stamp, listing = _look_into(folder)
            moved[folder] = (new_stamp, names)
            appeared |= {
                f"{folder}/{name}"
                for name in names ^ listing
                if self.anything or name.endswith(_SOURCE_SUFFIXES)
            }
        if moved:
            for pattern, matches in self._globs.items():
                changed = set(glob_files(self.root, pattern)) ^ set(matches)
                appeared |= {str(self.root / path) for path in changed}
        if not appeared:  # then these folders need not be listed again
            self._folders.update({f: known for f, known in moved.items() if _is_past(known[0])})
        found |= appeared
        return {path.removeprefix(f"{self.root}/") for path in found}


def _observed(
    workspace: Workspace, tasks: Iterable[str]
) -> tuple[dict[str, Stamp | None], dict[tuple[str, str], object]]:
    """List observed inputs: files with their last known stamps, and paths that were looked up. A
    path that was looked up is listed together with the type of look-up, one of `SHOWN`."""
    names, lookup = workspace.snapshot.observed.names(tasks), workspace.inputs
    files = workspace.snapshot.files
    found: dict[str, Stamp | None] = {}
    for member in names.files:
        path, known = lookup.path(member), files.stamp(lookup.key(member))
        found[path] = stamp_of(path) if known is None else known
    found.update({lookup.path(member): None for member in names.missed})
    for package in names.packages:
        found.update({record: stamp_of(record) for record in lookup.records(package)})
    seen = [
        *(("links", member) for member in names.links),
        *(("listed", member) for member in names.listed),
        *(("looked", member) for member in names.looked - names.files),
    ]
    places = [(kind, lookup.path(member)) for kind, member in seen]
    places += [("looked", path) for path, _ in workspace.snapshot.basis.looks]
    return found, {(kind, path): SHOWN[kind](path) for kind, path in places}


def may_be_source(path: str) -> bool:
    """Tell whether a file may be a source or a configuration, by its name."""
    return path.endswith(_SOURCE_SUFFIXES)


def _may_be_input(name: str) -> bool:
    return name[0] not in ".#" and name not in _NEVER_SOURCES


def _look_into(folder: str) -> tuple[Stamp | None, frozenset[str]]:
    stamp = stamp_of(folder)
    try:
        names = frozenset(
            n
            for n in os.listdir(folder)  # noqa: PTH208 - for every folder
            if _may_be_input(n)
        )
    except OSError:
        names = frozenset()
    return stamp, names


def _is_past(stamp: Stamp | None) -> bool:
    """Tell whether a stamp is so old that any later change will give another stamp."""
    return stamp is None or max(stamp[:2]) < time.time_ns() - _TICKS_NS


def _source_folders(root: Path) -> Iterator[str]:
    left = MOST_FOLDERS
    for folder, names, _ in os.walk(root):
        yield folder
        left -= 1
        if left <= 0:
            return
        names[:] = [
            n
            for n in sorted(names)
            if n[0] != "." and n not in _NEVER_SOURCES and not _is_environment(f"{folder}/{n}")
        ]


def _is_environment(folder: str) -> bool:
    return os.path.exists(f"{folder}/pyvenv.cfg")  # noqa: PTH110 - for every folder


POLL_S = 0.1  # a look at a thousand files takes some milliseconds
SETTLED_S = 0.03  # an editor writes, syncs and renames within this
LONGEST_SETTLING_S = 0.25


def wait_for_save(files: FileWatch) -> set[str]:
    """Wait until watched files are saved and no longer change; return their paths."""
    while not (found := files.saved()):
        time.sleep(POLL_S)
    deadline = time.monotonic() + LONGEST_SETTLING_S
    state = _stamps(files.root, found)
    while time.monotonic() < deadline:
        time.sleep(SETTLED_S)
        found |= files.saved()
        last, state = state, _stamps(files.root, found)
        if last == state:
            break
    return found


def _stamps(root: Path, paths: Iterable[str]) -> dict[str, Stamp | None]:
    return {path: stamp_of(root / path) for path in paths}
