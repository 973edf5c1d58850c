"""A reference that gives other outputs when it is evaluated again is named, and not the op."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from mini_workspace import Mini, make_one_op

from gpuemu_flow.judging.unsteady_reference import blamed, unsteady_output
from gpuemu_flow.judging.verdicts import UNSTEADY
from gpuemu_flow.types import CheckResult, Failure, FailureKind, Verdict

SCHEMA = """
dims = { B = [1, 3], N = { min = 1, max = 90 } }
inputs = { x = ["B", "N"] }
output = ["B", "N"]
"""
STATEFUL = """
n = 0


def reference(x):
    global n
    n += 1
    return x * 2 + (n % 5 == 0)
"""
RANDOM = """
import numpy as np


def reference(x):
    return x * 2 + np.random.random(x.shape)
"""


def made(folder: Path, reference: str, op: str = "return x * 2") -> Mini:
    mini = make_one_op(folder, takes="x", op=op, reference="return x * 2", schema=SCHEMA)
    mini.write("reference.py", reference)
    mini.edit("gpuemu.toml", "cases = 6", "cases = 12")
    return mini


@pytest.mark.parametrize("reference", [STATEFUL, RANDOM], ids=["stateful", "random"])
@pytest.mark.parametrize("command", [("run",), ("fuzz", "it", "-n", "20")], ids=["run", "fuzz"])
def test_the_reference_is_named(tmp_path: Path, reference: str, command: tuple[str, ...]) -> None:
    mini = made(tmp_path, reference)
    found = json.loads(mini.command(*command, "--format", "json", code=3).stdout)
    assert {failure["kind"] for failure in found["failures"]} == {"ReferenceError"}
    shown = mini.command(*command, code=3).stdout
    assert "the reference, evaluated twice on the same inputs, gives" in shown
    assert "ToleranceExceeded" not in shown


def test_a_steady_reference_is_not_blamed_for_a_wrong_op(tmp_path: Path) -> None:
    op = "return x * 2 + (x.shape[1] > 40)"
    mini = made(tmp_path, "def reference(x):\n    return x * 2\n", op)
    found = mini.run(code=1)
    assert {failure["kind"] for failure in found["failures"]} == {"ToleranceExceeded"}


def wrong() -> CheckResult:
    return CheckResult(Verdict.FAILED, (Failure(FailureKind.TOLERANCE, "wrong"),))


@pytest.mark.parametrize(
    ("first", "again", "unsteady"),
    [
        ([1.0, 2.0], [1.0, 2.0], False),
        ([1.0, np.nan, np.inf], [1.0, np.nan, np.inf], False),
        ([1.0, 2.0], [1.0, 2.5], True),
        ([1.0, 2.0], [1.0, np.nan], True),
        ([1.0, np.inf], [1.0, -np.inf], True),
        ([1.0, np.inf], [1.0, 3.0], True),
        # Threads that add in another order, and what is left of numbers that cancel.
        ([1.0, 2.0], [1.0, 2.0 + 1e-12], False),
        ([1.0, 2.0, 3e-17], [1.0, 2.0, 1e-17], False),
        # Beside a value near the end of the range every other one is small.
        ([1.0, 2.0, 3e38], [2.0, 3.0, 3e38], True),
        ([1.0, 2.0], [[1.0], [2.0]], True),
    ],
)
def test_differences_that_count(first: list[float], again: list[float], unsteady: bool) -> None:
    def evaluate(inputs: object, *, shadow: bool = False) -> dict[str, np.ndarray]:
        return {"y": np.array(again)}

    inputs = {"x": np.ones(2, np.float32)}
    found = unsteady_output(evaluate, inputs, {"y": np.array(first)})
    assert (found is not None) == unsteady
    if found is not None:
        told = blamed(wrong(), found)
        assert told.verdict is Verdict.ERROR and told.failures[0].why == UNSTEADY
    meant = unsteady_output(evaluate, inputs, {"y": np.array(first)}, random=["y"])
    assert meant is None, "an output that is meant to be random"


def test_it_counts_which_inputs_the_outputs_were_made_from() -> None:
    """A reference that was run in the case's own dtype rounds otherwise than one in float64."""

    def evaluate(inputs: dict[str, np.ndarray], *, shadow: bool = False) -> dict[str, np.ndarray]:
        return {"y": (inputs["x"] + inputs["x"].dtype.type(1e8)) - inputs["x"].dtype.type(1e8)}

    inputs = {"x": np.array([1.0, 3.0], np.float32)}
    for made_from in (inputs["x"], inputs["x"].astype(np.float64)):
        expected = evaluate({"x": made_from})
        assert unsteady_output(evaluate, inputs, expected) is None
