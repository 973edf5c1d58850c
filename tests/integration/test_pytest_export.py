"""Exported tests, really run by pytest: they fail while the bug is there, and pass without it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from mini_workspace import Mini

CONFIG = """\
[project]
name = "exported"

[validation]
dtypes = ["float32"]
cases = 8
seed = 42
cause_budget = 0

[[ops]]
name = "strided"
op = "ops/all.py:strided"
reference = "ops/ref.py:strided"
kwargs = { factor = 3.0 }
layouts = ["contiguous", "strided"]
schema = { dims = { M = [2, 3], N = [4, 5] }, inputs = { x = ["M", "N"] }, output = ["M", "N"] }

[[ops]]
name = "narrow"
op = "ops/all.py:narrow"
reference = "ops/ref.py:narrow"
dtypes = ["bfloat16"]
schema = { dims = { N = [4, 5] }, inputs = { x = ["N"] }, output = ["N"] }

[[ops]]
name = "mapping"
op = "ops/all.py:mapping"
reference = "ops/ref.py:mapping"
[ops.schema]
dims = { N = [4, 5] }
inputs.x = { dims = ["N"], nonfinite = false }
outputs.count = { dims = [], dtype = "int64" }
outputs.most = { dims = [] }

[[ops]]
name = "in_place"
op = "ops/all.py:in_place"
reference = "ops/ref.py:in_place"
mutates = ["x"]
schema = { dims = { N = [4, 5] }, inputs = { x = ["N"] }, output = ["N"] }

[[ops]]
name = "raises"
op = "ops/all.py:raises"
reference = "ops/ref.py:same"
schema = { dims = { N = [4, 5] }, inputs = { x = ["N"] }, output = ["N"] }

[[ops]]
name = "shape"
op = "ops/all.py:shape"
reference = "ops/ref.py:same"
schema = { dims = { N = [4, 5] }, inputs = { x = ["N"] }, output = ["N"] }

[[ops]]
name = "dtype"
op = "ops/all.py:dtype"
reference = "ops/ref.py:same"
schema = { dims = { N = [4, 5] }, inputs = { x = ["N"] }, output = ["N"] }

[[ops]]
name = "writes"
op = "ops/all.py:writes"
reference = "ops/ref.py:same"
schema = { dims = { N = [4, 5] }, inputs = { x = ["N"] }, output = ["N"] }

[[ops]]
name = "unsteady"
op = "ops/all.py:unsteady"
reference = "ops/ref.py:same"
schema = { dims = { N = [4, 5] }, inputs = { x = ["N"] }, output = ["N"] }

[[ops]]
name = "crashes"
op = "ops/all.py:crashes"
reference = "ops/ref.py:same"
schema = { dims = { N = [4, 5] }, inputs = { x = ["N"] }, output = ["N"] }

[[ops]]
name = "program"
op = "ops/program.py"
reference = "ops/ref.py:same"
schema = { dims = { N = [4, 5] }, inputs = { x = ["N"] }, output = ["N"] }

[[ops]]
name = "ordered"
op = "ops/all.py:ordered"
reference = "ops/ref.py:same"
[ops.schema]
dims = { N = [4, 5] }
inputs.x = ["N"]
outputs.y = { dims = ["N"], order = "any" }

[[ops]]
name = "tolerant"
op = "ops/all.py:tolerant"
reference = "ops/ref.py:same"
tolerances = { float32 = { atol = 0.5, rtol = 0.0625 } }
schema = { dims = { N = [5] }, inputs = { x = { dims = ["N"], values = [8, -8] } }, output = ["N"] }

[[ops]]
name = "counts"
op = "ops/all.py:counts"
reference = "ops/ref.py:same"
dtypes = ["int32"]
tolerances = { int32 = 1.0 }
[ops.schema]
dims = { N = [5] }
inputs.x = { dims = ["N"], range = [0, 9] }
output = ["N"]

[[ops]]
name = "rooted"
op = "ops/all.py:rooted"
reference = "ops/ref.py:root"
schema = { dims = { N = [5] }, inputs = { x = { dims = ["N"], values = [-1, 4] } }, output = ["N"] }

[[ops]]
name = "left"
op = "ops/all.py:left"
reference = "ops/ref.py:left"
mutates = ["x"]
schema = { dims = { N = [4, 5] }, inputs = { x = ["N"] }, output = ["N"] }

[[ops]]
name = "strict"
op = "ops/all.py:tolerant"
reference = "ops/ref.py:root"
nan_policy = "strict"
[ops.schema]
dims = { N = [5] }
inputs.x = { dims = ["N"], range = [-9, -1] }
output = ["N"]

[[ops]]
name = "ignored"
op = "ops/all.py:last"
reference = "ops/ref.py:root"
nan_policy = "ignore"
[ops.schema]
dims = { N = [5] }
inputs.x = { dims = ["N"], values = [-1, 1] }
output = ["N"]
"""
OPS = """
import itertools
import os

import numpy as np
from bug import WRONG

CALLS = itertools.count()


def strided(x, factor):
    y = x * np.float32(factor)
    if WRONG and not x.flags.c_contiguous:
        y[..., -1] += 1
    return y


def narrow(x):
    y = x.astype(np.float32) * 2
    return (y * 1.5 if WRONG else y).astype(x.dtype)


def mapping(tensors):
    x = tensors["x"]
    return {"most": x.max(), "count": np.int64((x > 0).sum() + WRONG)}


def in_place(x):
    x[...] = x * 2 + (1 if WRONG else 0)


def raises(x):
    return x * [1][len(x) if WRONG else 0]


def shape(x):
    return x[None].copy() if WRONG else x.copy()


def dtype(x):
    return x.astype(np.float64 if WRONG else x.dtype)


