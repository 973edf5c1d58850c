"""Included files and templates in real workspaces: nothing stale, errors at their places."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mini_workspace import Mini

HEAD = """
include = ["ops/*.toml"]

[project]
name = "included"
[validation]
dtypes = ["float32"]
cases = 2
"""
OP = """
[[ops]]
name = "{name}"
op = "scripts/twice.py:twice"
reference = "scripts/twice_ref.py:twice"
input_names = ["x"]
{more}
schema = {{ dims = {{ N = [3] }}, inputs = {{ x = ["N"] }}, output = ["N"] }}
"""


@pytest.fixture
def mini(tmp_path: Path) -> Mini:
    mini = Mini(tmp_path / "w", warm=True)
    mini.write("gpuemu.toml", HEAD + OP.format(name="first", more=""))
    mini.write("ops/a.toml", OP.format(name="a", more=""))
    mini.write("scripts/twice.py", "def twice(x, **_):\n    return x + x\n")
    mini.write("scripts/twice_ref.py", "def twice(x, **_):\n    return x * x.dtype.type(2)\n")
    return mini


def names(mini: Mini) -> list[str]:
    tasks = json.loads(mini.command("list", "op", "--format", "json").stdout)["tasks"]
    return [task["task"] for task in tasks]


def test_a_file_that_comes_changes_or_goes_is_noticed(mini: Mini) -> None:
    assert len(mini.run()["results"]) == 2
    assert mini.command("run").stdout.startswith("up to date")
    mini.write("ops/b.toml", OP.format(name="b", more=""))
    assert "op:b:float32" in mini.run()["executed"] or len(mini.run()["results"]) == 3
    assert mini.command("run").stdout.startswith("up to date: 15 tasks")
    mini.write("ops/b.toml", OP.format(name="b", more='dtypes = ["float64"]'))
    assert "op:b:float64" in mini.run()["executed"]
    assert mini.command("run").stdout.startswith("up to date: 15 tasks")
    (mini.root / "ops/b.toml").rename(mini.root / "ops/b.txt")
    assert names(mini) == ["op:first:float32", "op:a:float32"]
    mini.run()
    assert mini.command("run").stdout.startswith("up to date: 10 tasks")
    (mini.root / "ops/a.toml").write_text("")
    assert names(mini) == ["op:first:float32"]


def test_the_first_file_of_a_folder_is_noticed(mini: Mini) -> None:
    (mini.root / "ops/a.toml").unlink()
    mini.run()
    assert mini.command("run").stdout.startswith("up to date: 5 tasks")
    mini.write("ops/late.toml", OP.format(name="late", more=""))
    assert not mini.command("run").stdout.startswith("up to date")


def test_rules_of_an_included_file_are_built(mini: Mini) -> None:
    rule = '[[rules]]\nname = "r"\ncommand = ["cp", "scripts/twice.py", "made/x"]\n'
    mini.write("ops/r.toml", rule + 'inputs = ["scripts/twice.py"]\noutputs = ["made/x"]\n')
    assert mini.run("build")["executed"] == ["build:r"]
    assert (mini.root / "made/x").exists()


WRONG = {
    "a wrong value": (OP.format(name="b", more="cases = 0"), 7, "config-value"),
    "a name of another file": (OP.format(name="first", more=""), 3, "config-duplicate-name"),
    "a section": ("[cache]\nsize_limit = 1\n", 1, "config-include"),
    "no TOML": ("\n\n= 1\n", 3, "config-syntax"),
    "a need": (OP.format(name="b", more='needs = ["lib"]'), 7, "config-rule-unknown"),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_error_names_its_file_and_line(mini: Mini, name: str) -> None:
    text, line, slug = WRONG[name]
    (mini.root / "ops/b.toml").write_text(text)
    done = mini.command("config", "check", code=2)
    assert f"ops/b.toml:{line}: {slug}" in done.stdout + done.stderr
    assert f"ops/b.toml:{line}: {slug}" in mini.command("run", code=2).stderr


def test_a_template_is_an_op_for_each_combination(mini: Mini) -> None:
    template = OP.format(
        name="mm_{tile}_{order}",
        more='foreach = { tile = [64, 128], order = ["row", "column"] }\n'
        'kwargs = { tile = "{tile}", text = "{{tile}} {order}" }',
    )
    mini.write("ops/a.toml", template)
    mini.write(
        "scripts/twice.py",
        """
        def twice(x, tile=64, text="{tile} row"):
            assert tile in (64, 128) and text in ("{tile} row", "{tile} column")
            return x + x
        """,
    )
    found = mini.run()
    assert [r["op"] for r in found["results"]] == [
        "first",
        *(f"mm_{tile}_{order}" for tile in (64, 128) for order in ("row", "column")),
    ]
    assert {r["verdict"] for r in found["results"]} == {"passed"}
    mini.edit("ops/a.toml", "[64, 128]", "[64]")
    assert len(mini.run()["results"]) == 3


def test_dtypes_that_nothing_hangs_on_belong_to_one_op(mini: Mini) -> None:
    more = 'foreach = { dtype = ["float32", "float64"], tile = [1, 2] }'
    mini.write("ops/a.toml", OP.format(name="mm_{tile}", more=more))
    assert names(mini) == [
        "op:first:float32",
        *(f"op:mm_{tile}:{dtype}" for tile in (1, 2) for dtype in ("float32", "float64")),
    ]
    mini.write("ops/a.toml", OP.format(name="mm_{tile}_{dtype}", more=more))
    assert names(mini)[1:3] == ["op:mm_1_float32:float32", "op:mm_2_float32:float32"]


def test_errors_of_a_template_name_its_line_and_the_values(mini: Mini) -> None:
    more = 'foreach = { tile = [1, 0] }\ncases = "{tile}"'
    mini.write("ops/a.toml", "\n" + OP.format(name="mm_{tile}", more=more))
    done = mini.command("config", "check", code=2)
    told = [line for line in (done.stdout + done.stderr).splitlines() if "ops/a.toml" in line]
    assert len(told) == 1
    assert told[0].startswith("ops/a.toml:7: config-value: ops[0].cases is 0")
    assert "(with tile = 0)" in told[0]


def test_a_value_that_is_no_name_comes_with_a_way_out(mini: Mini) -> None:
    mini.write("ops/a.toml", OP.format(name="m_{x}", more='foreach = { x = ["a b", "c"] }'))
    done = mini.command("config", "check", code=2)
    (told,) = [line for line in (done.stdout + done.stderr).splitlines() if "ops/a.toml" in line]
    assert "ops[0].name is 'm_a b', not a name of" in told
    assert "i = [0, 1]" in told
    mini.write("ops/a.toml", OP.format(name="m b", more=""))
    done = mini.command("config", "check", code=2)
    assert "foreach" not in done.stdout + done.stderr


def test_a_template_of_too_many_ops_is_refused(mini: Mini) -> None:
    numbers = ", ".join(map(str, range(101)))
    more = f"foreach = {{ a = [{numbers}], b = [{numbers}] }}"
    mini.write("ops/a.toml", OP.format(name="mm_{a}_{b}", more=more))
    done = mini.command("config", "check", code=2)
    assert "stands for 10201 ops, more than 10000 ops" in done.stdout + done.stderr
