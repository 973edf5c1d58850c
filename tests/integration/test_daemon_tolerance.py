"""Requests are judged as ``run`` judges: by what their inputs make of it, unless the file says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from daemon_workspace import Served, normal

from gpuemu_flow import validate_op
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.judge.results import OpResult
from gpuemu_flow.model.types import Json, Verdict
from gpuemu_flow.report.submissions import submitted_results

pytestmark = pytest.mark.ci

PROJECT = """\
[project]
name = "served"

[validation]
dtypes = ["float32"]
{validation}
"""
PRODUCT = """
[[ops]]
name = "product"
reference = "scripts/product.py:reference"
input_names = ["a", "b"]
execution_mode = "client_side"
"""
DIMS = 'schema = { dims = { M = [5, 64], K = [7, 700], N = [64] }, inputs = { a = ["M", "K"], '
DIMS += 'b = ["K", "N"] }, output = ["M", "N"] }\n'
SCRIPT = "def reference(a, b):\n    return a @ b\n"
WIRE_SCHEMA: Json = {
    "name": "product",
    "dims": [
        {"name": "M", "candidates": [1, 33, 128]},
        {"name": "K", "candidates": [64, 512]},
        {"name": "N", "candidates": [64]},
    ],
    "inputs": [{"name": "a", "dims": ["M", "K"]}, {"name": "b", "dims": ["K", "N"]}],
    "output": {"name": "c", "dims": ["M", "N"]},
}


def serve(served: Served, validation: str = "", more: str = "") -> None:
    served.write("gpuemu.toml", PROJECT.format(validation=validation) + PRODUCT + more)
    served.write("scripts/product.py", SCRIPT)
    served.start()


def plain(i: dict[str, Any]) -> Any:
    return i["a"] @ i["b"]


def blocks(i: dict[str, Any]) -> Any:
    a, b = i["a"], i["b"]
    total = np.zeros((a.shape[0], b.shape[1]), a.dtype)
    for start in range(0, a.shape[1], 16):
        total += a[:, start : start + 16] @ b[start : start + 16]
    return total


def off(i: dict[str, Any]) -> Any:
    return i["a"] @ i["b"] * np.float32(1.001)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("schema", ["the op's own", "the request's", "none"])
@pytest.mark.ci
def test_a_right_product_passes(unserved: Served, schema: str) -> None:
    """In float32 at once and in blocks: both are right."""

    serve(unserved, more=DIMS if schema == "the op's own" else "")
    given = WIRE_SCHEMA if schema == "the request's" else None
    with unserved.client() as client:
        if schema == "none":
            for seed in range(6):
                a, b = normal(33, 512, seed=seed), normal(512, 64, seed=seed + 100)
                a *= 300
                assert client.validate_op("product", {"a": a, "b": b}, a @ b).passed
                assert not client.validate_op("product", {"a": a, "b": b}, a @ b * 1.001).passed
            return
        for op in (plain, blocks):
            found = client.fuzz_op_client_side(
                "product", op, iterations=25, seed=7, op_schema=given, dtypes=["float32"]
            )
            assert found.failed == 0, found.failures[0].failures
            assert found.passed >= 20
        wrong = client.fuzz_op_client_side(
            "product", off, iterations=8, seed=7, op_schema=given, dtypes=["float32"]
        )
        assert wrong.passed == 0


def test_the_table_meets_a_reference_in_the_ops_dtype(unserved: Served) -> None:
    """A reference that rounds to float16 on the way is what the table's authors compared with."""
    text = "def reference(x):\n    return (x * 0 + x.dtype.itemsize).astype('f4')\n"
    unserved.write("scripts/says.py", text)
    serve(unserved, 'tolerance = "table"', SAYS)
    x = normal(8)
    with unserved.client() as client:
        assert client.validate_op("says", {"x": x}, np.full(8, 4, "f4")).passed
        assert not client.validate_op("says", {"x": x}, np.full(8, 8, "f4")).passed
        own = client.validate_op("says", {"x": x}, np.full(8, 8, "f4"), atol=1e-3)
        assert own.passed, "a tolerance of the call's own is held against the exact result"