def writes(x):
    y = x.copy()
    if WRONG:
        x[...] = 0
    return y


def unsteady(x):
    return x + np.float32(next(CALLS) % 2)


def crashes(x):
    os.kill(os.getpid(), 11)


def ordered(x):
    return x[::-1] + np.float32(1)


def tolerant(x):
    return x + np.float32([0.9, 0.9, 0.9, 0.9, 1.1 if WRONG else 0.9])


def counts(x):
    return x + np.int32([1, 1, 1, 1, 2 if WRONG else 1])


def rooted(x):
    return x**0.5 + np.float32(WRONG)


def left(x):
    y = x * 2
    x[...] = 1
    return y


def last(x):
    return x * 7
"""
REFERENCES = """
def strided(x, factor):
    return x * factor


def narrow(x):
    return x * 2


def mapping(x):
    return {"count": (x > 0).sum(), "most": x.max()}


def in_place(x):
    return x * 2


def same(x):
    return x.copy()


def left(x):
    y = x * 2
    x[...] = 0
    return y


def root(x):
    return x**0.5
"""
PROGRAM = """
import json, sys
request = json.load(sys.stdin)
x = request["inputs"]["x"]
x["shape"] = [1, *x["shape"]]
print(json.dumps({"outputs": {"result": x}}))
"""
SAID = {
    "strided": "elements of 'output' are wrong; at (",
    "narrow": "elements of 'output' are wrong",
    "mapping": "1 of 1 elements of 'count' are wrong; at (): actual",
    "in_place": "elements of 'output' are wrong",
    "raises": "IndexError",
    "shape": "'output' has shape (1,",
    "dtype": "'output' has dtype float64, not ('float32',)",
    "writes": "the op wrote to input 'x'",
    "tolerant": "1 of 5 elements of 'output' are wrong; at (4,)",
    "rooted": "elements of 'output' are wrong",
    "counts": "1 of 5 elements of 'output' are wrong; at (4,)",
}
REFUSED = {
    "unsteady": "a plain call does not show NonDeterministic",
    "crashes": "crashed, hung or lacked memory",
    "program": "program is no function of numpy arrays",
    "ordered": "how 'y' is compared needs this tool",
    "left": "not at what it leaves in its inputs",
    "strict": "its policy for NaN or Inf is not that they match",
    "ignored": "its policy for NaN or Inf is not that they match",
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Mini, dict[str, str]]:
    """A workspace whose failures are exported, and the id of each op's failure."""
    mini = Mini(tmp_path_factory.mktemp("exported"))
    mini.write("gpuemu.toml", CONFIG)
    mini.write("ops/bug.py", "WRONG = True\n")
    mini.write("ops/all.py", OPS)
    mini.write("ops/ref.py", REFERENCES)
    mini.write("ops/program.py", PROGRAM)
    mini.run(code=None)
    listed = json.loads(mini.command("failures", "--format", "json", "--limit", "1000").stdout)[
        "failures"
    ]
    ids = {each["op"]: each["id"] for each in listed}
    (mini.root / "tests").mkdir()
    for name in SAID:
        file = f"tests/test_{name}.py"
        assert mini.command("failures", "export", ids[name], "--pytest", "-o", file).stdout == (
            f"{file}\n"
        )
    return mini, ids


def answers(mini: Mini) -> dict[str, str]:
    """Return what pytest says of each file, in a process without this tool."""
    report = mini.root / "report.xml"
    blocked = "".join(
        f"import sys; sys.modules[{name!r}] = None\n"
        for name in ("gpuemu_flow", "safetensors", "pybase64", "torch")
    )
    mini.write("tests/conftest.py", blocked)
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:gpuemu", "-p", "no:cacheprovider",
         "-c", "/dev/null", f"--rootdir={mini.root}", f"--junitxml={report}", "tests"],
        cwd=mini.root, capture_output=True, timeout=600, check=False,
    )  # fmt: skip
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        wrong = case.find("failure")
        assert case.find("error") is None, ElementTree.tostring(case)
        name = str(case.get("classname")).rpartition("test_")[2]
        found[name] = "passed" if wrong is None else str(wrong.get("message"))
    return found


def test_they_fail_before_the_mend_and_pass_after(exported: tuple[Mini, dict[str, str]]) -> None:
    mini, _ = exported
    before = answers(mini)
    assert set(before) == set(SAID)
    for name, words in SAID.items():
        assert words in before[name], before[name]
    mini.write("ops/bug.py", "WRONG = False\n")
    assert answers(mini) == dict.fromkeys(SAID, "passed")


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_plain_call_can_show_is_refused(
    exported: tuple[Mini, dict[str, str]], name: str
) -> None:
    mini, ids = exported
    done = mini.command("failures", "export", ids[name], "--pytest", code=2)
    assert "export-refused" in done.stderr
    assert REFUSED[name] in done.stderr
    assert f"gpuemu-flow reproduce {ids[name]}" in done.stderr
    assert not list(mini.root.glob("test_*"))


def test_the_file_is_short_and_says_what_it_is(exported: tuple[Mini, dict[str, str]]) -> None:
    mini, ids = exported
    text = (mini.root / "tests" / "test_strided.py").read_text()
    assert len(text.splitlines()) < 100
    assert f"gpuemu-flow reproduce {ids['strided']}" in text
    assert str(mini.root) not in text, "it can be committed with the workspace"
    elsewhere = Path(str(mini.root) + "-elsewhere")
    elsewhere.mkdir()
    mini.command("failures", "export", ids["strided"], "--pytest", "-o", str(elsewhere))
    (file,) = elsewhere.glob("test_repro_*.py")
    assert f"ROOT = Path({str(mini.root)!r})" in file.read_text()
