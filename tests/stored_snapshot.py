"""What the last run left in the database of a workspace's cache: lost, put back, or damaged."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

from mini_workspace import Mini

from gpuemu_flow.build import snapshot
from gpuemu_flow.build.snapshot import Snapshot
from gpuemu_flow.build.stamps import DATABASE, clean_summary
from gpuemu_flow.model.types import Json
from gpuemu_flow.store.cache import WorkspaceCache, seal, unseal

TABLES = ("snapshot", "stamps", "clean_run")

Tables = dict[str, list[tuple[Any, ...]]]


@contextlib.contextmanager
def database(mini: Mini) -> Iterator[sqlite3.Connection]:
    """Open the database, and commit at the end."""
    connection = sqlite3.connect(mini.root / ".gpuemu-cache" / DATABASE)
    with contextlib.closing(connection), connection:
        yield connection


def tables(mini: Mini) -> Tables:
    with database(mini) as connection:
        return {t: connection.execute(f"SELECT * FROM {t}").fetchall() for t in TABLES}


def put_back(mini: Mini, content: Tables) -> None:
    with database(mini) as connection:
        for table in TABLES:
            connection.execute(f"DELETE FROM {table}")
            for row in content.get(table, []):
                marks = ", ".join("?" * len(row))
                connection.execute(f"INSERT INTO {table} VALUES ({marks})", row)


def lose(mini: Mini) -> None:
    """Delete the snapshot, but none of the results."""
    put_back(mini, {})


def flip(mini: Mini, part: str) -> None:
    """Change a bit in the middle of a part."""
    with database(mini) as connection:
        (content,) = connection.execute(
            "SELECT content FROM snapshot WHERE part = ?", (part,)
        ).fetchone()
        damaged = bytearray(content)
        damaged[len(damaged) // 2] ^= 1
        connection.execute("UPDATE snapshot SET content = ? WHERE part = ?", (bytes(damaged), part))


def rewrite(mini: Mini, part: str, change: Callable[[Any], Json]) -> None:
    """Change the content of a part, with the right checksum."""
    with database(mini) as connection:
        (content,) = connection.execute(
            "SELECT content FROM snapshot WHERE part = ?", (part,)
        ).fetchone()
        new = seal(change(unseal(content, part)), part)
        connection.execute("UPDATE snapshot SET content = ? WHERE part = ?", (new, part))


def loaded(mini: Mini) -> Snapshot | None:
    """Return the stored snapshot, as a command reads it."""
    cache = WorkspaceCache(mini.root / ".gpuemu-cache")
    with contextlib.closing(cache):
        return snapshot.load(cache, mini.root)


def rows(mini: Mini, begin: str) -> dict[str, Any]:
    """Return the rows whose keys begin so."""
    if not (mini.root / ".gpuemu-cache" / DATABASE).exists():
        return {}
    with database(mini) as connection:
        found = connection.execute(f"SELECT key, value FROM Cache WHERE key LIKE '{begin}%'")
        return {key[len(begin) :]: unseal(value, key) for key, value in sorted(found)}


def results(mini: Mini) -> dict[str, Any]:
    """Return the stored result of each task, but of those that say what was before."""
    found = rows(mini, "result:")
    return {task: result for task, result in found.items() if not task.startswith("diff:")}


def history(mini: Mini) -> list[Any]:
    """Return the rows of all runs, oldest first."""
    return list(rows(mini, "run:").values())


def damage(mini: Mini, task: str, change: Callable[[bytes], bytes]) -> None:
    """Change the bytes of a task's stored result."""
    with database(mini) as connection:
        row = "WHERE key = ?", (f"result:{task}",)
        (content,) = connection.execute(f"SELECT value FROM Cache {row[0]}", row[1]).fetchone()
        connection.execute(f"UPDATE Cache SET value = ? {row[0]}", (change(content), *row[1]))


def is_clean(mini: Mini) -> bool:
    """Tell whether a plain run would say at once that nothing changed."""
    return clean_summary(str(mini.root), mini.environment()) is not None
