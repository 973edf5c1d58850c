"""Ops and references that crash, hang or lie: each costs its own cases, and the run goes on."""

from __future__ import annotations

from typing import Any

import pytest
from mini_workspace import Mini

HEAD = """
import base64, json, os, sys, time
import numpy as np
request = json.load(sys.stdin)
x = request["inputs"]["x"]
def reply(shape=None, dtype=None, data=None):
    data = x["data"] if data is None else data
    print(json.dumps({"shape": shape or x["shape"], "dtype": dtype or x["dtype"], "data": data}))
"""

# name: (body of the op's script, slug, words of the message)
BAD = {
    "crashes": ("os.abort()", "op-crashed", ["SIGABRT"]),
    "segfaults": ("import ctypes; ctypes.string_at(0)", "op-crashed", ["SIGSEGV"]),
    "exits": ("sys.exit(7)", "op-exit-code", ["7"]),
    "raises": ("raise ValueError('no such tile')", "op-exception", ["no such tile", ".py:8)"]),
    "hangs": ("time.sleep(60)", "op-timeout", ["3 s"]),
    "prints_junk": ("print('debug: x')\nreply()", "op-output-junk", []),
    "prints_nothing": ("pass", "op-output-missing", []),
    "not_json": ("print('{')", "op-output-junk", []),
    "short_data": ("reply(data=x['data'][:4])", "op-output-length", []),
    "unknown_dtype": ("reply(dtype='float33')", "op-output-dtype", ["float33"]),
    "negative_shape": ("reply(shape=[-3])", "op-output-shape", []),
    "eats_memory": ("a = np.ones(1 << 33)", "op-out-of-memory", []),
    "does_not_parse": ("def (:", "op-not-loadable", []),
}

OP = """
[[ops]]
name = "{name}"
op = "scripts/{name}.py"
reference = "scripts/relu_ref.py"
input_names = ["x"]
timeout = {timeout}
memory_limit = "1GB"
schema = {{ dims = {{ N = [1, 7, 32] }}, inputs = {{ x = ["N"] }}, output = ["N"] }}
"""


@pytest.fixture
def troubled(mini: Mini) -> Mini:
    """A workspace of bad ops among good ones, two cases each."""
    mini.edit("gpuemu.toml", "cases = 4", "cases = 2\ncause_budget = 0")
    text = (mini.root / "gpuemu.toml").read_text()
    for name, (body, _, _) in BAD.items():
        text += OP.format(name=name, timeout=3 if name == "hangs" else 600)
        mini.write(f"scripts/{name}.py", HEAD + body + "\n")
    mini.write("gpuemu.toml", text)
    return mini


def result_of(report: dict[str, Any], op: str) -> dict[str, Any]:
    return next(dict(r) for r in report["results"] if r["op"] == op)


@pytest.mark.ci
def test_each_kind_of_trouble_is_an_error_and_the_run_goes_on(troubled: Mini) -> None:
    report = troubled.run(code=3)
    for op in ("scale", "total", "relu"):
        assert result_of(report, op)["verdict"] == "passed"
    for op, (_, slug, words) in BAD.items():
        result = result_of(report, op)
        assert (result["verdict"], result["errors"]) == ("error", 2), op
        failure = next(f for f in report["failures"] if f["op"] == op)
        assert failure["kind"] == "ExecutionError"
        assert slug in failure["message"], op
        for word in words:
            assert word in failure["message"], op
    assert report["problems"] == []
    text = troubled.command("run", code=3).stdout
    assert text.count("ExecutionError") >= len(BAD), "each cause is shown, folded over its cases"
    again = troubled.run(code=3)
    stages = {name.split(":")[0] for name in again["executed"]}
    assert not any(n.split(":")[1] in ("scale", "total", "relu") for n in again["executed"])
    assert "op" in stages, "errors may not come again, so they are tried again"


def test_a_failure_outranks_an_error(mini: Mini) -> None:
    mini.edit("scripts/scale.py", "* 3)", "* 3.5)")
    mini.write("scripts/total.py", "def total(x):\n    raise ValueError\n")
    mini.without_causes()
    assert mini.run("scale", "total", code=1)["results"][0]["verdict"] == "failed"


def test_fail_fast_starts_nothing_more(mini: Mini) -> None:
    mini.edit("scripts/scale.py", "* 3)", "* 3.5)")
    report = mini.run("--fail-fast", "-j", "1", code=1)
    assert result_of(report, "scale")["verdict"] == "failed"
    assert len(report["executed"]) < 19


def test_what_cannot_be_run_is_skipped_and_counted(mini: Mini) -> None:
    text = (mini.root / "gpuemu.toml").read_text()
    mini.write(
        "gpuemu.toml",
        text + '\n[[ops]]\nname = "mine"\nreference = "scripts/scale_ref.py"\n'
        'execution_mode = "client_side"\ninput_names = ["x"]\n',
    )
    report = mini.run()
    skipped = result_of(report, "mine")
    assert skipped["verdict"] == "skipped"
    assert skipped["reason"]
    assert report["tasks"]["skipped"] == 1


def test_nothing_validated_is_not_success(mini: Mini) -> None:
    mini.write(
        "gpuemu.toml",
        '[[ops]]\nname = "mine"\nreference = "scripts/scale_ref.py"\n'
        'execution_mode = "client_side"\ninput_names = ["x"]\n',
    )
    assert mini.run(code=4)["results"][0]["verdict"] == "skipped"


def test_text_shows_the_scripts_own_words(mini: Mini) -> None:
    mini.write(
        "scripts/relu.py",
        """
        import sys
        request = sys.stdin.read()
        print("tile 3 is out of range", file=sys.stderr)
        raise IndexError("tile 3")
        """,
    )
    out = mini.command("run", "relu", code=3).stdout
    assert "tile 3 is out of range" in out
    assert "scripts/relu.py:4" in out
    assert "reproduce: gpuemu-flow reproduce" in out


def test_hostile_output_cannot_move_the_cursor(mini: Mini) -> None:
    mini.write("scripts/scale.py", "def scale(x):\n    raise ValueError('\\x1b[2J\\x07 wiped')\n")
    out = mini.command("run", "scale", code=3).stdout
    assert "\x1b" not in out
    assert "\x07" not in out
    assert "wiped" in out
