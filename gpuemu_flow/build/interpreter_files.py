"""The workspace's files that belong to the configured interpreter.

Every program that runs in this interpreter opens these files.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path

from gpuemu_flow.build.links import links_of

_LIBRARY = "/python3.*"
"""End of a pattern for everything in the libraries of one virtual environment."""


def interpreter_files(python: str, root: Path) -> list[str]:
    """Return the workspace's files that an interpreter opens, whatever program it runs."""
    folder = os.path.dirname(python)  # noqa: PTH120 - of the path as written, as Python itself does
    prefix = os.path.dirname(folder)  # noqa: PTH120
    found = {
        python,
        os.path.realpath(python),
        *links_of(python),
        f"{folder}/pyvenv.cfg",
        f"{prefix}/pyvenv.cfg",
        f"{prefix}/lib{_LIBRARY}",
        f"{prefix}/lib64{_LIBRARY}",
    }
    inside = f"{root}/"
    normal = map(os.path.normpath, found)
    return sorted(path.removeprefix(inside) for path in normal if path.startswith(inside))


def without_installed(names: Iterable[str], known: Collection[str]) -> set[str]:
    """Return the names that are not in `known` and match no pattern of `interpreter_files`."""
    beginnings = tuple(name[:-1] for name in known if f"/{name}".endswith(_LIBRARY))
    return {name for name in names if not name.startswith(beginnings)}.difference(known)