SAYS = """
[[ops]]
name = "says"
reference = "scripts/says.py:reference"
input_names = ["x"]
execution_mode = "client_side"
"""


def test_a_tolerance_of_the_clients_own_hides_no_failure(unserved: Served) -> None:
    """Cases that had failed were left out of the count, and the op passed on the others."""
    serve(unserved, more=DIMS)
    with unserved.client() as client:
        cases = client.get_test_batch("product", 3, seed=1)
        right = [plain(case.inputs) for case in cases]
        wrong = [right[0], *(output + 1 for output in right[1:])]
        client.submit_outputs("product", cases, wrong)
        client.submit_outputs("product", cases[1:], wrong[1:], atol=1e9)
        result = submitted(unserved)
        assert (result.verdict, result.passed, result.failed) == (Verdict.FAILED, 1, 2)
        client.submit_outputs("product", cases, right)
    assert submitted(unserved).verdict is Verdict.PASSED


def test_a_failure_names_the_source_of_its_tolerance(unserved: Served) -> None:
    """The text of a failure says where to look: in the call, or in the file."""
    serve(unserved, more="tolerances = { float32 = { atol = 0.5, rtol = 0 } }\n")
    inputs = {"a": normal(5, 33, seed=1), "b": normal(33, 64, seed=2)}
    wrong = plain(inputs) + 1
    with unserved.client() as client:
        for more, source in (({"atol": 0.01}, "call"), ({"rtol": 0}, "call"), ({}, "gpuemu.toml")):
            failed = client.validate_op("product", inputs, wrong, **more)
            assert f"* |expected| ({source})" in failed.failures[0].message
            again = client.reproduce(failed.seed)
            assert f"({source})" in again.result.failures[0].message


def submitted(served: Served) -> OpResult:
    workspace = Workspace(served.root, environ=served.environ)
    return submitted_results(workspace, workspace.graph.skips)["product", "float32"]


def test_equal_calls_are_judged_equally(unserved: Served) -> None:
    """The random draws that measure a tolerance follow from the op and its inputs."""
    serve(unserved)
    a, b = normal(5, 33, seed=1), normal(33, 64, seed=2)
    output = plain({"a": a, "b": b})
    with unserved.client() as client:
        calls = [client.validate_op("product", {"a": a, "b": b}, output) for _ in range(4)]
        swapped = client.validate_op("product", {"b": b, "a": a}, output)
        with validate_op(client, "product", inputs={"a": a.copy(), "b": b.copy()}) as context:
            context.set_output(output)
        assert context.result is not None
        calls += [swapped, context.result, client.validate_op("product", {"a": a, "b": b}, a @ -b)]
        assert {call.seed for call in calls} == {calls[0].seed}
        assert [call.passed for call in calls] == [True] * 6 + [False]
        assert len({call.tolerance_used for call in calls[:6]}) == 1

        others: list[tuple[Any, Any, Any]] = [
            ({"a": a, "b": np.nextafter(b, 9)}, output, {}),
            ({"a": a[:1], "b": b}, output[:1], {}),
            ({"a": a.astype("f8"), "b": b.astype("f8")}, output.astype("f8"), {}),
            ({"a": a, "b": b}, output, {"atol": 1.0}),
            ({"a": a, "b": b}, output, {"precision": "float32"}),
        ]
        seeds = [client.validate_op("product", i, o, **more).seed for i, o, more in others]
        assert len({*seeds, calls[0].seed}) == 6, "each of these is another case"


def test_a_pass_hides_no_failure_on_equal_inputs(unserved: Served) -> None:
    serve(unserved)
    inputs = {"a": normal(5, 33, seed=1), "b": normal(33, 64, seed=2)}
    with unserved.client() as client:
        client.validate_op("product", inputs, -plain(inputs))
        for _ in range(3):
            client.validate_op("product", inputs, plain(inputs))
    found = submitted(unserved)
    assert (found.verdict, found.passed, found.failed) == (Verdict.FAILED, 1, 1)
