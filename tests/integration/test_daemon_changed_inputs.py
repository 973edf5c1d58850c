"""An op that a client runs may not change its inputs, unless `mutates` names them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from daemon_workspace import Served

SAME = """
[[ops]]
name = "clipped"
reference = "scripts/clipped.py:reference"
input_names = ["x"]
execution_mode = "client_side"

[[ops]]
name = "clipped_there"
reference = "scripts/clipped.py:reference"
input_names = ["x"]
execution_mode = "client_side"
mutates = ["x"]
"""


@pytest.fixture
def clipping(unserved: Served) -> Served:
    unserved.write("gpuemu.toml", (unserved.root / "gpuemu.toml").read_text() + SAME)
    unserved.write("scripts/clipped.py", "def reference(x):\n    return x.clip(-0.5, 0.5)\n")
    unserved.start()
    return unserved


def in_place(inputs: dict[str, Any]) -> Any:
    return inputs["x"].clip(-0.5, 0.5, out=inputs["x"])


def by_another_name(inputs: dict[str, Any]) -> Any:
    x = inputs.pop("x")
    y = x.clip(-0.5, 0.5)
    x[...] = np.nan
    return y


def honest(inputs: dict[str, Any]) -> Any:
    x = inputs["x"] = inputs["x"].copy()
    return x.clip(-0.5, 0.5, out=x)


@pytest.mark.parametrize("op", [in_place, by_another_name])
def test_a_changed_input_is_a_failure(clipping: Served, op: Callable[..., Any]) -> None:
    with clipping.client() as client:
        found = client.fuzz_op_client_side("clipped", run_op=op, iterations=20, seed=3)
        assert (found.passed, found.failed) == (0, 20)
        for result in found.failures:
            (failure,) = result.failures
            assert (failure.kind, failure.output) == ("InputModified", "x")
            assert "elements of input 'x'" in failure.message
        kept = client.get_result(found.failures[0].seed)
        assert kept is not None
        assert kept.verdict == "failed"
        assert len(client.list_failures(100)) == 20


@pytest.mark.parametrize("op", [in_place, by_another_name, honest])
def test_a_change_that_is_declared_passes(clipping: Served, op: Callable[..., Any]) -> None:
    with clipping.client() as client:
        assert client.fuzz_op_client_side("clipped_there", op, iterations=20, seed=3).passed == 20


def test_an_op_that_changes_copies_passes(clipping: Served) -> None:
    with clipping.client() as client:
        found = client.fuzz_op_client_side("clipped", honest, iterations=20, seed=3)
        assert (found.passed, found.failed) == (20, 0)


@pytest.mark.parametrize("wrong", [["x"], {"y": 1}, {"x": 0}, {"x": True}, {"x": "all"}, 3])
def test_what_a_client_says_of_changes_must_be_readable(daemon: Served, wrong: Any) -> None:
    x = {"shape": [1], "dtype": "float32", "data": "AACAPw=="}
    request = {"type": "SubmitOutput", "op_name": "double", "inputs": {"x": x}, "output": x}
    reply = daemon.ask({**request, "kwargs": {}, "seed": 1, "modified": wrong})
    assert (reply["type"], reply["code"]) == ("Error", "InvalidRequest"), reply


def test_a_wrong_output_is_told_too(clipping: Served) -> None:
    def op(inputs: dict[str, Any]) -> Any:
        inputs["x"] += 1
        return inputs["x"]

    with clipping.client() as client:
        found = client.fuzz_op_client_side("clipped", op, iterations=1, seed=3)
        kinds = [failure.kind for failure in found.failures[0].failures]
        assert kinds[0] == "InputModified"
        assert "ToleranceExceeded" in kinds
