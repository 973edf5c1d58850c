"""A worker that is passed on from one run of a program to the next, and when it is not."""

from __future__ import annotations

import pytest
import runner_workspace
from runner_workspace import Workspace, is_running, make_case, marked_case, slugs

from gpuemu_flow.observed import Observation
from gpuemu_flow.runners.idle_workers import WorkerSlot

pool, ws = runner_workspace.pool, runner_workspace.ws

TELLS_ITS_PROCESS = """
import os

table = open("table.txt").read()

def op(x):
    with open(f"{os.getcwd()}/pids", "a") as stream:
        stream.write(f"{os.getpid()}\\n")
    if x[0, 0] == 42:
        {body}
    return x
"""
TROUBLE = {"raises": "raise ValueError('no')", "dies": "os._exit(3)"}


def pids(ws: Workspace) -> list[int]:
    return [int(line) for line in (ws.folder / "pids").read_text().split()]


def test_two_runs_share_a_worker(ws: Workspace) -> None:
    """Each is told all that the worker used, and the worker ends with the block."""
    (ws.folder / "table.txt").write_text("1")
    program = ws.program("callable", TELLS_ITS_PROCESS.replace("{body}", "pass"))
    seen: list[Observation] = []
    with WorkerSlot() as slot:
        first = ws.run(program, [make_case(0), make_case(1)], slot=slot, on_observed=seen.append)
        second = ws.run(program, [make_case(2)], slot=slot, on_observed=seen.append)
        assert is_running(pids(ws)[0])
    assert slugs([*first, *second]) == ["ok"] * 3
    assert [outcome.index for outcome in second] == [2]
    assert len(set(pids(ws))) == 1
    assert not is_running(pids(ws)[0])
    for observation in (seen[0], seen[-1]):
        assert str(ws.folder / "table.txt") in observation.files


@pytest.mark.parametrize("trouble", TROUBLE)
def test_a_worker_is_not_kept_after_trouble(ws: Workspace, trouble: str) -> None:
    (ws.folder / "table.txt").write_text("1")
    program = ws.program("callable", TELLS_ITS_PROCESS.replace("{body}", TROUBLE[trouble]))
    with WorkerSlot() as slot:
        ws.run(program, [make_case(0), marked_case(1)], slot=slot)
        before = set(pids(ws))
        assert not any(map(is_running, before))
        assert slugs(ws.run(program, [make_case(2)], slot=slot)) == ["ok"]
    assert pids(ws)[-1] not in before


@pytest.mark.parametrize("trouble", TROUBLE)
def test_trouble_in_a_kept_worker_is_tried_alone(ws: Workspace, trouble: str) -> None:
    """As after earlier cases of the same run: they may be to blame."""
    (ws.folder / "table.txt").write_text("1")
    program = ws.program("callable", TELLS_ITS_PROCESS.replace("{body}", TROUBLE[trouble]))
    with WorkerSlot() as slot:
        ws.run(program, [make_case(0)], slot=slot)
        outcomes = ws.run(program, [marked_case(1)], slot=slot)
        again = ws.run(program, [make_case(2)], slot=slot)
    assert slugs(outcomes) == [{"raises": "op-exception", "dies": "op-crashed"}[trouble]]
    assert slugs(again) == ["ok"]
    assert len(set(pids(ws))) == 3


def test_a_program_with_a_process_for_each_case_shares_none(ws: Workspace) -> None:
    (ws.folder / "table.txt").write_text("1")
    source = TELLS_ITS_PROCESS.replace("{body}", "pass")
    program = ws.program("callable", source, isolation="spawn")
    with WorkerSlot() as slot:
        for n in range(2):
            ws.run(program, [make_case(n)], slot=slot)
    assert len(set(pids(ws))) == 2
