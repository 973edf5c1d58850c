"""Gradients through the daemon: judged as `run` judges them, and no pass where none came."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
from daemon_workspace import Served
from numpy.typing import NDArray
from warm import warm_command

from gpuemu_flow.client import ValidationError
from gpuemu_flow.frameworks.pytorch import validate_pytorch, with_gradients
from gpuemu_flow.model.errors import UsageError
from gpuemu_flow.numerics.gradients import cotangent

pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch"),
    pytest.mark.ci,
]

CONFIG = """
[project]
name = "served"
[validation]
dtypes = ["float32"]
cases = 2
cause_budget = 0
"""
OP = """
[[ops]]
name = "{name}"
{op}
reference = {{ kind = "torch", file = "reference.py", {what} }}
gradients = true
timeout = 600
schema = {{ dims = {{ M = [1, 3] }}, inputs = {{ x = ["M", 4] }}, output = ["M", 4] }}
"""
MODEL = """
from torch import nn


def square(x):
    return x * x


class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.linear = nn.Linear(n, n)

    def forward(self, x):
        return {forward}
"""
DETACHED = "x @ self.linear.weight.T + self.linear.bias.detach()"
MODULE = 'module = "Model", init = { n = 4 }'
FUNCTION = 'function = "square"'


@pytest.fixture
def served(unserved: Served) -> Served:
    config = CONFIG
    for name, what, file in (
        ("module", MODULE, "right.py"),
        ("detached", MODULE, "wrong.py"),
        ("square", FUNCTION, "right.py"),
    ):
        op = f'op = {{ kind = "torch", file = "{file}", {what} }}'
        config += OP.format(name=name, op=op, what=what)
    config += OP.format(name="theirs", op='execution_mode = "client_side"', what=FUNCTION)
    unserved.write("gpuemu.toml", config)
    unserved.write("reference.py", MODEL.format(forward="self.linear(x)"))
    unserved.write("right.py", MODEL.format(forward=DETACHED.replace(".detach()", "")))
    unserved.write("wrong.py", MODEL.format(forward=DETACHED))
    unserved.start()
    return unserved


def outputs(x: NDArray[Any], factor: float = 1.0) -> dict[str, NDArray[Any]]:
    """Square and its gradient, as another framework would compute them."""
    dy = cotangent("output", x.shape, None, {}).astype(x.dtype)
    return {"output": x * x, "d/dx": factor * 2 * x * dy}


def test_the_daemon_judges_gradients_as_run_does(served: Served) -> None:
    options: dict[str, Any] = {"iterations": 3, "seed": 1, "dtypes": ["float32"]}
    with served.client() as client:
        assert client.fuzz_op("module", **options).verdict == "passed"
        assert client.fuzz_op("square", **options).verdict == "passed"
        found = client.fuzz_op("detached", **options)
        assert (found.verdict, found.failed) == ("failed", 3)
        (failure,) = found.failures[0].failures
        assert failure.output == "d/dself.linear.bias"
        again = client.reproduce(found.failures[0].seed, rerun=True).result
        assert [each.output for each in again.failures] == ["d/dself.linear.bias"]


@pytest.mark.parametrize("op", ["square", "theirs"])
def test_an_output_without_its_gradients_is_no_pass(served: Served, op: str) -> None:
    x = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
    with served.client() as client:
        alone = client.validate_op(op, {"x": x}, x * x)
        assert (alone.verdict, bool(alone)) == ("inconclusive", False)
        assert alone.notes[0].startswith("no verdict on 'd/dx': the outputs were submitted without")
        assert alone.unjudged == 0.5
        assert client.validate_op(op, {"x": x}, x * x + 1).verdict == "failed"
        assert client.validate_op(op, {"x": x}, outputs(x)).verdict == "passed"
        wrong = client.validate_op(op, {"x": x}, outputs(x, 1.01))
        assert [each.output for each in wrong.failures] == ["d/dx"]
        unknown = client.validate_op(op, {"x": x}, {"output": x * x, "d/dy": x})
        assert unknown.verdict == "error"


def test_what_a_client_of_pytorch_computes_can_be_submitted(served: Served) -> None:
    x = np.linspace(-2, 2, 12, dtype=np.float16).reshape(3, 4)
    with served.client() as client:
        found = client.validate_op("theirs", {"x": x}, with_gradients(lambda x: x * x, {"x": x}))
        assert found.verdict == "passed"
        wrong = with_gradients(lambda x: x.detach() * x, {"x": x})
        assert client.validate_op("theirs", {"x": x}, wrong).verdict == "failed"
    with pytest.raises(UsageError, match="2 outputs"):
        with_gradients(lambda x: (x, x), {"x": x})


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_context_submits_gradients_with_the_output(served: Served, dtype: str) -> None:
    import torch

    x = torch.linspace(-2, 2, 12).reshape(3, 4).to(getattr(torch, dtype))
    for tensor in (x, x.clone().requires_grad_(True)):
        for gradients in (True, ["x"]):
            with (
                served.client() as client,
                validate_pytorch(client, "theirs", {"x": tensor}, gradients=gradients) as context,
            ):
                given = context.inputs["x"]
                context.set_output(given * given)
            assert context.result.verdict == "passed"
    assert not x.requires_grad
    with served.client() as client:
        with (
            pytest.raises(ValidationError, match="d/dx"),
            validate_pytorch(client, "theirs", {"x": x}, gradients=True) as context,
        ):
            context.set_output(context.inputs["x"].detach() * context.inputs["x"])
        with (
            pytest.raises(UsageError, match=r"depends on no input.*compute it from context.inputs"),
            validate_pytorch(client, "theirs", {"x": x}, gradients=True) as context,
        ):
            context.set_output(x * x)
        with (
            pytest.raises(ValidationError),  # no verdict without gradients, as before
            validate_pytorch(client, "theirs", {"x": x}) as context,
        ):
            context.set_output(x * x)


def test_gradients_of_a_context_that_cannot_be_had() -> None:
    x = np.zeros((3, 4), np.float32)
    for more, text in (
        ({"gradients": ["y"]}, "'y', which is no input of floats"),
        (
            {"gradients": True, "ref_fn": abs},
            "check_backward=True judges by the autograd of ref_fn",
        ),
    ):
        with (
            pytest.raises(UsageError, match=text) as caught,
            validate_pytorch("theirs", {"x": x}, **more),
        ):
            pass
        assert caught.value.slug == "validate-arguments"


def test_parameters_that_were_not_submitted_have_no_verdict(served: Served) -> None:
    x = np.zeros((3, 4), np.float32)
    with served.client() as client:
        found = client.validate_op("module", {"x": x}, {"output": x, "d/dx": x})
        assert "'d/dself.linear.bias', 'd/dself.linear.weight'" in found.notes[0]
        assert {each.output for each in found.failures} == {"output", "d/dx"}


def test_a_run_counts_no_submission_without_gradients_as_passed(served: Served) -> None:
    with served.client() as client:
        cases = client.get_test_batch("theirs", 2, seed=1, dtypes=["float32"])
        for case in cases:
            client.submit_output("theirs", case.inputs, case.inputs["x"] ** 2, case.seed)
        done = warm_command(("run", "theirs"), served.root, served.environ)
        assert done.returncode == 4, done.stdout
        assert "inconclusive" in done.stdout
        whole = [outputs(case.inputs["x"]) for case in cases]
        found = client.submit_outputs("theirs", cases, whole)
        assert [each.verdict for each in found] == ["passed", "passed"]
    done = warm_command(("run", "theirs"), served.root, served.environ)
    assert done.returncode == 0, done.stdout
