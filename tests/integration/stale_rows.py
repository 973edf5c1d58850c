"""Workspaces of one op that multiplies by what it finds, for tests of staleness."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from mini_workspace import Mini

Act = Callable[[Mini], None]

CONFIG = """
[project]
name = "stale"

[validation]
cause_budget = 0
seed = 7
cases = 2
tolerance = "table"

[[ops]]
name = "scale"
op = {op}
reference = "ref.py:reference"
input_names = ["x"]
schema = {{ dims = {{ N = [3] }}, inputs = {{ x = ["N"] }}, output = ["N"] }}
{more}
"""
REFERENCE = "def reference(x):\n    return x * 3\n"
PROTOCOL = """
    import array, base64, json, sys

    def answer(factor):
        request = json.load(sys.stdin)
        x = request["inputs"]["x"]
        assert x["dtype"] == "float32"
        a = array.array("f", base64.b64decode(x["data"]))
        a = array.array("f", [value * factor for value in a])
        data = base64.b64encode(a.tobytes()).decode()
        print(json.dumps({"shape": x["shape"], "dtype": "float32", "data": data}))
"""
"""Without numpy, which each of many interpreters would have to load."""


def scale_by(expression: str, *before: str, late: str = "") -> str:
    """An op that multiplies by what `expression` gives, which has to be 3."""
    lines = [*before, "def scale(x):"]
    lines += [f"    {late}"] if late else []
    return "\n".join([*lines, f"    return (x * x.dtype.type({expression})).astype(x.dtype)", ""])


def module(value: int) -> str:
    return f"F = {value}\n"


@dataclass(frozen=True)
class Row:
    """One way to depend on something.

    Attributes
    ----------
    name : str
    files : mapping of str to str
        What the workspace holds besides the reference.
    good, bad : callable
        Put what is depended on into the state where the op is right, or wrong.
    op : str
        As in the configuration; TOML.
    more : str
        More lines of the op's table.
    needs : str
        A program without which the row is passed over.
    executables : tuple of str
        Files that can be called.
    in_environment : bool
        A running process, such as ``watch``, cannot see it change.
    """

    name: str
    files: dict[str, str]
    good: Act
    bad: Act
    op: str = '"op.py:scale"'
    more: str = ""
    needs: str = ""
    executables: tuple[str, ...] = ()
    in_environment: bool = False


def rewrite(mini: Mini, path: str, text: str) -> None:
    """Write with the old times, where there is a file."""
    target = mini.root / path
    before = target.stat() if target.exists() else None
    mini.write(path, text)
    if before is not None:
        os.utime(target, ns=(before.st_atime_ns, before.st_mtime_ns))


def make(row: Row, folder: Path) -> Mini:
    if row.needs and shutil.which(row.needs) is None:
        pytest.skip(f"{row.needs} is not here")
    mini = Mini(folder, warm=True)
    mini.write("gpuemu.toml", CONFIG.format(op=row.op, more=row.more))
    mini.write("ref.py", REFERENCE)
    for path, text in row.files.items():
        mini.write(path, text)
    for path in row.executables:
        (mini.root / path).chmod(0o755)
    row.good(mini)
    return mini
