"""The files of the code that a client ran, as a request names them."""

from __future__ import annotations

import os

MAX_FILES = 500
MAX_PATH = 4096


def is_plain(path: str) -> bool:
    """Tell whether a path is absolute, printable and not too long: no other path is sent."""
    return path.startswith(os.sep) and len(path) <= MAX_PATH and path.isprintable()
