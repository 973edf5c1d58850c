"""`gpuemu-flow config check`: every problem at once, and whose file it is in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mini_workspace import Mini

WRONG = """
[validation]
dtypes = ["float32", "floot16"]
tolerances = { float32 = nan, float16 = { atol = -1.0 } }

[[ops]]
name = "scale"
op = "scripts/scale.py:scale"
reference = "/etc/passwd"
schema = { dims = { N = [] }, inputs = { x = ["N"] }, output = ["N"] }

[[ops]]
name = "scale"
op = "scripts/scael.py"
reference = "scripts/scale_ref.py"
"""


def test_every_error_of_a_file_is_shown_at_once_with_its_line(mini: Mini) -> None:
    shutil.rmtree(mini.root / ".gpuemu-cache")
    mini.write("gpuemu.toml", WRONG)
    done = mini.command("config", "check", code=2)
    places = [line.split(": ")[:2] for line in done.stderr.splitlines()[:-1]]
    assert places == [
        ["gpuemu.toml:2", "config-unknown-dtype"],
        ["gpuemu.toml:3", "config-tolerance"],
        ["gpuemu.toml:3", "config-tolerance"],
        ["gpuemu.toml:8", "config-path-outside"],
        ["gpuemu.toml:9", "schema-dim-empty"],
        ["gpuemu.toml:12", "config-duplicate-name"],
        ["gpuemu.toml:13", "config-path-missing"],
    ]
    assert "did you mean 'scripts/scale.py'?" in done.stderr
    assert done.stderr.splitlines()[-1] == "gpuemu.toml: 7 errors"
    # A run says the same and starts nothing.
    refused = mini.command("run", "--format", "json", code=2)
    assert refused.stdout == ""
    assert refused.stderr.splitlines() == done.stderr.splitlines()[:-1]
    assert not (mini.root / ".gpuemu-cache" / "blobs").exists()


def test_unknown_keys_are_warnings_and_errors_when_strict(mini: Mini) -> None:
    mini.edit("gpuemu.toml", "cases = 4", "cases = 4\ncolour = 4")
    done = mini.command("config", "check")
    assert "config-unknown-key" in done.stdout
    assert done.stdout.endswith("gpuemu.toml: ok\n")
    strict = mini.command("config", "check", "--strict", code=2)
    assert "config-unknown-key" in strict.stderr
    assert "ok" not in strict.stdout


def test_a_run_does_without_no_wall_whose_key_is_misspelt(mini: Mini) -> None:
    mini.edit("gpuemu.toml", "[validation]", "[sandbox]\naprt = ['scripts']\n[validation]")
    refused = mini.command("run", "--format", "json", code=2)
    assert "unknown key 'sandbox.aprt'; did you mean 'apart'?" in refused.stderr
    assert refused.stdout == ""


def test_another_file_may_be_named(mini: Mini) -> None:
    mini.write("elsewhere/other.toml", "[project]\nname = 3\n")
    assert (
        "other.toml:2: config-type"
        in mini.command("config", "check", "elsewhere/other.toml", code=2).stderr
    )
    mini.command("config", "check", "no-such.toml", code=2)


def test_users_and_daemons_files_count_below_the_projects(mini: Mini) -> None:
    """Seen in what a run does, not only in what the loader says."""
    mini.edit("gpuemu.toml", "cases = 4\n", "")
    mini.write("home/.config/gpuemu/config.toml", "[validation]\ncases = 3\ndtypes = ['int8']\n")
    mini.write("home/.gpuemu/daemon.toml", "[validation]\ncases = 2\nnan_policy = 'strict'\n")
    (result,) = mini.run("scale")["results"]
    assert (result["dtype"], result["cases"]) == ("float32", 3)
    mini.command("run")
    assert mini.command("run").stdout.startswith("up to date")
    mini.write("home/.config/gpuemu/config.toml", "[validation]\ncases = 5\n")
    assert mini.run("scale")["results"][0]["cases"] == 5
    mini.write("home/.config/gpuemu/config.toml", "[validation]\ncases = 'five'\n")
    assert "config.toml:2: config-type" in mini.command("run", code=2).stderr


def test_a_misspelt_key_is_named_where_the_right_one_is_missing(mini: Mini) -> None:
    mini.edit(
        "gpuemu.toml", 'reference = "scripts/relu_ref.py"', 'refrence = "scripts/relu_ref.py"'
    )
    done = mini.command("run", code=2)
    assert "lacks the key 'reference'; 'refrence' is no key; rename it?" in done.stderr


def test_a_run_names_unknown_keys_beside_what_it_stops_at(mini: Mini) -> None:
    mini.edit("gpuemu.toml", 'op = "scripts/scale.py:scale"', 'opp = "scripts/scale.py:scale"')
    mini.edit("gpuemu.toml", 'reference = "scripts/relu_ref.py"', 'reff = "scripts/relu_ref.py"')
    for command in ("run", "list"):
        refused = mini.command(command, code=2).stderr
        assert "config-missing-key: ops[2] lacks the key 'reference'" in refused
        assert "unknown key 'ops[2].reff'" in refused
        assert "unknown key 'ops[0].opp'; did you mean 'op'?" in refused


def test_a_function_that_its_file_does_not_define_is_named(mini: Mini) -> None:
    """Of an input's `generate` as of ops and references; nothing is imported for it."""
    mini.write("scripts/gen.py", "raise SystemExit('imported')\n\ndef values(shape):\n    pass\n")
    mini.write("scripts/dynamic.py", "globals()['made'] = print\n")
    mini.write("scripts/beside.py", "def others(x):\n    pass\n")
    mini.write("scripts/star.py", "from gen import *\n")
    mini.write(
        "gpuemu.toml",
        """
        [project]
        name = "functions"
        [[ops]]
        name = "a"
        op = "scripts/dynamic.py:made"
        reference = "scripts/star.py:values"
        [ops.schema]
        dims = { N = [4] }
        inputs = { x = { dims = ["N"], generate = "scripts/gen.py:value" } }
        [[ops]]
        name = "b"
        op = "scripts/gen.py:values"
        reference = "scripts/beside.py:other"
        schema = { dims = { N = [4] }, inputs = { x = ["N"] } }
        """,
    )
    done = mini.command("config", "check", code=2)
    told = [line for line in done.stderr.splitlines() if "config-no-function" in line]
    assert len(told) == 2, done.stderr
    assert "there is no function 'value' in scripts/gen.py" in told[0]
    assert "there is no function 'other' in scripts/beside.py" in told[1]
    assert "did you mean 'values'?" in done.stderr


