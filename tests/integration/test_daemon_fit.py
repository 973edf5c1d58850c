"""Submissions that do not fit their op, come twice, or belong to another: with three clients."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from daemon_workspace import Served, served
from test_published_client import interpreter  # noqa: F401 - a fixture

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.client import AsyncClient, ClientError
from gpuemu_flow.client import TestCase as Case
from gpuemu_flow.model.types import Verdict
from gpuemu_flow.report.submissions import submitted_results

pytestmark = pytest.mark.ci

CONFIG = """\
[project]
name = "fit"

[validation]
dtypes = ["float32"]
cases = 2

[[ops]]
name = "matmul"
reference = "scripts/ops.py:matmul"
input_names = ["a", "b"]
execution_mode = "client_side"
schema = { dims = { M = [2, 5], K = [3], N = [4] }, inputs = { a = ["M", "K"], b = ["K", "N"] }, output = ["M", "N"] }

[[ops]]
name = "tiled"
reference = "scripts/ops.py:double"
input_names = ["x"]
dtypes = ["float32", "float16"]
execution_mode = "client_side"
schema = { dims = { M = { min = 16, max = 64, multiple_of = 16 } }, inputs = { x = ["M", 4] } }

[[ops]]
name = "rows"
reference = "scripts/ops.py:rows"
input_names = ["x", "index"]
execution_mode = "client_side"
schema = { dims = { M = [5], N = [4] }, inputs = { x = ["M", "N"], index = { dims = ["N"], dtype = "int64", range = [0, 4] } } }

[[ops]]
name = "double"
reference = "scripts/ops.py:double"
input_names = ["x"]
execution_mode = "client_side"

[[ops]]
name = "triple"
reference = "scripts/ops.py:triple"
input_names = ["x"]
execution_mode = "client_side"
"""  # noqa: E501

OPS = """
    def matmul(a, b):
        return a @ b

    def double(x):
        return (x * 2).astype(x.dtype)

    def triple(x):
        return (x * 3).astype(x.dtype)

    def rows(x, index):
        return x[index]
    """

FIT: list[tuple[str, str, dict[str, tuple[tuple[int, ...], str]], str]] = [
    ("sizes beyond those listed", "matmul", {"a": ((7, 6), "f4"), "b": ((6, 9), "f4")}, ""),
    ("equal dims differ", "matmul", {"a": ((2, 3), "f4"), "b": ((4, 4), "f4")}, "shape-unfit"),
    ("a dim too many", "matmul", {"a": ((1, 2, 3), "f4"), "b": ((3, 4), "f4")}, "shape-unfit"),
    ("no dims", "matmul", {"a": ((), "f4"), "b": ((3, 4), "f4")}, "shape-unfit"),
    ("one more multiple", "tiled", {"x": ((80, 4), "f4")}, ""),
    ("a declared dtype", "tiled", {"x": ((16, 4), "f2")}, ""),
    ("no multiple", "tiled", {"x": ((17, 4), "f4")}, "shape-unfit"),
    ("a fixed size", "tiled", {"x": ((16, 5), "f4")}, "shape-unfit"),
    ("a dtype that is not declared", "tiled", {"x": ((16, 4), "f8")}, "dtype-undeclared"),
    ("an integer", "tiled", {"x": ((16, 4), "i4")}, "dtype-undeclared"),
    ("an input of its own dtype", "rows", {"x": ((5, 4), "f4"), "index": ((4,), "i8")}, ""),
    ("not its own", "rows", {"x": ((5, 4), "f4"), "index": ((4,), "i4")}, "dtype-of-one"),
    ("an op without a schema", "double", {"x": ((3, 1, 2), "f8")}, ""),
    ("an unknown name", "double", {"y": ((3,), "f4")}, "unknown-input"),
    ("one name too many", "double", {"x": ((3,), "f4"), "y": ((3,), "f4")}, "unknown-input"),
    ("one name too few", "matmul", {"a": ((2, 3), "f4")}, "missing-input"),
]

WORDS = {
    "shape-unfit": "the schema of",
    "dtype-undeclared": "declares the dtypes float32, float16",
    "dtype-of-one": "says int64, not int32",
    "unknown-input": "has no input of this name",
    "missing-input": "takes this input",
}


@pytest.fixture(scope="module")
def fitting() -> Iterator[Served]:
    with served() as made:
        made.write("gpuemu.toml", CONFIG)
        made.write("scripts/ops.py", OPS)
        made.start()
        yield made


def arrays(shapes: dict[str, tuple[tuple[int, ...], str]]) -> dict[str, Any]:
    return {name: np.ones(shape, dtype) for name, (shape, dtype) in shapes.items()}


def right(op: str, inputs: dict[str, Any]) -> Any:
    """Return the right output of an op, or any tensor where the inputs admit none."""
    if op == "matmul":
        return np.full((7, 9), 6, np.float32)
    if op == "rows":
        return inputs["x"][inputs["index"]]
    return next(iter(inputs.values())) * (3 if op == "triple" else 2)


def with_ours(fitting: Served, op: str, inputs: dict[str, Any]) -> str:
    with fitting.client() as client:
        try:
            assert client.validate_op(op, inputs, right(op, inputs)).passed
        except ClientError as error:
            return str(error)
    return ""


def with_asyncio(fitting: Served, op: str, inputs: dict[str, Any]) -> str:
    async def ask() -> str:
        async with AsyncClient(fitting.socket) as client:
            try:
                assert (await client.submit_output(op, inputs, right(op, inputs), 77)).passed
            except ClientError as error:
                return str(error)
        return ""

    return asyncio.run(ask())


@pytest.mark.parametrize("ask", [with_ours, with_asyncio])
def test_fit(fitting: Served, ask: Callable[[Served, str, dict[str, Any]], str]) -> None:
    for case, op, shapes, slug in FIT:
        said = ask(fitting, op, arrays(shapes))
        assert (WORDS[slug] in said and op in said) if slug else said == "", (case, said)


def test_the_published_client(fitting: Served, interpreter: Path) -> None:  # noqa: F811
    """All of it in one process: the client is as it is on PyPI."""
    script = """
