"""The table of all that the last run's results rest on, and the check that nothing of it changed.

The entry point loads this before anything heavy. In any doubt, it says nothing, and the command
does its full work.
"""

import os
import sqlite3
import stat

from gpuemu_flow.build.plan import CACHE_NAME, digest_of, identity, look_of, variable_digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DATABASE = "state/cache.db"
"""The database of the tasks' records, which these tables share; its path in the cache folder."""

SCHEMA = """
-- One row for each thing that the results of the last run rest on.
CREATE TABLE IF NOT EXISTS stamps (
    kind     TEXT NOT NULL,     -- file, folder, absent, link, look or variable
    path     BLOB NOT NULL,     -- relative to the workspace, or absolute; the name of a variable
    mtime_ns INTEGER NOT NULL,  -- these four: of files and folders, else 0; a file whose four are
    ctime_ns INTEGER NOT NULL,  -- unchanged is not read again. ctime cannot be set back, so that a
    size     INTEGER NOT NULL,  -- restored mtime is noticed.
    inode    INTEGER NOT NULL,
    state    BLOB NOT NULL,     -- a file's sha256 (empty: its stamp is enough), a link's target,
                                -- what a program sees at a path, the digest of a variable's value
    PRIMARY KEY (kind, path)
) WITHOUT ROWID;
-- The compiled graph, and the progress of its tasks: JSON with a checksum.
CREATE TABLE IF NOT EXISTS snapshot (
    part    TEXT PRIMARY KEY,   -- graph or progress
    content BLOB NOT NULL
);
-- One row if the last run checked everything and all passed: what to say until a stamp changes.
CREATE TABLE IF NOT EXISTS clean_run (
    summary  TEXT NOT NULL,
    identity TEXT NOT NULL,     -- the interpreter, the environment and the workspace's folder
    checksum TEXT NOT NULL      -- of these two and of all stamps: a damaged page may lack a row
);
"""
FILE, FOLDER, ABSENT, LINK, LOOK, VARIABLE = "file", "folder", "absent", "link", "look", "variable"
INSERT = "INSERT OR IGNORE INTO stamps VALUES (?, ?, ?, ?, ?, ?, ?)"
SELECT = "SELECT * FROM stamps ORDER BY kind, path"

Stamp = tuple[int, int, int, int]
Row = tuple[str, bytes, int, int, int, int, bytes]


def row_of(kind: str, path: str, stamp: Stamp = (0, 0, 0, 0), state: str = "") -> Row:
    """Return the row of one thing."""
    return (kind, os.fsencode(path), *stamp, os.fsencode(state))


def checksum_of(rows: "Iterable[Row]", *texts: str) -> str:
    """Return a digest of rows in the table's order, and of texts."""
    return digest_of(repr((list(rows), texts)).encode("utf-8", "surrogateescape"))


def clean_summary(root: str, environ: "Mapping[str, str]") -> str | None:
    """Return the summary of the last run if it was clean and nothing changed since; else None."""
    folder = f"{root}/{CACHE_NAME}"
    database = f"{folder}/{DATABASE}"
    try:
        if not _are_own(folder, os.path.dirname(database)) or not stat.S_ISREG(  # noqa: PTH120
            os.lstat(database).st_mode
        ):
            return None  # a link to the cache is looked at by the full program
        connection = sqlite3.connect(database, timeout=0, isolation_level=None)
        try:
            connection.execute("PRAGMA query_only = 1")
            connection.execute("BEGIN")
            summary, known, checksum = connection.execute("SELECT * FROM clean_run").fetchone()
            if known != identity(environ, os.path.realpath(folder)):
                return None
            rows = connection.execute(SELECT).fetchall()
        finally:
            connection.close()
        if checksum_of(rows, summary, known) != checksum:
            return None
        environ = dict(environ)  # decoded once
        return summary if all(_holds(row, f"{root}/", environ) for row in rows) else None
    except (sqlite3.Error, OSError, ValueError, TypeError):
        return None


def _are_own(*folders: str) -> bool:
    return all(stat.S_ISDIR(os.lstat(folder).st_mode) for folder in folders)


def _holds(row: Row, start: str, environ: "Mapping[str, str]") -> bool:
    """Tell whether the thing that a row describes is as it was; an OSError counts as no."""
    kind, name, mtime_ns, ctime_ns, size, inode, state = row
    path = os.fsdecode(name)
    if kind == VARIABLE:
        return variable_digest(environ, path) == os.fsdecode(state)
    if path[:1] != "/":
        path = start + path
    if kind in (FILE, FOLDER):
        s = os.stat(path)  # noqa: PTH116 - thousands of times
        same = s.st_mtime_ns == mtime_ns and s.st_ctime_ns == ctime_ns
        return same and s.st_size == size and s.st_ino == inode
    if kind == ABSENT:
        return not os.path.lexists(path)
    if kind == LINK:
        return os.fsencode(os.readlink(path)) == state  # noqa: PTH115
    return kind == LOOK and look_of(path) == os.fsdecode(state)
