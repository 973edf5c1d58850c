"""List the exact files of Python's standard library, to recognise its frames in a call stack.

A user's file may have the same name as a module of the library, or a name with the same ending.
"""

from __future__ import annotations

import os

FOLDER = os.path.dirname(os.__file__)  # noqa: PTH120 - the import of pathlib may be observed
_INSTALLED = (f"{FOLDER}/site-packages/", f"{FOLDER}/dist-packages/")


def files_of(*modules: str) -> frozenset[str]:
    """Return all file names that code objects of the given standard-library modules can have.

    A module has several possible names: depending on Python's version, it is a file, a package, or
    frozen into the interpreter.
    """
    return frozenset(
        name
        for module in modules
        for base in (f"{FOLDER}/{module.replace('.', '/')}",)
        for name in (f"{base}.py", f"{base}/__init__.py", f"<frozen {module}>")
    )


def is_stdlib(path: str) -> bool:
    """Tell whether a file is in the standard library, and not in a package installed below it."""
    return path.startswith(f"{FOLDER}/") and not path.startswith(_INSTALLED)
