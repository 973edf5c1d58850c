"""An op that a client runs may not change its inputs, unless `mutates` names them.

It is judged by what the reference makes of the inputs as they were before the op ran.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from daemon_workspace import Served

from gpuemu_flow.client import Client, ClientError, ValidationError, ValidationResult, validate_op

pytestmark = pytest.mark.ci

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


def returns_nothing(inputs: dict[str, Any]) -> None:
    in_place(inputs)


def changes_a_copy(inputs: dict[str, Any]) -> None:
    honest(inputs)


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


@pytest.mark.parametrize("op", [in_place, by_another_name, honest, returns_nothing])
def test_a_change_that_is_declared_passes(clipping: Served, op: Callable[..., Any]) -> None:
    with clipping.client() as client:
        assert client.fuzz_op_client_side("clipped_there", op, iterations=20, seed=3).passed == 20


def test_an_op_that_returns_nothing_is_judged_by_the_input_that_it_may_change(
    clipping: Served,
) -> None:
    with clipping.client() as client:
        found = client.fuzz_op_client_side("clipped_there", changes_a_copy, iterations=20, seed=3)
        kinds = {failure.kind for result in found.failures for failure in result.failures}
        assert found.failed > 10
        assert kinds == {"ToleranceExceeded"}
        with pytest.raises(ClientError, match="client-no-output"):
            client.fuzz_op_client_side("clipped", returns_nothing, iterations=1, seed=3)


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


def to_zero(inputs: dict[str, Any]) -> Any:
    inputs["x"][...] = 0
    return inputs["x"]


def by_seed(client: Client, name: str, op: Callable[..., Any]) -> ValidationResult:
    case = client.get_test_case(name, seed=5, dtypes=["float32"])
    return client.submit_output(name, case.seed, op(case.inputs))


def by_inputs(client: Client, name: str, op: Callable[..., Any]) -> ValidationResult:
    case = client.get_test_case(name, seed=5, dtypes=["float32"])
    return client.submit_output(name, case.inputs, op(case.inputs), case.seed)


def together(client: Client, name: str, op: Callable[..., Any]) -> ValidationResult:
    case = client.get_test_case(name, seed=5, dtypes=["float32"])
    (result,) = client.submit_outputs(name, [case], [op(case.inputs)])
    return result


def in_context(client: Client, name: str, op: Callable[..., Any]) -> ValidationResult:
    x = np.linspace(-2, 2, 60, dtype=np.float32).reshape(3, 4, 5)[:, ::-1]
    with validate_op(client, name, inputs={"x": x}, raise_on_failure=False) as context:
        context.output = op({"x": x})
    assert context.result is not None
    return context.result


WAYS = [by_seed, by_inputs, together, in_context]


@pytest.mark.parametrize("op", [in_place, to_zero])
@pytest.mark.parametrize("way", WAYS)
def test_a_submitted_case_may_not_be_changed(
    clipping: Served, way: Callable[..., ValidationResult], op: Callable[..., Any]
) -> None:
    with clipping.client() as client:
        result = way(client, "clipped", op)
    kinds = [failure.kind for failure in result.failures]
    assert (result.verdict, kinds[0]) == ("failed", "InputModified")
    assert ("ToleranceExceeded" in kinds) is (op is to_zero)


@pytest.mark.parametrize("way", WAYS)
def test_a_declared_change_is_judged_by_the_inputs_before_it(
    clipping: Served, way: Callable[..., ValidationResult]
) -> None:
    with clipping.client() as client:
        assert way(client, "clipped_there", in_place).verdict == "passed"
        wrong = way(client, "clipped_there", to_zero)
    assert [failure.kind for failure in wrong.failures] == ["ToleranceExceeded"]


def test_a_new_daemon_knows_the_inputs_too(clipping: Served) -> None:
    with clipping.client() as client:
        case = client.get_test_case("clipped", seed=5, dtypes=["float32"])
    clipping.stop()
    clipping.start()
    with clipping.client() as client:
        result = client.submit_output("clipped", case.inputs, to_zero(case.inputs), case.seed)
    assert result.failures[0].kind == "InputModified"


def test_converted_inputs_are_the_clients_own(clipping: Served) -> None:
    with clipping.client() as client:
        case = client.get_test_case("clipped", seed=5, dtypes=["float32"])
        x = case.inputs["x"].astype(np.float64)
        result = client.submit_output("clipped", {"x": x}, x.clip(-0.5, 0.5), case.seed)
    assert result.verdict == "passed"
    assert "inputs of the client's own" in " ".join(result.notes)


def test_a_body_may_bring_its_own_inputs(clipping: Served) -> None:
    x = np.linspace(-2, 2, 60, dtype=np.float32).reshape(3, 4, 5)
    with clipping.client() as client:
        with validate_op(client, "clipped", inputs={"x": x}) as context:
            context.inputs["x"] = x + 1
            context.output = (x + 1).clip(-0.5, 0.5)
        with (
            pytest.raises(ValidationError, match="exceed the tolerance"),
            validate_op(client, "clipped") as context,
        ):
            context.inputs["x"] = x
            context.output = x
