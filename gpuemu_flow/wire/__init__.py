"""Wire protocol v1, shared by daemon and clients: envelope, tensors and the socket's path."""

from __future__ import annotations

import hashlib
import json
import os
import select
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import gpuemu_flow
from gpuemu_flow.model.errors import FlowError, Problem
from gpuemu_flow.model.types import Json

PROTOCOL_VERSION = 1
MAX_MESSAGE_BYTES = 512 << 20
"""Maximum size of a message in bytes. Clients refuse larger messages with an error, and the
daemon's transport refuses them unread."""


CONFIG_NAME = "gpuemu.toml"
DEFAULT_FOLDER, DEFAULT_NAME = ".gpuemu", "gpuemu.sock"
MAX_PATH_BYTES = 103 if os.uname().sysname == "Darwin" else 107  # sun_path without its final NUL


def find_config(start: Path, environ: Mapping[str, str]) -> Path | None:
    """Return the configuration of the workspace that contains `start`, or None if there is none.
    The folder of the returned path is the workspace; links in the folder's path are resolved."""
    named = environ.get("GPUEMU_CONFIG", "")
    if named:
        path = start / named
        return path.parent.resolve() / path.name if path.exists() else None
    folder = start.absolute()
    for place in (folder, *folder.parents):
        if (place / CONFIG_NAME).is_file():
            return place.resolve() / CONFIG_NAME
    return None


def home(environ: Mapping[str, str]) -> Path:
    """Return the user's home folder, as the published client finds it."""
    return Path(environ.get("HOME") or Path.home())


def default_socket(environ: Mapping[str, str]) -> Path:
    """Return the socket that the published client uses unless it is configured otherwise."""
    return home(environ) / DEFAULT_FOLDER / DEFAULT_NAME


def user_folders(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the folders that may hold the user's sockets, the preferred one first."""
    folders = [home(environ) / DEFAULT_FOLDER]
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if runtime:
        folders.append(Path(runtime) / "gpuemu-flow")
    folders.append(Path(tempfile.gettempdir()) / f"gpuemu-flow-{os.getuid()}")
    return tuple(folders)


def workspace_stem(root: Path) -> str:
    """Return the file name, without suffix, of a workspace's socket, lock and information file."""
    return f"w-{hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:16]}"


def fits(path: Path) -> bool:
    """Tell whether a path is short enough for a socket."""
    return len(os.fsencode(path)) <= MAX_PATH_BYTES


def is_private(folder: Path) -> bool:
    """Tell whether a folder belongs to this user, is closed to everyone else, and is not a link."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    return (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid == os.geteuid()
        and not status.st_mode & 0o077
    )


def read_info(root: Path, environ: Mapping[str, str]) -> dict[str, Json] | None:
    """Return the content of the information file of a workspace's daemon. The file remains if a
    daemon is killed, so only a request to the daemon shows whether it still runs."""
    for folder in user_folders(environ):
        if not is_private(folder):
            continue
        try:
            info = json.loads((folder / f"{workspace_stem(root)}.json").read_bytes())
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(info, dict) and isinstance(info.get("socket"), str):
            return info
    return None


class WireError(Exception):
    """Error of a message that violates protocol v1; its text is sent to the other side."""


def parse(data: bytes | bytearray) -> dict[str, Json]:
    try:
        value = json.loads(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise WireError("the message is not UTF-8") from None
    except RecursionError:
        raise WireError("the message is nested too deeply") from None
    except ValueError as error:
        raise WireError(f"the message is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise WireError(f"the message is a JSON {type(value).__name__}, not an object")
    if b"\\u" in data:
        _refuse_half_characters(value)
    return value


def _refuse_half_characters(value: Json) -> None:
    """Raise WireError for half of a surrogate pair, which cannot be stored or printed."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise WireError("the message holds text that is no Unicode") from None


def _no_json(value: object) -> Json:
    raise TypeError(f"a {type(value).__name__} cannot be written")


def render(message: Mapping[str, Any], as_json: Callable[[object], Any] = _no_json) -> bytes:
    """Return a message as JSON text; `as_json` converts values that JSON does not have. Raises
    TypeError: A value cannot be converted. Raises ValueError: A value is NaN or infinite."""
    return json.dumps(message, default=as_json, separators=(",", ":"), allow_nan=False).encode()


START_SECONDS = 60.0
ENDING_SECONDS = 2.0
"""Longest time in seconds that a daemon may take to end after it has closed its pipe."""
_started: list[subprocess.Popen[bytes]] = []  # a dropped handle would warn that its process lives


class DaemonNotStartedError(FlowError):
    """Raised if a daemon reports why it cannot start, or does not answer in time."""

    def __init__(self, *problems: Problem, exit_code: int = 3) -> None:
        super().__init__(*problems)
        self.exit_code = exit_code


def start_daemon(
    root: Path,
    environ: Mapping[str, str],
    *,
    idle_seconds: float = 0.0,
    seconds: float = START_SECONDS,
) -> dict[str, Json]:
    """Start a daemon for a workspace and wait until clients can connect. Raises
    DaemonNotStartedError: The error contains the problems that the daemon reports, or
    ``daemon-not-started``."""
    reading, writing = os.pipe()
    try:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "gpuemu_flow.services.daemon", "--root", str(root),
                "--ready-fd", str(writing), "--idle-seconds", str(idle_seconds),
            ],
            pass_fds=[writing],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Start in the package's root, so that -m finds this package and no workspace module.
            cwd=Path(gpuemu_flow.__file__).resolve().parent.parent,
            env=dict(environ),
            start_new_session=True,
        )  # fmt: skip
    finally:
        os.close(writing)
    try:
        message = _read(reading, time.monotonic() + seconds)
    finally:
        os.close(reading)
    if message is None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(ENDING_SECONDS)
        code = process.poll()
        why = f"it ended with code {code}" if code is not None else "it did not answer in time"
        if code is None:
            process.kill()
            process.wait()
        raise DaemonNotStartedError(
            Problem("daemon-not-started", f"the daemon for {root} did not start: {why}",
                    "run `gpuemu-flow daemon start` to see why")
        )  # fmt: skip
    if "problems" not in message:
        _started.append(process)
        return message
    process.wait(seconds)
    if message["exit_code"] == 0:
        return {}
    raise DaemonNotStartedError(
        *(Problem(**problem) for problem in message["problems"]), exit_code=message["exit_code"]
    )


def _read(descriptor: int, deadline: float) -> dict[str, Json] | None:
    """Read one line of JSON from the daemon; None if the stream ends first or time runs out."""
    data = b""
    while not data.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([descriptor], [], [], left)[0]:
            return None
        piece = os.read(descriptor, 65536)
        if not piece:
            return None
        data += piece
    message = json.loads(data)
    return message if isinstance(message, dict) else None
