"""Outputs that a client submits to a daemon, and what commands and reports say of them."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from daemon_workspace import Served, softmax
from warm import warm_command

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.judge.results import OpResult
from gpuemu_flow.report.submissions import submitted_results

ONLY_CLIENTS = """\
[project]
name = "served"

[validation]
dtypes = ["float32"]

[[ops]]
name = "softmax"
reference = "scripts/softmax.py:reference"
input_names = ["x"]
execution_mode = "client_side"
"""


def command(served: Served, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = warm_command(arguments, served.root, served.environ)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def run(served: Served, code: int) -> dict[str, Any]:
    done = command(served, "run", "--format", "json")
    assert done.returncode == code, done.stdout + done.stderr
    (result,) = json.loads(done.stdout)["results"]
    return dict(result)


def submit(served: Served, *, op: str = "softmax", wrong: bool = False, seed: int = 1) -> None:
    with served.client() as client:
        case = client.get_test_case(op, seed=seed, dtypes=["float32"])
        output = case.inputs["x"] if wrong else softmax(case.inputs["x"])
        client.submit_output(op, case.inputs, output, case.seed)


def results(served: Served) -> dict[tuple[str, str], OpResult]:
    workspace = Workspace(served.root, environ=served.environ)
    return submitted_results(workspace, workspace.graph.skips)
