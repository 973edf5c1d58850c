"""Workspaces that share a cache: an original, and clones of it in other folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from mini_workspace import Mini

CONFIG = """\
[project]
name = "shared"

[validation]
dtypes = ["float32"]
cases = 3
seed = 42
cause_budget = 0

[sandbox]
mode = "off"

[[ops]]
name = "scale"
op = "scripts/scale.py:scale"
reference = "scripts/scale_ref.py:reference"
input_names = ["x"]
tolerance = "table"
schema = { dims = { N = { min = 4, max = 40 } }, inputs = { x = ["N"] }, output = ["N"] }
"""
OP = """\
import os

import helper
import numpy as np

with open("MARKS", "a") as marks:
    marks.write("op ")
HERE = os.path.dirname(os.path.abspath(__file__))


def scale(x):
    with open(os.path.join(HERE, "factor.txt")) as file:
        factor = float(file.read())
    sign = -1.0 if os.path.exists(os.path.join(HERE, "negate")) else 1.0
    bias = float(os.environ.get("SCALE_BIAS", "0"))
    parts = len(os.listdir(os.path.join(HERE, "parts")))
    return (helper.times(x, factor) * sign + bias + (parts - 1)).astype(x.dtype)
"""
HELPER = """\
def times(x, factor):
    return x * factor
"""
REFERENCE = """\
with open("MARKS", "a") as marks:
    marks.write("reference ")


def reference(x):
    return x * 3
"""
OF_THE_RUN = ("duration_s", "time", "tasks", "executed", "cached")


def make_original(folder: Path, remote: str, mode: str = "write", **env: str) -> Mini:
    """Make a workspace that names a shared cache."""
    marks = str(folder.parent / "marks")
    workspace = Mini(folder, env=env)
    config = CONFIG.replace('input_names = ["x"]', 'input_names = ["x"]\nenv = ["SCALE_BIAS"]')
    workspace.write(
        "gpuemu.toml", f'{config}\n[cache]\nremote = "{remote}"\nremote_mode = "{mode}"\n'
    )
    workspace.write("scripts/scale.py", OP.replace("MARKS", marks))
    workspace.write("scripts/helper.py", HELPER)
    workspace.write("scripts/scale_ref.py", REFERENCE.replace("MARKS", marks))
    workspace.write("scripts/factor.txt", "3")
    workspace.write("scripts/parts/one", "")
    return workspace


def clone(workspace: Mini, folder: Path, **env: str) -> Mini:
    """Copy a workspace without its cache, as a fresh clone is."""
    left_out = shutil.ignore_patterns(".gpuemu-cache", "home")
    shutil.copytree(workspace.root, folder, symlinks=True, ignore=left_out)
    return Mini(folder, env={**workspace.env, **env})


def programs(workspace: Mini) -> list[str]:
    """Return which programs were started since the last call."""
    marks = workspace.root.parent / "marks"
    found = marks.read_text().split() if marks.exists() else []
    marks.unlink(missing_ok=True)
    return sorted(found)


def results(report: dict[str, Any]) -> str:
    """Return a report as text, without times and without what had to run."""

    def without_times(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: without_times(v) for k, v in value.items() if k not in OF_THE_RUN}
        return [without_times(each) for each in value] if isinstance(value, list) else value

    return json.dumps(without_times(report), indent=1)


def slugs(report: dict[str, Any]) -> list[str]:
    return [problem["slug"] for problem in report["problems"]]
