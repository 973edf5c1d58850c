"""Find the sockets of daemons: the default one, and one for each workspace and user."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from gpuemu_flow.model.types import Json

CONFIG_NAME = "gpuemu.toml"
DEFAULT_FOLDER, DEFAULT_NAME = ".gpuemu", "gpuemu.sock"
MAX_PATH_BYTES = 103 if os.uname().sysname == "Darwin" else 107  # sun_path without its final NUL


def find_config(start: Path, environ: Mapping[str, str]) -> Path | None:
    """Return the configuration of the workspace that contains `start`, or None if there is none.

    The folder of the returned path is the workspace; links in the folder's path are resolved.
    """
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
    """Return the content of the information file of a workspace's daemon.

    The file remains if a daemon is killed, so only a request to the daemon shows whether it still
    runs.
    """
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
