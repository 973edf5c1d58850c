"""Rules for the files of a client's code that a request names."""

from __future__ import annotations

import os

MAX_FILES = 500
MAX_PATH = 4096


def is_plain(path: str) -> bool:
    """Tell whether a path is absolute, printable and not too long; only such paths are sent."""
    return path.startswith(os.sep) and len(path) <= MAX_PATH and path.isprintable()
