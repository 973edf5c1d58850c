"""After submissions of every kind, the commands say the same of them, and count each once."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from daemon_workspace import Served, softmax
from warm import warm_command

CONFIG = """\
[project]
name = "agree"

[validation]
dtypes = ["float32"]
cases = 2
cause_budget = 0

[[ops]]
name = "softmax"
reference = "scripts/softmax.py:reference"
input_names = ["x"]
execution_mode = "client_side"

[[ops]]
name = "other"
reference = "scripts/softmax.py:reference"
input_names = ["x"]
execution_mode = "client_side"

[[ops]]
name = "right"
op = "scripts/twice.py:double"
reference = "scripts/double.py:reference"
input_names = ["x"]

[[ops]]
name = "crashes"
op = "scripts/crashes.py:op"
reference = "scripts/double.py:reference"
input_names = ["x"]
"""

ANSWERS: dict[str, Callable[[Any], Any]] = {
    "right": softmax,
    "wrong": lambda x: softmax(x) + np.float32(0.25),
    "of another shape": lambda x: softmax(x)[..., None],
    "of another dtype": lambda x: softmax(x).astype(np.float64),
    "not finite": lambda x: softmax(x) * np.float32("nan"),
    "not written": lambda x: np.zeros((0, *x.shape), x.dtype),
}
SAME = ("verdict", "cases", "passed", "failed", "errors", "inconclusive", "skipped", "unjudged")


def shown(served: Served, *command: str) -> dict[str, Any]:
    done = warm_command((*command, "--format", "json"), served.root, served.environ)
    assert "Traceback" not in done.stderr, done.stderr
    return dict(json.loads(done.stdout))


def summaries(report: dict[str, Any]) -> dict[str, list[Any]]:
    return {r["op"]: [r[name] for name in SAME] for r in report["results"]}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.ci
def test_the_commands_agree(unserved: Served, seed: int) -> None:
    draw = random.Random(seed)
    unserved.write("gpuemu.toml", CONFIG)
    unserved.write("scripts/crashes.py", "def op(x):\n    raise ValueError('no')\n")
    unserved.start()
    newest: dict[tuple[str, int], str] = {}
    kinds = [["right"], ["wrong"], list(ANSWERS)][min(seed, 2)]
    with unserved.client() as client:
        for op in draw.sample(["softmax", "other"], k=draw.choice([1, 2])):
            cases = client.get_test_batch(op, 3, seed=seed, dtypes=["float32"])
            for case in [case for case in cases if case.inputs["x"].size] + draw.sample(cases, 1):
                if not case.inputs["x"].size:
                    continue
                kind = draw.choice(kinds)
                output = ANSWERS[kind](case.inputs["x"])
                result = client.submit_output(op, case.inputs, output, case.seed)
                newest[op, case.seed] = result.verdict
                assert result.passed == (kind == "right"), kind
    ran = summaries(shown(unserved, "run"))
    for name in ("softmax", "other"):
        told = Counter(verdict for (op, _), verdict in newest.items() if op == name)
        counts = dict(zip(SAME, ran[name], strict=True))
        assert counts["cases"] == sum(told.values())
        assert counts["passed"] == told["passed"]
        assert counts["failed"] + counts["errors"] == told["failed"] + told["error"]
        assert counts["verdict"] == ("skipped" if not told else counts["verdict"])
        assert (counts["verdict"] == "passed") == (set(told) == {"passed"})
    assert summaries(shown(unserved, "report")) == ran
    assert shown(unserved, "status")["verdicts"] == Counter(values[0] for values in ran.values())
    assert summaries(shown(unserved, "ci")) == ran
    assert summaries(shown(unserved, "report")) == ran
    rows = {row["op"]: row for row in shown(unserved, "coverage")["rows"]}
    assert (rows["right"]["cases"], rows["right"]["unjudged"]) == (2, 0)
    assert (rows["crashes"]["cases"], rows["crashes"]["unjudged"]) == (0, 2)
