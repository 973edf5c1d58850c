"""Resolve paths."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

realpath, is_folder, lexists = os.path.realpath, os.path.isdir, os.path.lexists


def real_paths(paths: Iterable[str]) -> Iterator[str]:
    """Yield paths as `realpath` returns them, looking at each folder once only."""
    folders = dict[str, str]()
    for path in paths:
        folder, _, name = path.rpartition("/")
        if not folder.startswith("/") or name in ("", ".", ".."):
            yield realpath(path)
            continue
        if folder not in folders:
            folders[folder] = realpath(folder)
        found = f"{folders[folder].rstrip('/')}/{name}"
        yield realpath(found) if os.path.islink(found) else found  # noqa: PTH114 - hot
