"""Ops that are their reference, or reach it by another way than its name: none of them passes."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest
from mini_workspace import Mini

HEAD = """
[project]
name = "calls"
[validation]
cases = 2
seed = 7
cause_budget = 0
tolerance = "table"
dtypes = ["float32"]
{more}
"""
OP = """
[[ops]]
name = "{name}"
op = "{op}"
reference = "{reference}"
input_names = ["x"]
schema = {{ dims = {{ N = [3, 9] }}, inputs = {{ x = ["N"] }}, output = ["N"] }}
"""
BOTH = """
import functools
import numpy as np

def wrap(g):
    def inner(*a, **k):
        return g(*a, **k)
    return inner

def ref(x, way=1):
    return x * 3 if way else x + x + x

def made(way):
    def g(x):
        return x * 3 if way else x + x + x
    return g

class Way:
    def __init__(self, way):
        self.way = way
    def __call__(self, x):
        return x * 3 if self.way else x + x + x
    def times(self, x):
        return self(x)
"""
PROTOCOL = """
import base64, json, sys

if __name__ == "__main__":
    t = json.load(sys.stdin)["inputs"]["x"]
    y = {call}(np.frombuffer(base64.b64decode(t["data"]), t["dtype"]))
    data = base64.b64encode(y.tobytes()).decode()
    print(json.dumps({{"shape": list(y.shape), "dtype": str(y.dtype), "data": data}}))
