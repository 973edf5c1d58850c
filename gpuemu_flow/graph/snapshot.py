"""The snapshot of the last run: its compiled graph and the digests of all known files."""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, field
from pathlib import Path

import msgspec

from gpuemu_flow import __version__
from gpuemu_flow.config.target_options import Target
from gpuemu_flow.errors import Problem
from gpuemu_flow.graph import task_file
from gpuemu_flow.graph.graph import Graph
from gpuemu_flow.inputs.files import FileTable
from gpuemu_flow.inputs.observed_sets import ObservedSets
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.store.cache import OtherFormatError, mark_of, seal, unseal
from gpuemu_flow.store.private_files import PrivateFolder
from gpuemu_flow.tasks.base import TaskSpec
from gpuemu_flow.types import Json

FORMAT = 16
TASKS_SUFFIX = ".tasks"
_DIGITS = 32


@dataclass(frozen=True)
class Settings:
    """The part of the configuration that a run needs besides the graph.

    Attributes
    ----------
    jobs : int
        Number of tasks to run at a time; 0 for one per processor.
    cache_dir : str
        Configured cache folder; empty for the default.
    size_limit : int
        Maximum total size of the cache's blobs, in bytes; 0 for no limit.
    fail_on_regression : bool
    fuzz_iterations : mapping of str to int
        Number of fuzz cases of each op.
    cause_budget : int
    samplings : mapping of str to mapping
        For each mode of ``[ci]``, its number of cases, its shapes and its seed.
    warn_threshold : float
    drawn_seed : int or None
        The master seed that was drawn for this graph; None if the seed is fixed.
    sandbox : str
        Mode of the sandbox.
    warnings : tuple of Problem
        Warnings of the configuration.
    remote, remote_mode : str
        URL of the cache that several machines share, and ``read`` or ``write``.
    targets : mapping of str to Target
        All targets if at least one has options; else empty.
    """

    jobs: int
    cache_dir: str
    size_limit: int
    fail_on_regression: bool
    fuzz_iterations: Mapping[str, int]
    cause_budget: int
    samplings: Mapping[str, Json]
    warn_threshold: float
    drawn_seed: int | None
    sandbox: str = "auto"
    warnings: tuple[Problem, ...] = ()
    remote: str = ""
    remote_mode: str = "read"
    targets: Mapping[str, Target] = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        """Return plain JSON; `from_json` is its inverse."""
        return {
            **vars(self),
            "warnings": [asdict(problem) for problem in self.warnings],
            "targets": msgspec.to_builtins(self.targets),
        }

    @classmethod
    def from_json(cls, data: Json) -> Settings:
        """Rebuild from `to_json`'s result, or raise KeyError, TypeError or ValueError."""
        warnings = tuple(Problem(**problem) for problem in data["warnings"])
        targets = msgspec.convert(data["targets"], dict[str, Target])
        return cls(**{**data, "warnings": warnings, "targets": targets})


@dataclass(frozen=True)
class KernelBasis:
    """Facts, besides the configuration, from which the tasks of kernels were compiled.

    Attributes
    ----------
    includes : list of (start, flags, found)
        `start` and `flags` are arguments of `inputs.includes.find_includes`; `found` is its result
        as JSON.
    given : list of (path, bool)
        Files that the configuration names as artifacts, and whether each existed.
    tools : list of str
    configured : mapping of str to str
        Configured paths of tools.
    tool_files : list of (path, stamp)
        Every path where a tool is looked for.
    triton : str or None
        Version of Triton; None if no kernel is written in Triton.
    python : str
    """

    includes: Sequence[Sequence[Json]]
    given: Sequence[Sequence[Json]]
    tools: Sequence[str]
    configured: Mapping[str, str]
    tool_files: Sequence[Sequence[Json]]
    triton: str | None
    python: str


@dataclass(frozen=True)
class Basis:
    """Facts from which a graph was compiled.

    Attributes
    ----------
    overrides : mapping
        Overrides of the command line and of the ``[ci]`` mode.
    own_code : str
        Digest of our own code.
    links : list of (path, target)
        Links that lead to programs.
    environment : mapping of str to str
    variables : str
        Text of the facts about the process, its environment and the folder; see `plan.identity`.
    sandbox : str
        Level of isolation of ops.
    config : list of (path, digest)
        Files of the configuration.
    globs : list of (pattern, matches)
        The globs of ``depends``.
    looks : list of (path, look)
        Paths whose existence matters to the configuration. `look` is the kind and mode of what is
        at the path, as `plan.look_of` returns them.
    kernels : KernelBasis or None
    imports : dict of path to (content, imports)
        Two digests for each script: of its content, and of the list of its imports.
    absent : list of str
        Paths at which imported modules were looked for and do not exist.
    """

    overrides: Mapping[str, Json]
    own_code: str
    links: Sequence[tuple[str, str]]
    environment: Mapping[str, str]
    variables: str
    sandbox: str
    config: Sequence[Sequence[str]]
    globs: Sequence[tuple[str, list[str]]]
    looks: Sequence[tuple[str, str]]
    kernels: KernelBasis | None
    imports: dict[str, list[str]]
    absent: Sequence[str]

    def to_json(self) -> dict[str, Json]:
        """Return plain JSON; `from_json` is its inverse."""
        texts: dict[str, int] = {}  # most scripts have the same imports
        imports = [
            [path, content, texts.setdefault(imports, len(texts))]
            for path, (content, imports) in self.imports.items()
        ]
        kernels = None if self.kernels is None else vars(self.kernels)
        columns = list(map(list, zip(*imports, strict=True)))
        return {**vars(self), "kernels": kernels, "imports": [list(texts), *columns]}

    @classmethod
    def from_json(cls, data: Json) -> Basis:
        """Rebuild from `to_json`'s result, or raise KeyError or TypeError."""
        kernels = None if data["kernels"] is None else KernelBasis(**data["kernels"])
        texts, *columns = data["imports"]
        imports = {path: [content, texts[n]] for path, content, n in zip(*columns, strict=True)}
        return cls(**{**data, "kernels": kernels, "imports": imports})


