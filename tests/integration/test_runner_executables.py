"""Programs in other languages: executables that speak the protocol, and how they fail."""

from __future__ import annotations

import shutil
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
from runner_workspace import Workspace, make_case, slugs

from gpuemu_flow.cases.generate import materialise

SHELL = """#!/bin/sh
printf '{"shape": [2], "dtype": "uint8", "data": "'
printf 'AQI='
printf '"}'
"""


def make_executable(path: Path) -> None:
    path.chmod(0o755)


def test_an_executable_in_another_language(ws: Workspace) -> None:
    program = ws.program("command", SHELL, name="program.sh")
    make_executable(Path(program.path))
    outcomes = ws.run(program, 2)
    assert [ws.outputs(o)["result"].tolist() for o in outcomes] == [[1, 2]] * 2


@pytest.mark.skipif(shutil.which("node") is None, reason="no node on this machine")
def test_an_executable_that_reads_its_inputs(ws: Workspace) -> None:
    source = """#!/usr/bin/env node
    const request = JSON.parse(require("fs").readFileSync(0, "utf8"));
    const x = request.inputs.x;
    const bytes = Buffer.from(x.data, "base64");
    for (let i = 0; i < bytes.length; i += 4) bytes.writeFloatLE(2 * bytes.readFloatLE(i), i);
    console.log(JSON.stringify({shape: x.shape, dtype: x.dtype, data: bytes.toString("base64")}));
    """
    program = ws.program("command", dedent(source), name="program.js")
    make_executable(Path(program.path))
    (outcome,) = ws.run(program)
    x = materialise(make_case(0))["x"]
    np.testing.assert_array_equal(ws.outputs(outcome)["result"], 2 * x)


BAD_COMMANDS = {
    "exit_code": ("#!/bin/sh\necho oops >&2\nexit 4\n", "op-exit-code"),
    "crash": ("#!/bin/sh\nkill -SEGV $$\n", "op-crashed"),
    "junk": ("#!/bin/sh\necho hello\n", "op-output-junk"),
    "silent": ("#!/bin/sh\n", "op-output-missing"),
    "hang": ("#!/bin/sh\nsleep 1000\n", "op-timeout"),
    "endless": ("#!/bin/sh\nexec yes\n", "op-crashed"),
    "no_interpreter": ("#!/no/such/shell\n", "op-not-loadable"),
    "binary_junk": ("\\x00\\x01\\x02", "op-not-loadable"),
}


@pytest.mark.parametrize("name", BAD_COMMANDS)
def test_executables_that_fail(ws: Workspace, name: str) -> None:
    source, slug = BAD_COMMANDS[name]
    timeout = 0.5 if name == "hang" else 600
    program = ws.program("command", source, name="program", timeout=timeout)
    make_executable(Path(program.path))
    outcomes = ws.run(program, 2)
    assert slugs(outcomes) == [slug] * 2, outcomes[0]
    if name == "exit_code":
        assert outcomes[0].error is not None
        assert "oops" in outcomes[0].error.stderr_tail
