"""Variables of the environment: those that reach programs, and results that hang on them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from mini_workspace import Mini

pytestmark = pytest.mark.ci

CONFIG = """\
[project]
name = "variables"

[validation]
dtypes = ["float32"]
cases = 2
cause_budget = 0
{more}
[[ops]]
name = "scale"
op = {op}
reference = "ref.py:scale"
input_names = ["x"]
{option}
schema = {{ dims = {{ N = [4] }}, inputs = {{ x = ["N"] }}, output = ["N"] }}
"""
REFERENCE = "def scale(x):\n    return 3 * x\n"
OP = """
import os


def scale(x):
    return {factor} * x
"""
EXECUTABLE = """\
#!{python}
import array, base64, json, os, sys

factor = float(os.environ["SCALE"])
x = json.load(sys.stdin)["inputs"]["x"]
data = array.array("f", [factor * v for v in array.array("f", base64.b64decode(x["data"]))])
coded = base64.b64encode(data.tobytes()).decode()
output = {{"shape": x["shape"], "dtype": "float32", "data": coded}}
print(json.dumps({{"outputs": {{"output": output}}}}))
"""


def workspace(
    mini: Mini, factor: str, *, option: str = "", more: str = "", op: str = '"op.py:scale"'
) -> Mini:
    mini.write("gpuemu.toml", CONFIG.format(option=option, more=more, op=op))
    mini.write("ref.py", REFERENCE)
    mini.write("op.py", OP.format(factor=factor))
    return mini


def verdict(mini: Mini, **variables: str) -> str:
    mini.env = variables
    (result,) = mini.run(code=None)["results"]
    return str(result["verdict"])


def test_a_named_variable_counts_where_nobody_sees_it_read(mini: Mini) -> None:
    workspace(mini, "3", option='env = ["SCALE"]')
    assert verdict(mini, SCALE="3") == "passed"
    mini.env = {"SCALE": "2"}
    ran = mini.run(code=None)["executed"]
    assert {"op:scale:float32", "reference:scale:float32"} <= set(ran)


@pytest.mark.parametrize("kind", ["callable", "executable"])
def test_an_op_that_misses_a_variable_is_told_how_it_gets_it(mini: Mini, kind: str) -> None:
    op = '"op.py:scale"' if kind == "callable" else '"bin/scale"'
    workspace(mini, 'int(os.environ["SCALE"])', op=op)
    mini.write("bin/scale", EXECUTABLE.format(python=sys.executable)).chmod(0o755)
    mini.env = {"SCALE": "3"}
    said = mini.command("run", code=None).stdout
    assert 'env = ["SCALE"]' in said
    mini.env = {}
    unset = mini.command("run", "--force", code=None).stdout
    assert "KeyError" in unset
    assert "env = [" not in unset
    config = mini.root / "gpuemu.toml"
    config.write_text(config.read_text().replace("input_names", 'env = ["SCALE"]\ninput_names'))
    assert verdict(mini, SCALE="3") == "passed"


def test_tables_set_what_lists_let_through(mini: Mini) -> None:
    option = 'env = { SCALE = "3" }'
    workspace(mini, 'int(os.environ["SCALE"])', option=option, more='[execution]\nenv = ["*"]\n')
    assert verdict(mini, SCALE="2") == "passed"


def test_home_is_the_scratch_folder_unless_it_is_named(mini: Mini) -> None:
    factor = '(3 if os.path.realpath(os.environ["HOME"]).startswith("/") and not os.path.exists('
    factor += 'os.path.expanduser("~/mine")) else 2)'
    home = mini.root / "home"
    home.mkdir(exist_ok=True)
    (home / "mine").touch()
    workspace(mini, factor)
    assert verdict(mini) == "passed"
    workspace(mini, factor, option='env = ["HOME"]')
    assert verdict(mini) == "failed"


def test_packages_of_the_user_are_found_by_a_fresh_interpreter(mini: Mini) -> None:
    """A python that an op starts looks below its own HOME, which is the scratch folder."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    mini.write(f"home/.local/lib/{version}/site-packages/only_mine.py", "F = 3\n")
    base = getattr(sys, "_base_executable", sys.executable)
    probe = [base, "-c", "import only_mine"]
    env = {"HOME": str(mini.root / "home"), "PATH": os.environ["PATH"]}
    if subprocess.run(probe, env=env, check=False, stderr=subprocess.DEVNULL).returncode:
        pytest.skip("this interpreter looks for no packages of the user")
    code = f"[{base!r}, '-c', 'import only_mine; print(only_mine.F)']"
    workspace(mini, f"int(__import__('subprocess').check_output({code}))")
    assert verdict(mini) == "passed"


def test_no_value_of_a_variable_is_kept(mini: Mini) -> None:
    workspace(mini, '(3 if os.environ["MY_SECRET"] else 2)', option='env = ["MY_SECRET"]')
    assert verdict(mini, MY_SECRET="hunter2hunter2") == "passed"
    kept = [path for path in Path(mini.root).rglob("*") if path.is_file()]
    assert not [path for path in kept if b"hunter2hunter2" in path.read_bytes()]
