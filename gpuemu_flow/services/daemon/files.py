"""Files of a daemon: the user's private folder, a lock, an information file, a log."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

from msgspec import Struct

from gpuemu_flow.model.errors import Problem, UsageError
from gpuemu_flow.model.types import Json
from gpuemu_flow.store.private_files import write_atomic
from gpuemu_flow.wire import MAX_PATH_BYTES, fits, is_private, user_folders, workspace_stem

PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600


class DaemonFiles(Struct, frozen=True):
    """The files of one workspace's daemon."""

    folder: Path
    stem: str

    @property
    def socket(self) -> Path:
        return self.folder / f"{self.stem}.sock"

    @property
    def lock(self) -> Path:
        return self.folder / f"{self.stem}.lock"

    @property
    def info(self) -> Path:
        """Return the file by which clients find the daemon; see `wire.read_info`."""
        return self.folder / f"{self.stem}.json"

    @property
    def log(self) -> Path:
        return self.folder / f"{self.stem}.log"


def find_place(root: Path, environ: Mapping[str, str]) -> DaemonFiles | None:
    """Return the files of the workspace's daemon, or None if none was ever started."""
    for place in possible_places(root, environ):
        if is_private(place.folder) and place.lock.exists():
            return place
    return None


def possible_places(root: Path, environ: Mapping[str, str]) -> list[DaemonFiles]:
    """List the paths that the workspace's daemon may use, one entry per possible folder."""
    stem = workspace_stem(root)
    return [DaemonFiles(folder, stem) for folder in user_folders(environ)]


def make_place(root: Path, environ: Mapping[str, str]) -> DaemonFiles:
    """Return the files of a daemon to start, in a private folder. Raises UsageError: none is."""
    known = find_place(root, environ)
    if known is not None and os.access(known.folder, os.W_OK):
        return known
    stem = workspace_stem(root)
    reasons = []
    for folder in user_folders(environ):
        place = DaemonFiles(folder, stem)
        reason = _unusable(place)
        if not reason:
            return place
        reasons.append(f"{folder}: {reason}")
    raise UsageError(
        Problem(
            "daemon-no-folder",
            f"there is no folder for the daemon's socket ({'; '.join(reasons)})",
            "set XDG_RUNTIME_DIR to a short path that you can write to",
        )
    )


def _unusable(place: DaemonFiles) -> str:
    """Return the reason why a folder cannot be used; empty if it can."""
    if not fits(place.socket):
        return f"its path leaves no room for a socket's name ({MAX_PATH_BYTES} bytes)"
    return make_private(place.folder)


def make_private(folder: Path) -> str:
    """Make a folder that only the user can enter, or restrict it; return the error, or ''."""
    try:
        folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode):
            return "it is no folder"
        if status.st_uid != os.geteuid():
            return "it belongs to another user"
        if status.st_mode & 0o077:
            folder.chmod(PRIVATE_FOLDER)
    except OSError as error:
        return error.strerror or str(error)
    return "" if os.access(folder, os.W_OK) else os.strerror(errno.EACCES)


class FileLock:
    """A lock file held by this process; the kernel frees it when the process ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        os.close(self._descriptor)


def acquire(path: Path) -> FileLock | None:
    """Take a lock; return None if a living process holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, PRIVATE_FILE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return FileLock(descriptor)


def holder(path: Path) -> int | None:
    """Return the process id of a lock's holder; None when nobody holds it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(descriptor, 32, 0).strip()
        return int(text) if text.isdigit() else 0
    else:
        return None
    finally:
        os.close(descriptor)


def write_info(place: DaemonFiles, info: Mapping[str, Json]) -> None:
    """Write the file by which clients find the daemon."""
    write_atomic(place.info, json.dumps(dict(info)).encode() + b"\n")


def remove(*paths: Path) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()


# The state of a workspace's daemon, as ``daemon status`` and ``status`` show it.

_NOT_SHOWN = ("type", "workspace", "config")
"""Keys of a ping's answer that status commands leave out."""


class DaemonState(Struct, frozen=True):
    """The state of a daemon, as seen from another process."""

    pid: int | None = None
    socket: str = ""
    log: str = ""
    started: float = 0.0
    pong: Mapping[str, Json] | None = None
    full: bool = False

    @property
    def running(self) -> bool:
        """Tell whether the daemon runs, which means that a process holds its lock."""
        return self.pid is not None

    @property
    def answers(self) -> bool:
        return self.pong is not None

    @property
    def config_error(self) -> str:
        """Return the error of a configuration that the daemon could not load; empty if none."""
        return str((self.pong or {}).get("config_error", ""))

    def line(self, version: str) -> str:
        """Describe the daemon in one line that an editor extension reads."""
        if not self.running:
            # The extension searches this line for "running", so do not use that word here.
            start = "start one with `gpuemu-flow daemon start --background`"
            return f"gpuemu-flow{f' v{version}' * bool(version)} daemon stopped; {start}"
        if self.full:
            return (
                f"daemon (process {self.pid}) lives, but takes no more clients: "
                "end some, or raise [daemon] max_connections"
            )
        if self.pong is None:
            return f"daemon (process {self.pid}) does not answer; see its log: {self.log}"
        since = datetime.fromtimestamp(self.started, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
        version, uptime, requests = (
            self.pong[name] for name in ("version", "uptime_secs", "requests")
        )
        return (
            f"gpuemu-flow v{version} daemon running, uptime {uptime}s, since {since} UTC, "
            f"process {self.pid}, {requests} requests, socket {self.socket}"
        )

    def to_json(self) -> dict[str, Json]:
        """Return the JSON that ``daemon status`` and ``status`` print."""
        out: dict[str, Json] = {"running": self.running, "answers": self.answers}
        if self.full:
            out["full"] = True
        if self.running:
            out |= {"pid": self.pid, "socket": self.socket, "log": self.log}
            out["started"] = self.started
        told = (self.pong or {}).items()
        return out | {name: value for name, value in told if name not in _NOT_SHOWN}
