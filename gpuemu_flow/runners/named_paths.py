"""Make the paths that a program names absolute, without resolving the user's links."""

from __future__ import annotations

import os
import re
from typing import Any

from gpuemu_flow.runners.plain_paths import readlink

SYSTEM = ("/dev/", "/proc/", "/sys/")
_SHARED_MEMORY = "/dev/shm/"  # noqa: S108 - files as any other
_PROCESS = re.compile(
    r"/proc/(?:self|thread-self|\d+)(?:/task/\d+)?/(?:cwd|root|exe|fd/\d+)(?=/|\Z)"
    r"|/dev/fd/\d+(?=/|\Z)|/dev/std(?:in|out|err)\Z"
)
_ENVIRONMENT = re.compile(r"/proc/[^/]+/(?:task/\d+/)?environ")
_FILE_PATH = 50  # F_GETPATH of macOS


def is_system(path: str) -> bool:
    """Tell whether a path is a device, or is below ``/proc`` or ``/sys``."""
    return path.startswith(SYSTEM) and not path.startswith(_SHARED_MEMORY)


def is_environment(path: str) -> bool:
    """Tell whether a path is the file that holds a process's environment variables."""
    return path.startswith("/proc/") and _ENVIRONMENT.fullmatch(path) is not None


def absolute(path: Any, folder: int | None = None) -> str:
    """Make a path absolute without resolving links; keep ``..``, since it may follow a link.

    Parameters
    ----------
    path : str, bytes or path-like
    folder : int, optional
        Descriptor of the folder that a relative path starts from.
    """
    text = os.fsdecode(path)
    if not text.startswith("/"):
        start = None if folder is None or folder < 0 else path_of(folder)
        text = (start or os.getcwd()) + "/" + text  # noqa: PTH109
    if "//" in text or "/." in text:
        text = tidied(text)
    return behind_process(text) if text.startswith(("/proc/", "/dev/")) else text


def tidied(text: str) -> str:
    """Remove empty parts and single dots from a path."""
    parts = [part for part in text.split("/") if part not in ("", ".")]
    return "/" + "/".join(parts) if ".." in parts else os.path.normpath(text)


def behind_process(text: str) -> str:
    """Follow the kernel's own links, such as ``/proc/self/cwd``, at the beginning of a path."""
    match = _PROCESS.match(text)
    if match is None:
        return text
    try:
        target = readlink(match[0])
    except OSError:
        return text
    return target.rstrip("/") + text[match.end() :] if target.startswith("/") else text


def path_of(descriptor: int) -> str | None:
    """Return the path of an open folder; None if the system does not tell."""
    try:
        return readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        pass
    try:
        import fcntl  # noqa: PLC0415 - only where there is no /proc

        found = fcntl.fcntl(descriptor, _FILE_PATH, bytes(1024))
    except (OSError, ImportError):
        return None
    return os.fsdecode(found.partition(b"\0")[0])
