"""Rules of inputs from the configuration to the verdict, and back to the same case again."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mini_workspace import Mini, make_mini

pytestmark = pytest.mark.ci

CONFIG = """
[project]
name = "rules"

[validation]
cause_budget = 0

[[ops]]
name = "gather"
op = "scripts/gather.py:gather"
reference = "scripts/ref.py:gather"
[ops.schema]
dims = { V = [3, 40], D = [2, 5], N = { min = 1, max = 30 }, M = "2*D" }
inputs.table = ["V", "M"]
inputs.index = { dims = ["N"], dtype = "int64", kind = "indices", of = "table" }
inputs.weight = { dims = ["N"], optional = true, range = [0.5, 2.0], nonfinite = false }
scalars = { power = [1, 2], mode = ["plain", "twice"] }
output = ["N", "M"]
"""
REFERENCE = """
import numpy as np


def gather(table, index, weight, power, mode):
    rows = np.take(table, index, axis=0) ** power
    rows = rows * 2 if mode == "twice" else rows
    return rows if weight is None else rows * weight[:, None]
"""
LAST_ROW = """
from scripts import ref
import numpy as np


def gather(table, index, weight, power, mode):
    assert type(power) is int and type(mode) is str
    with np.errstate(all="ignore"):
        out = ref_gather(table, np.minimum(index, table.shape[0] - 2), weight, power, mode)
    return out.astype(table.dtype)


def ref_gather(table, index, weight, power, mode):
    rows = table[index] ** power
    rows = rows * 2 if mode == "twice" else rows
    return rows if weight is None else rows * weight[:, None]
""".replace("from scripts import ref\n", "")
SCRIPT = """
import base64
import json
import sys

import numpy as np


def array(tensor):
    kinds = {"float32": np.float32, "int64": np.int64}
    data = np.frombuffer(base64.b64decode(tensor["data"]), kinds[tensor["dtype"].lower()])
    return data.reshape(tensor["shape"])


request = json.load(sys.stdin)
inputs, kwargs = request["inputs"], request["kwargs"]
assert set(kwargs) == {"power", "mode"}, kwargs
rows = array(inputs["table"])[array(inputs["index"])] ** int(kwargs["power"])
rows = rows * np.float32(2) if kwargs["mode"] == "twice" else rows
if "weight" in inputs:
    rows = rows * array(inputs["weight"])[:, None]
