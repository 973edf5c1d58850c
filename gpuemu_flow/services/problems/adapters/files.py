"""Read the files that an import wrote next to a problem, and load a candidate's code.

``gpuemu-flow import`` copies this module into the workspace, so it imports nothing of gpuemu-flow.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


def described(folder: str) -> Any:
    """Return the content of a problem's ``problem.json``."""
    return json.loads(Path(folder, "problem.json").read_text(encoding="utf-8"))


def loaded(name: str, path: Path, *, listed: bool = False) -> ModuleType:
    """Execute a Python file as a module.

    `listed`: True to add the module to ``sys.modules`` before it is executed. Dataclasses need
    this, and so do imports between a candidate's files.
    """
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # noqa: S101 - the path ends in .py
    assert spec.loader is not None  # noqa: S101
    module = importlib.util.module_from_spec(spec)
    if listed:
        sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
