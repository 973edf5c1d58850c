"""What the last run left: its compiled graph, the stamps of all known files, and what is current.

A graph is compiled again only if the configuration or its surroundings changed: to compile 1,000
ops takes 1 s, to read the stored graph 0.1 s.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct, field, to_builtins

from gpuemu_flow import __version__
from gpuemu_flow.build import stamps
from gpuemu_flow.build.discovery import ObservedSets, StoredSets
from gpuemu_flow.build.files import FileTable
from gpuemu_flow.build.graph import Graph, Skip
from gpuemu_flow.build.stamps import Row
from gpuemu_flow.model.errors import Problem
from gpuemu_flow.model.types import Json
from gpuemu_flow.store.cache import (
    JsonStore,
    OtherFormatError,
    WorkspaceCache,
    damaged,
    mark_of,
    seal,
    unseal,
)
from gpuemu_flow.tasks.base import TaskSpec

FORMAT = 20
GRAPH, PROGRESS = "graph", "progress"


class Settings(Struct, frozen=True):
    """The part of the configuration that a run needs besides the graph."""

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


class KernelBasis(Struct, frozen=True):
    """Facts, besides the configuration, from which the tasks of kernels were compiled."""

    includes: Sequence[Sequence[Json]]
    given: Sequence[Sequence[Json]]
    tools: Sequence[str]
    configured: Mapping[str, str]
    tool_files: Sequence[Sequence[Json]]
    triton: str | None
    python: str


class Basis(Struct, frozen=True):
    """Facts from which a graph was compiled."""

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


class _Compiled(Struct, frozen=True):
    """A graph as it is stored."""

    tasks: Sequence[TaskSpec]
    groups: Mapping[str, tuple[str, ...]]
    skips: tuple[Skip, ...]


class _Made(Struct, frozen=True, kw_only=True):
    """Who stored a snapshot."""

    format: int = FORMAT
    tool: str = __version__


class _Progress(_Made, frozen=True, kw_only=True):
    """What is stored of a snapshot besides its graph and its stamps."""

    graph: str
    stamps: str
    settings: Settings
    basis: Basis
    stale: list[str]
    observed: StoredSets


class Snapshot(Struct):
    """A compiled workspace. `current` are the tasks that were current when the snapshot was taken;
    each still is if no file that it reads or writes has changed. `graph_mark` and `mark` are the
    checksums of the two stored parts; they are empty for what is not stored."""

    graph: Graph
    settings: Settings
    basis: Basis
    files: FileTable
    current: set[str] = field(default_factory=set)
    observed: ObservedSets = field(default_factory=ObservedSets)
    graph_mark: str = ""
    mark: str = ""


def save(store: JsonStore, snapshot: Snapshot) -> None:
    graph, content = snapshot.graph, b""
    if not snapshot.graph_mark or store.sql(_graph_mark) != snapshot.graph_mark:
        compiled = _Compiled(list(graph.tasks.values()), graph.groups, graph.skips)
        content = seal(to_builtins(compiled, enc_hook=str), GRAPH)
        snapshot.graph_mark = mark_of(content)
    rows = _file_rows(snapshot.files)
    progress = _Progress(
        graph=snapshot.graph_mark,
        stamps=stamps.checksum_of(rows),
        settings=snapshot.settings,
        basis=snapshot.basis,
        stale=[name for name in graph.tasks if name not in snapshot.current],
        observed=snapshot.observed.stored,
    )
    record = seal(to_builtins(progress, enc_hook=str), PROGRESS)
    snapshot.mark = mark_of(record)

    def write(connection: sqlite3.Connection) -> None:
        with _transaction(connection):
            connection.execute("DELETE FROM clean_run")
            connection.execute("DELETE FROM stamps")
            connection.executemany(stamps.INSERT, rows)
            if content:
                connection.execute(
                    "INSERT OR REPLACE INTO snapshot VALUES (?, ?)", (GRAPH, content)
                )
            connection.execute("INSERT OR REPLACE INTO snapshot VALUES (?, ?)", (PROGRESS, record))

    store.sql(write)


def _graph_mark(connection: sqlite3.Connection) -> str:
    """Return the checksum of the stored graph, which changes only under the run's lock."""
    connection.executescript(stamps.SCHEMA)
    found = "SELECT substr(content, 1, 64) FROM snapshot WHERE part = ?"
    record = connection.execute(found, (GRAPH,)).fetchone()
    return "" if record is None else mark_of(record[0])