import json, sys
import numpy as np
from gpuemu import Client, ClientError

def right(op, inputs):
    if op == "matmul":
        return np.full((7, 9), 6, np.float32)
    if op == "rows":
        return inputs["x"][inputs["index"]]
    return next(iter(inputs.values())) * 2

said = {}
with Client() as client:
    for name, op, shapes, _ in json.loads(sys.argv[1]):
        inputs = {key: np.ones(shape, dtype) for key, (shape, dtype) in shapes.items()}
        try:
            result = client.validate_op(op, inputs, right(op, inputs))
            said[name] = "passed" if result.passed else "?"
        except ClientError as error:
            said[name] = str(error)
print(json.dumps(said))
"""
    done = subprocess.run(
        [interpreter, "-c", script, json.dumps(FIT)],
        env=fitting.environ, cwd=fitting.root, capture_output=True, text=True, check=False,
        timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    wrong = {
        name: said[name]
        for name, _, _, slug in FIT
        if (WORDS[slug] not in said[name] if slug else said[name] != "passed")
    }
    assert wrong == {}


def test_cases_that_were_handed_out_are_never_refused(fitting: Served) -> None:
    """Protocol v1 gives one shape to all inputs, and dtypes that the op may not name."""
    with fitting.client() as client:
        for case in client.get_test_batch("tiled", 6, seed=5, dtypes=["float64", "float32"]):
            output = case.inputs["x"] * 2
            assert client.submit_output("tiled", case.inputs, output, case.seed).passed


def test_own_inputs_are_checked_after_equal_ones_that_were_handed_out(fitting: Served) -> None:
    with fitting.client() as client:
        (case,) = client.get_test_batch("tiled", 1, seed=5, dtypes=["float64"])
        own = Case(seed=case.seed ^ 1, inputs=case.inputs)
        outputs = [case.inputs["x"] * 2] * 2
        with pytest.raises(ClientError, match=r"cases\[1\]: tiled declares the dtypes"):
            client.submit_outputs("tiled", [case, own], outputs)


@pytest.fixture
def alone() -> Iterator[Served]:
    with served() as made:
        made.write("gpuemu.toml", CONFIG)
        made.write("scripts/ops.py", OPS)
        made.start()
        yield made


def counted(fitting: Served, op: str) -> tuple[Verdict, int, int, int]:
    workspace = Workspace(fitting.root, environ=fitting.environ)
    result = submitted_results(workspace, workspace.graph.skips)[op, "float32"]
    return result.verdict, result.cases, result.passed, result.failed


def test_a_case_answered_twice_counts_once(alone: Served) -> None:
    with alone.client() as client:
        case = client.get_test_case("double", seed=3, dtypes=["float32"])
        for _ in range(3):  # the very same submission
            assert client.submit_output("double", case.inputs, case.inputs["x"] * 2, case.seed)
        assert counted(alone, "double") == (Verdict.PASSED, 1, 1, 0)
        assert not client.submit_output("double", case.inputs, case.inputs["x"], case.seed).passed
        assert counted(alone, "double") == (Verdict.FAILED, 1, 0, 1), "the newest answer counts"

        async def again() -> None:
            async with AsyncClient(alone.socket) as other:
                output = case.inputs["x"] * 2
                answers = [
                    other.submit_output("double", case.inputs, output, case.seed) for _ in range(4)
                ]
                assert all(result.passed for result in await asyncio.gather(*answers))

        asyncio.run(again())
        assert counted(alone, "double") == (Verdict.PASSED, 1, 1, 0)


def test_a_duplicated_message_is_judged_once_for_each(alone: Served) -> None:
    """The transport of others sends a request again: neither copy is lost, the case counts once."""
    with alone.client() as client:
        case = client.get_test_case("double", seed=3, dtypes=["float32"])
    x = case.inputs["x"]

    def tensor(array: Any) -> dict[str, Any]:
        data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
        strides = [s // array.itemsize for s in np.ascontiguousarray(array).strides]
        return {"shape": list(array.shape), "strides": strides, "dtype": "float32", "data": data}

    message = {
        "type": "SubmitOutput", "op_name": "double", "seed": case.seed,
        "inputs": {"x": tensor(x)}, "output": tensor(x * 2), "kwargs": {},
    }  # fmt: skip
    with alone.raw(60_000) as first, alone.raw(60_000) as second:
        data = json.dumps(message).encode()
        first.send(data)
        second.send(data)
        replies = [json.loads(sock.recv()) for sock in (first, second)]
    assert [reply["result"]["passed"] for reply in replies] == [True, True]
    assert counted(alone, "double") == (Verdict.PASSED, 1, 1, 0)


def test_another_ops_case(alone: Served) -> None:
    """Its seed says nothing here: the inputs are judged as what they are."""
    with alone.client() as client:
        case = client.get_test_case("double", seed=3, dtypes=["float32"])
        x = case.inputs["x"]
        assert client.submit_output("triple", case.inputs, x * 3, case.seed).passed
        assert not client.submit_output("triple", case.inputs, x * 2, case.seed).passed
        with pytest.raises(ClientError, match="has no input of this name"):
            client.submit_output("matmul", case.inputs, x * 2, case.seed)
        with pytest.raises(ClientError, match="was given no case of triple"):
            client.submit_output("triple", case.seed, x * 2)
        assert counted(alone, "triple")[0] is Verdict.FAILED
        workspace = Workspace(alone.root, environ=alone.environ)
        assert ("double", "float32") not in submitted_results(workspace, workspace.graph.skips)


def test_a_reference_of_another_op(alone: Served) -> None:
    """Once the op has the other one's reference, what the first one judged no longer counts."""
    with alone.client() as client:
        case = client.get_test_case("double", seed=3, dtypes=["float32"])
        assert client.submit_output("double", case.inputs, case.inputs["x"] * 2, case.seed).passed
        path = alone.root / "gpuemu.toml"
        head, name, tail = path.read_text().partition('name = "double"')
        path.write_text(head + name + tail.replace("ops.py:double", "ops.py:triple", 1))
        assert counted(alone, "double") == (Verdict.SKIPPED, 0, 0, 0)
        result = client.submit_output("double", case.inputs, case.inputs["x"] * 2, case.seed)
        assert not result.passed, "judged by the reference as it is now"
        assert counted(alone, "double") == (Verdict.FAILED, 1, 0, 1)
