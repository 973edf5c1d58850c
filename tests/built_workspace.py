"""A workspace whose op reads a table that a rule makes of text files."""

from __future__ import annotations

import sys
from pathlib import Path

from mini_workspace import Mini

CONFIG = """
[project]
name = "built"
[validation]
dtypes = ["float32"]
cases = 3
cause_budget = 0

[[rules]]
name = "table"
command = ["{python}", "make.py"]
inputs = ["src/**/*.txt"]
outputs = ["build/factor.txt"]

[[ops]]
name = "it"
op = "ops/it.py:it"
reference = "ops/it_ref.py:it"
needs = ["table"]
input_names = ["x"]
schema = {{ dims = {{ N = [3, 8] }}, inputs = {{ x = ["N"] }}, output = ["N"] }}
"""
MAKE = """
from pathlib import Path

lines = [line for path in sorted(Path("src").rglob("*.txt")) for line in path.open()]
Path("build/factor.txt").write_text(str(sum(int(n) for n in lines if not n.startswith("#"))))
"""
OP = """
from pathlib import Path

FACTOR = int((Path(__file__).parent.parent / "build" / "factor.txt").read_text())

def it(x):
    return (x * FACTOR).astype(x.dtype)
"""
ALL = {f"{stage}:it:float32" for stage in ("generate", "op", "reference", "compare")}
OUTPUT = "build/factor.txt"


def make_built(folder: Path) -> Mini:
    mini = Mini(folder, warm=True)
    mini.write("gpuemu.toml", CONFIG.format(python=sys.executable))
    mini.write("make.py", MAKE)
    mini.write("src/a.txt", "1\n")
    mini.write("src/b.txt", "2\n")
    mini.write("ops/it.py", OP)
    mini.write("ops/it_ref.py", "def it(x):\n    return (x + x + x).astype(x.dtype)\n")
    return mini


def slugs(report: dict[str, object]) -> list[str]:
    problems = report["problems"]
    assert isinstance(problems, list)
    return [problem["slug"] for problem in problems]
