"""Find the project's configuration file without importing the modules that read it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpuemu_flow.model.errors import Problem, UsageError

FILE_NAME = "gpuemu.toml"


def exists(path: Path) -> bool:
    """Tell whether there is anything at `path`; return False if access is refused."""
    try:
        return path.exists()
    except OSError:  # a folder without permission, a name that is too long
        return False


def is_file(path: Path) -> bool:
    """Tell whether `path` is a regular file; return False if access is refused."""
    try:
        return path.is_file()
    except OSError:
        return False


def find_config(start: Path, environ: Mapping[str, str]) -> Path:
    """Return the path of the project's configuration file.

    This is the file that ``GPUEMU_CONFIG`` names, relative to `start`; else, the ``gpuemu.toml`` in
    `start` or in the nearest folder above.

    Raises UsageError: ``config-not-found``.
    """
    named = environ.get("GPUEMU_CONFIG", "")
    if named:
        path = start / named
        if not exists(path):
            text = f"GPUEMU_CONFIG names {named}, which does not exist"
            raise UsageError(Problem("config-not-found", text))
        return path
    folder = start.absolute()
    for place in (folder, *folder.parents):
        if is_file(place / FILE_NAME):
            return place / FILE_NAME
    raise UsageError(
        Problem(
            "config-not-found",
            f"there is no {FILE_NAME} in {start} or above it",
            "`gpuemu-flow init` writes one",
        )
    )