def save_clean(
    store: JsonStore, snapshot: Snapshot, rows: Iterable[Row], summary: str, identity: str
) -> None:
    """Store that this run was clean, unless another one has stored its snapshot since. `rows` are
    what the results rest on besides the snapshot's files."""

    def write(connection: sqlite3.Connection) -> None:
        with _transaction(connection):
            known = connection.execute("SELECT content FROM snapshot WHERE part = ?", (PROGRESS,))
            record = known.fetchone()
            if record is None or mark_of(record[0]) != snapshot.mark:
                return
            connection.execute("DELETE FROM clean_run")
            connection.executemany(stamps.INSERT, rows)
            checksum = stamps.checksum_of(connection.execute(stamps.SELECT), summary, identity)
            connection.execute(
                "INSERT INTO clean_run VALUES (?, ?, ?)", (summary, identity, checksum)
            )

    with contextlib.suppress(UnicodeEncodeError):
        summary.encode()  # in the database, the error would count as damage
        store.sql(write)


def forget_clean(store: JsonStore) -> None:
    """Make the next ``run`` check everything itself."""

    def write(connection: sqlite3.Connection) -> None:
        with _transaction(connection):
            connection.execute("DELETE FROM clean_run")

    store.sql(write)


def load(cache: WorkspaceCache, root: Path) -> Snapshot | None:
    """Return the last snapshot; None if it is missing, damaged or of another version."""
    if not os.path.lexists(cache.folder / stamps.DATABASE):
        return None
    found = cache.state.sql(_read)
    if found is None:
        return None
    parts, rows = found
    collecting = gc.isenabled()
    gc.disable()  # many objects are made, but no garbage
    try:
        return _loaded(parts, rows, root)
    except OtherFormatError:
        return None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        cache.problems.append(
            damaged(f"stored graph: {error}; made again", cache.folder / stamps.DATABASE)
        )
        return None
    finally:
        if collecting:
            gc.enable()


def _read(connection: sqlite3.Connection) -> tuple[dict[str, bytes], list[Row]] | None:
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'clean_run'").fetchone():
        return None
    connection.execute("BEGIN")
    try:
        parts = dict(connection.execute("SELECT part, content FROM snapshot"))
        where = "WHERE kind = ? AND state != x'' ORDER BY kind, path"
        rows = connection.execute(f"SELECT * FROM stamps {where}", (stamps.FILE,)).fetchall()  # noqa: S608
    finally:
        if connection.in_transaction:
            connection.execute("COMMIT")
    return (parts, rows) if parts else None


def _loaded(parts: dict[str, bytes], rows: list[Row], root: Path) -> Snapshot | None:
    if unseal(parts[PROGRESS], PROGRESS, _Made) != _Made():
        return None
    known = unseal(parts[PROGRESS], PROGRESS, _Progress)
    if mark_of(parts[GRAPH]) != known.graph or stamps.checksum_of(rows) != known.stamps:
        raise ValueError("its parts do not belong together")
    stored = unseal(parts[GRAPH], GRAPH, _Compiled)
    graph = Graph({spec.name: spec for spec in stored.tasks}, stored.groups, stored.skips)
    entries = {
        os.fsdecode(path): ((mtime_ns, ctime_ns, size, inode), os.fsdecode(state))
        for _, path, mtime_ns, ctime_ns, size, inode, state in rows
    }
    return Snapshot(
        graph,
        known.settings,
        known.basis,
        FileTable(root, entries),
        set(graph.tasks).difference(known.stale),
        ObservedSets.of_stored(known.observed),
        known.graph,
        mark_of(parts[PROGRESS]),
    )


def _file_rows(files: FileTable) -> list[Row]:
    entries = files.entries.items()
    return sorted(
        stamps.row_of(stamps.FILE, path, stamp, digest) for path, (stamp, digest) in entries
    )


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.executescript(stamps.SCHEMA)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if connection.in_transaction:  # a full disk has ended it
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
