"""The table of all that the last run's results rest on, and the check that nothing of it changed.

The entry point loads this before anything heavy. In any doubt, it says nothing, and the command
does its full work.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import sys

from gpuemu_flow import __version__
from gpuemu_flow.model.let_through import is_general

TYPE_CHECKING = False  # importing it from typing would cost every run
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


# Facts about the process, its variables and paths, compared with those of an earlier run.


CONFIG_NAME = "gpuemu.toml"
CACHE_NAME = ".gpuemu-cache"
_VARIABLES = (
    "GPUEMU_ALLOW_OUTSIDE", "GPUEMU_CONFIG", "HOME", "NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS",
    "XDG_CONFIG_HOME",
)  # fmt: skip

ALL_VARIABLES = "*"
ALL_NAMED = "**"
"""Ending of a pattern that stands for all names with its beginning, used for names that the
configuration lets through."""
VOLATILE = frozenset({
    "_", "COLUMNS", "GPUEMU_KWARGS", "LINES", "OLDPWD", "PWD", "PYTEST_CURRENT_TEST", "SHLVL",
    "TERM", "TERM_SESSION_ID", "WINDOWID",
})  # fmt: skip
"""Variables that differ from one terminal or process to the next."""
_SESSION = frozenset({
    "COLORTERM", "DBUS_SESSION_BUS_ADDRESS", "DBUS_STARTER_ADDRESS", "DESKTOP_STARTUP_ID",
    "DISPLAY", "GNOME_TERMINAL_SCREEN", "GNOME_TERMINAL_SERVICE", "GPG_AGENT_INFO", "GPG_TTY",
    "HISTFILE", "HISTSIZE", "INVOCATION_ID", "JOURNAL_STREAM", "LS_COLORS", "MAIL",
    "MANAGERPID", "MOTD_SHOWN", "PROMPT_COMMAND", "PS1", "PS2", "SESSION_MANAGER", "STY",
    "SYSTEMD_EXEC_PID", "TERMCAP", "TMPDIR", "TERM_PROGRAM", "TERM_PROGRAM_VERSION", "VTE_VERSION",
    "WAYLAND_DISPLAY", "WINDOW", "XAUTHORITY", "XDG_RUNTIME_DIR", "XDG_SEAT", "XDG_VTNR",
})  # fmt: skip
_SESSION_PREFIXES = (
    "ALACRITTY_", "GIO_LAUNCHED_", "GIT_ASKPASS", "ITERM_", "KITTY_", "KONSOLE_", "SSH_", "TMUX",
    "VSCODE_", "WEZTERM_", "XDG_SESSION_", "ZELLIJ",
)  # fmt: skip
UNSET = "unset"
WORKER_DEFAULTS = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
}
"""Defaults of variables that the environment leaves unset; the same as in `workers.process`."""
_BITS = 16


def is_of_a_session(name: str) -> bool:
    """Tell whether a variable belongs to a session, not to the environment as a whole. Terminals,
    editors and logins set such variables, to other values in each session. Every program inherits
    them, but hardly any reads them. Therefore, a program depends on such a variable only if the
    configuration names it. Every program has a temporary folder of its own."""
    return name in VOLATILE or name in _SESSION or name.startswith(_SESSION_PREFIXES)


def variable_digest(environ: Mapping[str, str], name: str) -> str:
    """Return a digest of the value of one variable, or of all variables that a pattern names. A
    pattern is the beginning of a name, followed by one or two stars. ``OMP_*`` names those
    variables with this beginning that every program receives. ``OMP_**``, used for patterns of the
    configuration, names all variables with this beginning. A pattern of stars alone leaves out the
    variables for which `is_of_a_session` is true. The result is `UNSET` if a variable is not set,
    or if no variable has a pattern's beginning. The value itself, which may be a secret, is never
    stored."""
    begin, star, _ = name.partition(ALL_VARIABLES)
    if star:
        named = name.endswith(ALL_NAMED)
        merged = {**WORKER_DEFAULTS, **environ}
        found = sorted(
            (n, v)
            for n, v in merged.items()
            if n.startswith(begin)
            and (begin or not is_of_a_session(n))
            and (named or is_general(n))
        )
        if begin and not found:
            return UNSET
        value = repr(found)
    else:
        given = environ.get(name, WORKER_DEFAULTS.get(name))
        if given is None:
            return UNSET
        value = given
    return digest_of(value.encode("utf-8", "surrogateescape"))


def digest_of(data: bytes) -> str:
    try:
        from _blake2 import blake2b  # noqa: PLC0415 - hashlib costs the front a millisecond
    except ImportError:
        from hashlib import blake2b  # noqa: PLC0415
    return blake2b(data, digest_size=_BITS).hexdigest()


def look_of(path: str) -> str:
    """Return the kind and mode that a program sees at a path; empty where there is nothing. A
    symbolic link has the kind and mode of its target, and the mark ``@``."""
    try:
        s, link = os.lstat(path), ""
        if s.st_mode & 0o170000 == 0o120000:
            s, link = os.stat(path), "@"  # noqa: PTH116
    except (OSError, ValueError):
        return ""
    return f"{s.st_mode:o}{link}"


def identity(environ: Mapping[str, str], folder: str) -> str:
    """Return the facts about the process on which a run's results depend, as one text. `folder` is
    the real path of the cache. A copy of a workspace contains the original's database, which names
    the original's files: its folder differs, so that nothing in it counts."""
    values = [__version__, sys.version, sys.executable, folder]
    values += [environ.get(name, "") for name in _VARIABLES]
    return ascii(values)  # a database takes no lone surrogate


def find_workspace(start: str) -> str | None:
    """Return the nearest folder from `start` upward that holds a configuration."""
    folder = start
    while True:
        if os.path.isfile(os.path.join(folder, CONFIG_NAME)):  # noqa: PTH113, PTH118
            return folder
        parent = os.path.dirname(folder)  # noqa: PTH120
        if parent == folder:
            return None
        folder = parent


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
    return (kind, os.fsencode(path), *stamp, os.fsencode(state))


def checksum_of(rows: Iterable[Row], *texts: str) -> str:
    return digest_of(repr((list(rows), texts)).encode("utf-8", "surrogateescape"))


def clean_summary(root: str, environ: Mapping[str, str]) -> str | None:
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


def _holds(row: Row, start: str, environ: Mapping[str, str]) -> bool:
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
