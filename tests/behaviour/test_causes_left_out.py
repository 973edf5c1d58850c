"""Many failing ops: a report looks for some causes, names the rest, and goes on the next time."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mini_workspace import Mini

from gpuemu_flow.fuzz.causes import MOST_OPS

HEAD = '[project]\nname = "many"\n[validation]\ndtypes = ["float32"]\ncases = 6\nseed = 3\n'
OP = """
[[ops]]
name = "op{n}"
op = "ops.py:op{n}"
reference = "ref.py:reference"
input_names = ["x"]
schema = {{ dims = {{ N = [16, 20, 24] }}, inputs = {{ x = ["N"] }}, output = ["N"] }}
"""
COUNT = 4 * MOST_OPS  # each uses a part of its budget
BUDGET = 16


def many(mini: Mini) -> Mini:
    """Ops that fail without anything in common, so that experiments are made on each."""
    bugs = "import numpy as np\n"
    for n in range(COUNT):
        bugs += (
            f"def op{n}(x):\n    bits = x.view(np.uint32).sum(dtype=np.uint64) + {n}\n"
            "    wild = np.random.default_rng(int(bits)).normal(size=x.shape)\n"
            "    return (x + wild).astype(x.dtype)\n"
        )
    mini.write("ops.py", bugs)
    mini.write("ref.py", "def reference(x):\n    return x\n")
    budget = HEAD + f"cause_budget = {BUDGET}\n"
    mini.write("gpuemu.toml", budget + "".join(OP.format(n=n) for n in range(COUNT)))
    return mini


def left_out(report: dict[str, Any]) -> set[str]:
    found = [p for p in report["problems"] if p["slug"] == "causes-cut-short"]
    named = [p["message"].rpartition(": ")[2] for p in found if "no causes were" in p["message"]]
    return {name for text in named for name in text.split(", ")}


@pytest.mark.ci
def test_a_report_uses_so_many_budgets_and_the_next_goes_on(mini: Mini) -> None:
    many(mini)
    before, rounds = {f"op{n}" for n in range(COUNT)}, 0
    while before:
        done = mini.command("run", "--format", "json", code=1)
        now = left_out(json.loads(done.stdout))
        looked = [line for line in done.stderr.splitlines() if "looking for the cause" in line]
        assert now < before, "each run looks for some"
        assert len(looked) == len(before) - len(now), "each is announced, none twice"
        assert rounds > 0 or now, "not all of them at once"
        assert len(now) == 0 or "causes-cut-short" in done.stdout
        before, rounds = now, rounds + 1
    again = mini.command("run", "--format", "json", code=1)
    assert "looking for" not in again.stderr, "all is known"
    assert not left_out(json.loads(again.stdout))
