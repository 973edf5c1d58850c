"""Compile the small C libraries that are preloaded into the tool; skip where nobody can."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from once import once

_HERE = Path(__file__).parent


def preloadable(factory: pytest.TempPathFactory, name: str) -> str:
    """Return the path of a library made from ``NAME.c`` of this folder."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")

    def make(folder: Path) -> str:
        folder.mkdir()
        library = folder / f"{name}.so"
        words = ["-shared", "-fPIC", "-O1", "-o", str(library), str(_HERE / f"{name}.c"), "-ldl"]
        done = subprocess.run([compiler, *words], capture_output=True, text=True, check=False)
        return str(library) if done.returncode == 0 else ""

    library = once(factory, f"native-{name}", make)
    if not library:
        pytest.skip("the C compiler cannot make a library to preload here")
    return library