@dataclass
class Snapshot:
    """A compiled workspace.

    Attributes
    ----------
    graph : Graph
    settings : Settings
    basis : Basis
    files : FileTable
    current : set of str
        Tasks that were current when the snapshot was taken. Each is still current if no file that
        it reads or writes has changed.
    observed : ObservedSets
        Inputs that the tasks' programs were seen to use.
    graph_digest : str
        Digest of the stored graph; empty until the graph is stored.
    mark : str
        Checksum of the file from which the snapshot was read; empty if it was compiled.
    base : str
        The `mark` of the outdated snapshot that this one was compiled to replace. Empty if there
        was none, and in every snapshot that a run stores.
    """

    graph: Graph
    settings: Settings
    basis: Basis
    files: FileTable
    current: set[str] = field(default_factory=set)
    observed: ObservedSets = field(default_factory=ObservedSets)
    graph_digest: str = ""
    mark: str = ""
    base: str = ""


def save(path: Path, snapshot: Snapshot) -> None:
    """Write a snapshot atomically: whole or not at all.

    The graph has a separate file, which is written only if the graph changed. The graph is written
    before the snapshot, and old graphs are removed last. Therefore, a snapshot always refers to an
    existing graph, even if this process dies. A reader that finds no graph, or a graph with another
    digest, compiles again.
    """
    with _without_collecting():
        _save(path, snapshot)


def _save(path: Path, snapshot: Snapshot) -> None:
    folder = PrivateFolder(path.parent)
    digest = snapshot.graph_digest
    if not digest or not tasks_path(path, digest).exists():
        content = task_file.render(snapshot.graph)
        digest = snapshot.graph_digest = task_file.digest_of(content)
        folder.write(tasks_path(path, digest), content)
    names = snapshot.graph.tasks
    root = {
        "format": FORMAT,
        "tool": __version__,
        "tasks": digest,
        "settings": snapshot.settings.to_json(),
        "basis": snapshot.basis.to_json(),
        "files": snapshot.files.to_json(),
        "stale": [name for name in names if name not in snapshot.current],
        "observed": snapshot.observed.to_json(),
        "base": snapshot.base,
    }
    folder.write(path, seal(root))
    for old in folder.list_files(path.parent, TASKS_SUFFIX):
        if old != tasks_path(path, digest) and old.name.startswith(f"{path.stem}-"):
            folder.remove(old)


def remove(path: Path) -> None:
    """Delete a snapshot with its graph, if there is one."""
    if os.path.lexists(path):
        folder = PrivateFolder(path.parent)
        folder.remove(path)
        for tasks in folder.list_files(path.parent, TASKS_SUFFIX):
            if tasks.name.startswith(f"{path.stem}-"):
                folder.remove(tasks)


def tasks_path(path: Path, digest: str) -> Path:
    """Return the path of the file that contains the graph of the snapshot at `path`."""
    return path.with_name(f"{path.stem}-{digest[:_DIGITS]}{TASKS_SUFFIX}")


def load(
    path: Path,
    root: Path,
    set_aside: Callable[[Path, str], None] = lambda *_: None,
    recompile: Callable[[Path, str], Mapping[str, TaskSpec]] | None = None,
) -> Snapshot | None:
    """Return a snapshot, or None if it is missing, damaged or of another version.

    Parameters
    ----------
    path, root : Path
    set_aside : callable
        Called with the path of a damaged file and the reason.
    recompile : callable, optional
        Called with the path of the graph's file and the reason when a requested task turns out to
        be damaged; returns all tasks. Without it, all tasks are checked while loading.
    """
    with _without_collecting():
        return _load(path, root, set_aside, recompile)


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Inside the context, disable garbage collection: many objects are made, but no garbage."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _load(
    path: Path,
    root: Path,
    set_aside: Callable[[Path, str], None],
    recompile: Callable[[Path, str], Mapping[str, TaskSpec]] | None,
) -> Snapshot | None:
    folder, read = PrivateFolder(path.parent), path
    try:
        record = folder.read(path)
        content = unseal(record)
        if content["format"] != FORMAT or content["tool"] != __version__:
            return None
        digest = str(content["tasks"])
        read = tasks_path(path, digest)
        repair = task_file.refuse if recompile is None else functools.partial(recompile, read)
        graph = task_file.parse(folder.open(read, os.O_RDONLY), digest, repair)
        if recompile is None:
            task_file.check(graph)
        read = path
        return Snapshot(
            graph,
            Settings.from_json(content["settings"]),
            Basis.from_json(content["basis"]),
            FileTable.from_json(root, content["files"]),
            set(graph.tasks).difference(content["stale"]),
            ObservedSets.from_json(content["observed"]),
            digest,
            mark_of(record),
            str(content["base"]),
        )
    except (OSError, OtherFormatError):
        return None
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        set_aside(read, f"damaged graph: {error}")
        return None
