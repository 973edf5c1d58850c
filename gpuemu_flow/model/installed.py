"""Recognise installed packages and Python's own library by the exact places that Python uses.

A folder of the workspace may have a similar name, such as ``vendor/site-packages`` or
``lib/python3.9/tables``, but its files are the user's own.
"""

from __future__ import annotations

import functools
import os
import re
import site

_PLACE = re.compile(
    r"/lib(?:64)?/python3?(?:\.\d+t?)?(?=/|\Z)|/(?:site|dist)-packages(?=/|\Z)"
)  # fmt: skip
_SYSTEM = ("/usr/lib/", "/usr/lib64/", "/usr/local/lib/", "/usr/local/lib64/")
_OF_USER = re.compile(r".*/\.local/lib/python3\.\d+t?/site-packages")
_KNOWN = frozenset({os.path.dirname(os.__file__), *site.getsitepackages()})  # noqa: PTH120 - early
_BELOW_KNOWN = tuple(f"{folder}/" for folder in _KNOWN)
_MOST = 4096


def is_installed(path: str) -> bool:
    """Tell whether a path is in a folder of installed packages or in a Python's own library. Such
    folders are those of this interpreter, of a virtual environment, of any other Python (recognised
    by ``os.py`` in its library), and of the system's and the user's packages."""
    if path in _KNOWN or path.startswith(_BELOW_KNOWN):
        return True
    if "-packages" not in path and "/python" not in path:
        return False
    return any(_is_place(path[: found.end()]) for found in _PLACE.finditer(path))


@functools.lru_cache(maxsize=_MOST)
def _is_place(folder: str) -> bool:
    if folder.startswith(_SYSTEM) or _OF_USER.fullmatch(folder):
        return True
    parent, _, name = folder.rpartition("/")
    if name.endswith("-packages"):
        return _is_python(parent)
    return _is_python(folder)


def _is_python(folder: str) -> bool:
    """Tell whether a folder is the ``lib/python3.X`` of a Python or of a virtual environment."""
    above, _, name = folder.rpartition("/")
    if not name.startswith("python"):
        return False
    prefix = above.rpartition("/")[0]
    return _is_file(f"{folder}/os.py") or _is_file(f"{prefix}/pyvenv.cfg")


def _is_file(path: str) -> bool:
    try:
        return os.stat(path).st_mode & 0o170000 == 0o100000  # noqa: PTH116 - also before pathlib
    except (OSError, ValueError):
        return False
