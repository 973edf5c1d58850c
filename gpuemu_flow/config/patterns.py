"""Glob patterns of files, as they are written in the files of a workspace."""

from __future__ import annotations

import os
from pathlib import PurePosixPath


def plain_glob(written: str) -> tuple[PurePosixPath, str]:
    """Return a glob without ``.`` and ``..``, and the reason if it is not allowed.

    Parameters
    ----------
    written : str
        The glob, relative to the workspace.

    Returns
    -------
    path : PurePosixPath
        The glob, one part per folder.
    fault : str
        The end of a sentence about the glob; empty if it is allowed.
    """
    path = PurePosixPath(os.path.normpath(written))
    if not written.isprintable():
        return path, "holds control characters"
    if path.is_absolute() or ".." in PurePosixPath(written).parts:
        return path, "leads out of the workspace"
    if not path.parts:
        return path, "is the workspace itself"
    if any("**" in part and part != "**" for part in path.parts):
        return path, "has a '**' that does not stand alone between slashes"
    return path, ""