"""


@dataclass(frozen=True)
class Way:
    """The lines of a file that holds an op `f` and its reference; `op` and `judge` name them."""

    lines: str
    op: str = "{file}:f"
    judge: str = "{file}:ref"


CHEATS = {
    "static method": Way("f = staticmethod(ref)"),
    "default": Way("f = lambda x, g=ref: g(x)"),
    "closure": Way("f = wrap(ref)"),
    "closure of a closure": Way("f = wrap(wrap(ref))"),
    "wrapped": Way("@functools.wraps(ref)\ndef f(x):\n    return f.__wrapped__(x)"),
    "what is wrapped": Way("@functools.wraps(ref)\ndef g(x):\n    pass\nf = g.__wrapped__"),
    "decorated": Way(
        "def deco(g):\n    return functools.wraps(g)(wrap(g))\n"
        "@deco\ndef ref(x):\n    return x * 3\nf = ref.__wrapped__"
    ),
    "instance": Way("class C:\n    __call__ = lambda self, x, g=ref: g(x)\nf = C()"),
    "attribute": Way(
        "class C:\n    g = staticmethod(ref)\n"
        "    def __call__(self, x):\n        return self.g(x)\nf = C()"
    ),
    "table": Way("D = {'a': (ref,)}\ndef f(x):\n    return D['a'][0](x)"),
    "only of small inputs": Way(
        "D = [ref]\ndef f(x):\n    return D[0](x) if x.size < 9 else x * 3"
    ),
    "decorator of a library": Way("f = np.errstate(all='ignore')(ref)"),
    "object of a library": Way("f = np.vectorize(ref, otypes=['f4'])"),
    "map": Way("G = [ref]\ndef f(x):\n    return next(map(G[0], [x]))"),
    "thread": Way(
        "from concurrent.futures import ThreadPoolExecutor\ndef f(x, g=ref):\n"
        "    with ThreadPoolExecutor(1) as pool:\n        return pool.submit(g, x).result()"
    ),
    "error is caught": Way(
        "def f(x, g=ref):\n    try:\n        return g(x)\n"
        "    except Exception:\n        return x * 3"
    ),
    "same flag": Way("f = functools.partial(ref, way=1)"),
    "equal partials": Way("base = ref\nref = functools.partial(base, way=0)\n"
                          "f = functools.partial(base, way=0)"),
    "equal instances": Way("ref = Way(1)\nf = Way(1)"),
    "instance in a wrapper": Way("ref = Way(1)\nf = wrap(ref)"),
    "method": Way("w = Way(1)\nref = w.times\nf = wrap(w.times)"),
    "library": Way("ref = np.abs\nf = np.absolute"),
    "script's function": Way(
        "def reference(x):\n    return x * 3\ndef f(x):\n    return reference(x)", judge="{file}"
    ),
    "script's function, another name": Way(
        "def reference(x):\n    return x * 3\nf = reference", judge="{file}"
    ),
    "op of a script": Way("def op(x, g=ref):\n    return g(x)", op="{file}"),
    "protocol": Way(PROTOCOL.format(call="[ref][0]"), op="{file}"),
    "imported by both": Way("from lib import good as f", judge="judge.py:ref"),
    "imported twice": Way("from lib import good as f", judge="judge.py:again"),
    "imported as an attribute": Way("import lib\nf = wrap(lib.good)", judge="judge:lib.good"),
}  # fmt: skip
HONEST = {
    "another function": Way("def f(x):\n    return x + x + x"),
    "another closure": Way("ref = made(1)\nf = made(0)"),
    "same decorator": Way("@wrap\ndef f(x):\n    return x + x + x\nref = wrap(ref)"),
    "another flag": Way("f = functools.partial(ref, way=0)"),
    "other partials": Way("base = ref\nref = functools.partial(base, way=1)\n"
                          "f = functools.partial(base, way=0)"),
    "other instances": Way("ref = Way(1)\nf = Way(0)"),
    "other methods": Way("ref = Way(1).times\nf = Way(0).times"),
    "calls at import": Way("T = ref(np.float32(1))\ndef f(x):\n    return x * T"),
    "protocol": Way(PROTOCOL.format(call="(lambda x: x + x + x)"), op="{file}"),
    "another import": Way("from lib import other as f", judge="judge.py:ref"),
}  # fmt: skip
MODULES = {
    "lib.py": "def good(x):\n    return x * 3\n\ndef other(x):\n    return x + x + x\n",
    "judge.py": "import lib\nfrom lib import good as ref\nagain = ref\n",
}


def workspace(folder: Path, ways: dict[str, Way], more: str = "") -> Mini:
    mini = Mini(folder.resolve())
    config = [HEAD.format(more=more)]
    for number, (name, way) in enumerate(ways.items()):
        file = f"m{number}.py"
        mini.write(file, BOTH + dedent(way.lines) + "\n")
        op, judge = (text.format(file=file) for text in (way.op, way.judge))
        config.append(OP.format(name=slug(name), op=op, reference=judge))
    for file, text in MODULES.items():
        mini.write(file, text)
    mini.write("gpuemu.toml", "".join(config))
    return mini


def slug(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name)


def found(mini: Mini) -> dict[str, str]:
    """Map each op to its verdict, or to the slug of its error."""
    done = mini.command("run", "--format", "json", code=None)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    verdicts = {r["op"]: r["verdict"] for r in report["results"]}
    refused = [f["op"] for f in report["failures"] if "the op: op-reads-reference" in f["message"]]
    return {**verdicts, **dict.fromkeys(refused, "op-reads-reference")}


OTHER = f"[execution]\npython_path = {json.dumps(sys.executable)}\n"


@pytest.mark.parametrize("more", ["", OTHER], ids=["own", "python_path"])
def test_an_op_that_reaches_its_reference_is_refused(more: str, tmp_path: Path) -> None:
    # Another interpreter calls functions by names of parameters, which numpy's own lack.
    cheats = {name: way for name, way in CHEATS.items() if not more or name != "library"}
    mini = workspace(tmp_path, cheats, more)
    assert found(mini) == {slug(name): "op-reads-reference" for name in cheats}


@pytest.mark.parametrize("more", ["", OTHER], ids=["own", "python_path"])
def test_an_op_that_shares_more_than_its_reference_passes(more: str, tmp_path: Path) -> None:
    mini = workspace(tmp_path, HONEST, more)
    assert found(mini) == {slug(name): "passed" for name in HONEST}


def test_a_function_that_becomes_the_reference_is_refused(tmp_path: Path) -> None:
    """The op's own file is as it was, so that only the configuration tells."""
    way = Way("def f(x, g=ref):\n    return g(x)\ndef judge(x):\n    return x + x + x")
    mini = workspace(tmp_path, {"it": way})
    mini.edit("gpuemu.toml", '"m0.py:ref"', '"m0.py:judge"')
    assert found(mini) == {"it": "passed"}
    mini.edit("gpuemu.toml", '"m0.py:judge"', '"m0.py:ref"')
    assert found(mini) == {"it": "op-reads-reference"}


def test_another_name_in_the_judge_counts_at_once(tmp_path: Path) -> None:
    """The same names are imported, in another order."""
    mini = workspace(tmp_path, {"it": Way("from lib import other as f", judge="judge.py:ref")})
    mini.write("judge.py", "from lib import good as ref, other as more\n")
    assert found(mini) == {"it": "passed"}
    mini.write("judge.py", "from lib import good as more, other as ref\n")
    assert found(mini) == {"it": "op-reads-reference"}
