"""The pytest plugin takes outputs from the inputs that an op changed in place, as ``run`` does."""

from __future__ import annotations

import importlib.util

import pytest
from pytest_workspace import CONFIG, Place

OPS = """
[[ops]]
name = "doubled"
reference = "ref.py:double"
input_names = ["x"]
execution_mode = "client_side"
mutates = ["x"]

[[ops]]
name = "added"
reference = "ref.py:pair"
input_names = ["a", "b"]
execution_mode = "client_side"
mutates = ["a"]
[ops.schema]
dims = { N = [5, 8] }
inputs = { a = ["N"], b = ["N"] }
outputs = { a = ["N"], gap = ["N"] }
"""
TESTS = """
import numpy as np

def marked(op):
    return pytest.mark.gpuemu(op, cases=3, dtypes=["float32"], strategies=["normal"])

@marked("doubled")
def test_right(gpuemu_case):
    gpuemu_case["x"][...] *= 2
    gpuemu_case.check(None)

@marked("doubled")
def test_wrong(gpuemu_case):
    gpuemu_case["x"][...] *= 3
    gpuemu_case.check(None)

@marked("doubled")
def test_changes_a_copy(gpuemu_case):
    x = gpuemu_case["x"].copy()
    x *= 2
    gpuemu_case.check(None)

@marked("doubled")
def test_does_nothing(gpuemu_case):
    gpuemu_case.check(None)

@marked("double")
def test_may_change_nothing(gpuemu_case):
    gpuemu_case["x"][...] *= 2
    gpuemu_case.check(None)

@marked("added")
def test_returns_one_of_two(gpuemu_case):
    a, b = gpuemu_case["a"], gpuemu_case["b"]
    gap = a - b
    a += b
    gpuemu_case.check(gap)
"""


@pytest.mark.ci
def test_outputs_are_taken_from_inputs_that_may_change(tested: Place) -> None:
    (tested.folder / "gpuemu.toml").write_text(CONFIG + OPS)
    ran = tested.pytest(TESTS)
    kinds: dict[str, set[str]] = {}
    for case in ran.junit:
        failure = case.find("failure")
        told = "passed" if failure is None else (failure.text or "")
        words = ("passed", "op-output-missing", "ToleranceExceeded")
        name = case.attrib["name"].partition("[")[0]
        kinds.setdefault(name, set()).update(word for word in words if word in told)
    assert kinds == {
        "test_right": {"passed"},
        "test_wrong": {"ToleranceExceeded"},
        "test_changes_a_copy": {"ToleranceExceeded"},
        "test_does_nothing": {"op-output-missing"},
        "test_may_change_nothing": {"op-output-missing"},
        "test_returns_one_of_two": {"passed"},
    }, ran.text


GRADIENTS = """
[[ops]]
name = "square"
reference = { kind = "torch", file = "ref_torch.py", function = "square" }
input_names = ["x"]
execution_mode = "client_side"
gradients = true
"""
GRADIENT_TESTS = """
from gpuemu_flow.frameworks.pytorch import with_gradients

marked = pytest.mark.gpuemu("square", cases=2, dtypes=["float32"], strategies=["normal"])

@marked
def test_with(gpuemu_case):
    gpuemu_case.check(with_gradients(lambda x: x * x, gpuemu_case.inputs))

@marked
def test_without(gpuemu_case):
    gpuemu_case.check(gpuemu_case["x"] ** 2)
"""


@pytest.mark.ci
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch")
def test_a_test_without_the_gradients_asked_for_fails(tested: Place) -> None:
    """A skipped one would be a green CI with a wrong backward."""
    (tested.folder / "gpuemu.toml").write_text(CONFIG + GRADIENTS)
    (tested.folder / "ref_torch.py").write_text("def square(x):\n    return x * x\n")
    ran = tested.pytest(GRADIENT_TESTS)
    assert ran.counts == {"passed": 2, "failed": 2}, ran.text
    assert ran.text.count("pytest-bad-output: no gradient was given; the op 'square' has") >= 2
