"""A worker of a program with torch is forked from a server that has imported it; nothing else is.

It behaves and is observed as if it had imported torch itself.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from observed_workspace import observe, write_all
from runner_workspace import Workspace, slugs

from gpuemu_flow.workers.api import Program

pytestmark = pytest.mark.ci

pytest.importorskip("torch", reason="no torch")
FENCED = True

SOURCE = """
import sys
import numpy as np
BEFORE = "torch" in sys.modules
import queue
import torch
torch.randn(4, requires_grad=True).sum().backward()
def op(x):
    return np.array([BEFORE, hasattr(queue, "OURS")])
"""


def _program(ws: Workspace, **more: str) -> Program:
    return ws.program("callable", SOURCE, **{"framework": "torch", **more})


def _facts(ws: Workspace, program: Program) -> list[bool]:
    (outcome,) = ws.run(program)
    found: list[bool] = ws.outputs(outcome)["result"].tolist()
    return found


def test_torch_is_there_before_the_program_is(ws: Workspace) -> None:
    assert _facts(ws, _program(ws)) == [True, False]
    assert _facts(ws, _program(ws, framework="")) == [False, False]


@pytest.mark.parametrize("place", ["queue.py", "sub/queue.py", "queue/__init__.py"])
def test_a_module_of_the_workspace_is_not_hidden_by_one_that_torch_loaded(
    ws: Workspace, place: str
) -> None:
    write_all(ws, {place: "from collections import *\nOURS = True\nclass Empty(Exception): ...\n"})
    name = "sub/program.py" if place.startswith("sub/") else "program.py"
    program = ws.program("callable", SOURCE.replace("torch.randn", "# "), framework="torch",
                         name=name)  # fmt: skip
    outcomes = ws.run(program)
    if slugs(outcomes) == ["ok"]:  # else torch itself refuses such a module, as it does elsewhere
        assert ws.outputs(outcomes[0])["result"].tolist() == [False, True]


def test_a_workspaces_own_torch_is_the_one_that_is_imported(ws: Workspace) -> None:
    write_all(ws, {"torch.py": "OURS = 7\n"})
    source = "import numpy as np, torch\ndef op(x):\n    return np.array([torch.OURS])"
    (outcome,) = ws.run(ws.program("callable", source, framework="torch"))
    assert ws.outputs(outcome)["result"].tolist() == [7]


def test_what_the_server_imported_counts_as_used_by_each_program(ws: Workspace) -> None:
    program = _program(ws)
    seen, alone = observe(ws, program), observe(ws, replace(program, framework=""))
    assert alone.missed >= {"torch", "torch.py"}
    # Torch looks for the lines of two modules of its own in the folder that it is imported in.
    assert alone.missed - {"_ops.py", "_classes.py"} <= seen.missed
    loaded = {path for path in alone.whole.files if "/site-packages/torch/" in path}
    assert len(loaded) > 100
    # Two modules put other objects in their places; the whole package is in the key.
    named = {path for path in loaded if path.endswith((".so", "/__init__.py", "/version.py"))}
    assert len(named - seen.whole.files) <= 2
    assert seen.untracked == alone.untracked == set()


def test_files_that_torchs_machine_code_opens_are_seen(ws: Workspace) -> None:
    write_all(ws, {"numbers.bin": bytes(64)})
    source = """
    import torch
    def op(x):
        return torch.from_file("numbers.bin", size=4)
    """
    program = ws.program("callable", source, framework="torch")
    assert "numbers.bin" in observe(ws, program).files


def test_programs_with_other_variables_get_a_server_of_their_own(ws: Workspace) -> None:
    source = """
    import numpy as np
    import torch
    def op(x):
        return np.array([torch.jit._state._enabled.enabled])
    """
    program = ws.program("callable", source, framework="torch")
    found = [
        ws.outputs(ws.run(replace(program, env=env))[0])["result"].tolist()
        for env in ({}, {"PYTORCH_JIT": "0"})
    ]
    assert found == [[True], [False]]