def test_keys_of_the_schema_beside_it_are_told_their_place(mini: Mini) -> None:
    mini.write(
        "gpuemu.toml",
        """
        [project]
        name = "beside"
        [[ops]]
        name = "a"
        op = "scripts/scale.py:scale"
        reference = "scripts/scale_ref.py"
        inputs = { x = ["N"] }
        """,
    )
    done = mini.command("config", "check", code=None)
    assert "'inputs' belongs in [ops.schema]" in done.stdout + done.stderr
    assert "input_names" not in done.stdout + done.stderr


def test_a_name_with_a_space_is_no_variable(mini: Mini) -> None:
    for value in ('["BAD NAME"]', '["TAB\\t*"]', '{ "BAD NAME" = "1" }'):
        mini.write(
            "gpuemu.toml",
            f"""
            [project]
            name = "variables"
            [[ops]]
            name = "a"
            op = "scripts/scale.py"
            reference = "scripts/scale_ref.py"
            env = {value}
            """,
        )
        done = mini.command("config", "check", code=2)
        assert "config-value" in done.stderr and "env" in done.stderr, done.stderr


def test_a_file_that_is_not_there_is_said_to_be_named_by_the_option(mini: Mini) -> None:
    done = mini.command("-f", "nope.toml", "config", "check", code=2)
    assert "config-not-found: -f names nope.toml, which does not exist" in done.stderr
    assert "GPUEMU_CONFIG" not in done.stderr


def test_a_path_that_is_not_there_comes_before_what_is_not_installed(mini: Mini) -> None:
    """The same is said with PyTorch and without it."""
    mini.write("hidden/sitecustomize.py", "import sys\nsys.modules['torch'] = None\n")
    done = subprocess.run(
        [sys.executable, "-m", "gpuemu_flow", "import", "kernelbench", "nowhere"],
        cwd=mini.root,
        env={**os.environ, "PYTHONPATH": str(mini.root / "hidden")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "import-not-found" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize(
    ("takes", "names"),
    [
        ("a, b", '["a", "b"]'),
        ("q, *, k, low=0", '["q", "k"]'),
        ("given", '["k"]'),
        ("input, low=0", ""),
        ("**given", ""),
    ],
)
def test_an_op_of_which_nothing_says_the_inputs_is_refused(
    tmp_path: Path, takes: str, names: str
) -> None:
    mini = Mini(tmp_path)
    for name in ("op", "ref"):
        mini.write(f"{name}.py", f"def f({takes}):\n    return 2 * given['k']\n")
    mini.write(
        "gpuemu.toml",
        '[project]\nname = "one"\n\n[[ops]]\nname = "it"\nop = "op.py:f"\nreference = "ref.py:f"\n',
    )
    said = mini.command("config", "check", code=2 if names else 0).stderr
    told = "gpuemu.toml:4: config-no-inputs: 'it' has no input_names and no schema; input_names = "
    assert (f"{told}{names}, as op.py:f takes them" in said) is bool(names), said
    if names:
        assert told in mini.command("run", code=2).stderr