data = base64.b64encode(np.ascontiguousarray(rows).tobytes()).decode()
out = {"shape": list(rows.shape), "dtype": "float32", "data": data}
print(json.dumps({"output": out}))
"""


@pytest.fixture
def mini(tmp_path: Path) -> Mini:
    made = make_mini(tmp_path / "w")
    made.write("gpuemu.toml", CONFIG)
    made.write("scripts/ref.py", REFERENCE)
    made.write("scripts/gather.py", LAST_ROW)
    return made


@pytest.mark.ci
def test_a_bug_at_the_edge_is_found_shrunk_and_made_again(mini: Mini, tmp_path: Path) -> None:
    (found,) = mini.run(code=1)["results"]
    assert found["verdict"] == "failed"
    shown = mini.command("failures").stdout
    seed = shown.splitlines()[1].split()[0]
    shrunk = mini.command("minimize", seed, "--op", "gather", code=None).stdout
    last = shrunk.partition("minimized:")[2]
    assert re.search(r"index\[1\]", last), shrunk
    words = re.findall(r"gpuemu-flow (reproduce .* --case .*)", mini.command("run", code=1).stdout)
    assert words
    for line in words[:2]:
        fresh = make_mini(tmp_path / f"fresh{len(line)}")
        for name in ("gpuemu.toml", "scripts/ref.py", "scripts/gather.py"):
            fresh.write(name, (mini.root / name).read_text())
        again = fresh.command(*shlex.split(line), code=1).stdout
        assert "still fails" in again


@pytest.mark.ci
def test_functions_that_compare_get_scalars_as_the_op_does(mini: Mini) -> None:
    mini.edit(
        "gpuemu.toml",
        'output = ["N", "M"]',
        'output = { dims = ["N", "M"], compare = "own.py:own" }',
    )
    mini.write(
        "own.py",
        """
        import numpy as np

        def own(actual, expected, inputs, tolerance):
            kinds = type(inputs["power"]), type(inputs["mode"])
            told = [] if kinds == (int, str) else [f"{kinds}"]
            weight = inputs["weight"]
            absent = weight is None or weight.shape == inputs["index"].shape
            return [*told, *([] if absent else [f"{weight}"])]
        """,
    )
    (result,) = mini.run()["results"]
    assert (result["verdict"], result["passed"]) == ("passed", 24)


def test_a_case_with_scalars_is_exported(mini: Mini) -> None:
    mini.run(code=1)
    failure = mini.command("failures").stdout.splitlines()[1].split()[0]
    mini.command("failures", "export", failure, "--pytest", "-o", "test_out.py")
    exported = mini.root / "test_out.py"
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(exported)],
        cwd=mini.root, env=mini.environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 1, ran.stdout
    assert "op-signature" not in ran.stdout
    assert "TypeError" not in ran.stdout


def test_the_mended_op_passes_and_so_does_a_script(mini: Mini) -> None:
    mini.edit("scripts/gather.py", "np.minimum(index, table.shape[0] - 2)", "index")
    (found,) = mini.run()["results"]
    assert found["verdict"] == "passed"
    mini.write("scripts/gather.py", SCRIPT)
    mini.edit("gpuemu.toml", "scripts/gather.py:gather", "scripts/gather.py")
    (found,) = mini.run()["results"]
    assert found["verdict"] == "passed"
    mini.command("fuzz", "gather", "--iterations", "40", "--seed", "5")


def test_the_run_and_coverage_say_where_no_nan_was_tried(mini: Mini) -> None:
    mini.edit("scripts/gather.py", "np.minimum(index, table.shape[0] - 2)", "index")
    mini.edit("gpuemu.toml", "range = [0.5, 2.0], nonfinite = false", "range = [0.5, 2.0]")
    shown = mini.command("run").stdout
    assert "nonfinite-untried" in shown
    assert "weight" in shown.partition("nonfinite-untried")[2]
    assert "nonfinite weight" in mini.command("coverage").stdout
    mini.edit("gpuemu.toml", "range = [0.5, 2.0]", "range = [0.5, 2.0], nonfinite = false")
    assert "nonfinite-untried" not in mini.command("run").stdout
    assert "nonfinite weight" in mini.command("coverage").stdout
    mini.edit("gpuemu.toml", "nonfinite = false", "values = [inf]")
    assert "nonfinite-untried" not in mini.command("run", "--cases", "2").stdout


def test_errors_name_key_line_and_mend(mini: Mini) -> None:
    mini.edit("gpuemu.toml", 'of = "table"', 'of = "tables"')
    shown = mini.command("config", "check", code=None)
    text = shown.stdout + shown.stderr
    assert re.search(r"gpuemu\.toml:\d+: schema-rule-key: .*tables", text), text
    assert "table" in text


@pytest.mark.ci
def test_another_range_runs_anew(mini: Mini) -> None:
    mini.edit("scripts/gather.py", "np.minimum(index, table.shape[0] - 2)", "index")
    mini.run()
    assert mini.run()["results"][0]["cached"]
    mini.edit("gpuemu.toml", "power = [1, 2]", "power = [1, 3]")
    assert not mini.run()["results"][0]["cached"]
    shutil.rmtree(mini.root / ".gpuemu-cache")
    mini.run()


def test_many_ops_without_a_nan_have_one_line(mini: Mini) -> None:
    head, mark, op = CONFIG.partition("[[ops]]")
    op = op.replace("range = [0.5, 2.0], nonfinite = false", "range = [0.5, 2.0]")
    ops = [mark + op.replace('"gather"', f'"gather_{number}"', 1) for number in range(4)]
    mini.write("gpuemu.toml", head + "".join(ops))
    mini.edit("scripts/gather.py", "np.minimum(index, table.shape[0] - 2)", "index")
    shown = mini.command("run", "--cases", "8").stdout
    assert shown.count("nonfinite-untried") == 1
    assert "in inputs of 4 ops (gather_0, gather_1, gather_2, …)" in shown
