"""Modules loaded before an edited op is called: few, in the order that makes it wait least."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mini_workspace import Mini
from runner_workspace import make_case, slugs, workspace
from test_import_budget import imported_in_order

pytestmark = pytest.mark.ci

MODULES = """
import json, pathlib, sys

def op(x):
    pathlib.Path("modules").write_text(json.dumps(sorted(sys.modules)))
    return x
"""
SEARCHES = """
import gc, json, pathlib

def op(x):
    pathlib.Path("searches").write_text(json.dumps(gc.get_stats()[-1]["collections"]))
    return x
"""
_JUDGES = "gpuemu_flow.judge.judge"


def test_numpy_is_imported_once_the_worker_has_been_asked_for(mini: Mini) -> None:
    """The worker loads its program in the time that numpy takes."""
    mini.run()
    script = mini.root / "scripts" / "scale.py"
    script.write_text(f"{script.read_text()}\n# edited\n")
    order = imported_in_order(mini, "run")
    assert order.index("gpuemu_flow.tasks.parts.execute") < order.index("numpy")
    assert order.index("numpy") < order.index("gpuemu_flow.workers.checked")


@pytest.mark.usefixtures("cold_servers")
def test_a_worker_that_only_calls_a_program_does_not_wait_for_what_judges(tmp_path: Path) -> None:
    with workspace(tmp_path) as ws:
        program = ws.program("callable", MODULES)
        assert slugs(ws.run(program, [make_case(0)])) == ["ok"]
        found = json.loads(ws.folder.joinpath("modules").read_text())
        assert _JUDGES not in found
        assert "gpuemu_flow.workers.worker" in found, "the list has the names that are looked for"
        with ws.pool.session(program) as session:
            assert session.call(make_case(1))[1].ok
        found = json.loads(ws.folder.joinpath("modules").read_text())
        assert _JUDGES in found, "a session may judge, and must not import under a program's eyes"
        assert slugs(ws.run(program, [make_case(2)])) == ["ok"]
        assert json.loads(ws.folder.joinpath("modules").read_text()) == found


@pytest.mark.usefixtures("cold_servers")
def test_the_first_worker_does_not_wait_for_a_search_for_garbage(tmp_path: Path) -> None:
    """Its fork server would search all that numpy and its own modules made."""
    with workspace(tmp_path) as ws:
        program = ws.program("callable", SEARCHES)
        assert slugs(ws.run(program, [make_case(0)])) == ["ok"]
        assert json.loads(ws.folder.joinpath("searches").read_text()) == 0
