"""An op that raises in its client's process: the daemon knows of it, and so do all commands."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from daemon_workspace import Served, softmax
from msgspec.structs import replace
from warm import warm_command

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.client import Client, ClientError
from gpuemu_flow.client.calls import Call, as_array
from gpuemu_flow.model.types import Verdict
from gpuemu_flow.report.submissions import submitted_results

pytestmark = pytest.mark.ci


def raises_at(number: int) -> Any:
    """An op that is right but for one call."""
    calls = []

    def run(inputs: dict[str, Any]) -> Any:
        calls.append(1)
        if len(calls) == number:
            raise RuntimeError("out of\nmemory \x1b[2J")
        return softmax(inputs["x"])

    return run


def command(served: Served, *arguments: str) -> subprocess.CompletedProcess[str]:
    return warm_command(arguments, served.root, served.environ)


def test_a_raised_case_is_an_error_for_all_commands(unserved: Served) -> None:
    unserved.start()
    with unserved.client() as client:
        found = client.fuzz_op_client_side(
            "softmax", raises_at(2), iterations=4, seed=1, dtypes=["float32"]
        )
        assert (found.passed, found.verdict) == (3, "error")
        (bad,) = [result for result in client.list_results() if not result.passed]
        assert bad.failures[0].message == "the op: RuntimeError: out of memory  [2J"
    workspace = Workspace(unserved.root, environ=unserved.environ)
    result = submitted_results(workspace, workspace.graph.skips)["softmax", "float32"]
    assert (result.verdict, result.passed, result.cases) == (Verdict.ERROR, 3, 4)
    # One op of the workspace: another waits for a gate that nothing opens here.
    for words in (["run", "softmax"], ["report"]):
        done = command(unserved, *words, "--format", "json")
        assert done.returncode == (3 if words[0] == "run" else 0), (words, done.stderr)
        (row,) = [r for r in json.loads(done.stdout)["results"] if r["op"] == "softmax"]
        assert row["verdict"] == "error", words
    assert "error" in command(unserved, "status").stdout
    with unserved.client() as client:
        client.fuzz_op_client_side(
            "softmax", raises_at(0), iterations=4, seed=1, dtypes=["float32"]
        )
    result = submitted_results(workspace, workspace.graph.skips)["softmax", "float32"]
    assert result.verdict is Verdict.PASSED, "the newest of each case counts"


@pytest.mark.parametrize(("given", "said"), [
    ({"error": ""}, "characters"), ({"error": 3}, "string"), ({"error": "x" * 5000}, "characters"),
    ({"error": "E: x", "output": [1.0]}, "one of them"),
])  # fmt: skip
def test_an_error_that_is_none_is_refused(given: dict[str, Any], said: str, daemon: Served) -> None:
    with daemon.client() as client:
        case = client.get_test_case("softmax", seed=1, dtypes=["float32"])
        if "output" in given:
            given = {**given, "output": as_array(case.inputs["x"], "output", None)}
        request = {
            "type": "SubmitOutput", "op_name": "softmax", "seed": case.seed,
            "inputs": dict(case.inputs), **given,
        }  # fmt: skip
        with pytest.raises(ClientError, match=said):
            client._do(Call(request, "SubmitResult", lambda reply: reply))


def test_without_such_a_daemon_the_result_is_the_clients_own(daemon: Served) -> None:
    """A daemon that wants an output refuses; the op's exception is a failure all the same."""

    class Strict(Client):
        def _do(self, call: Any) -> Any:
            given = {name: value for name, value in call.request.items() if name != "error"}
            return super()._do(replace(call, request=given))

    with Strict(daemon.socket) as client:
        found = client.fuzz_op_client_side(
            "softmax", raises_at(1), iterations=2, seed=1, dtypes=["float32"]
        )
    assert (found.passed, found.failed) == (1, 1)
    assert not found
