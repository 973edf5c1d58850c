"""The worker that ran a reference's cases judges them too, when nothing speaks against it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import runner_workspace
from mini_workspace import Mini, make_mini
from runner_workspace import Workspace, is_running, make_case, slugs

from gpuemu_flow.runners.attempt import WorkerClient
from gpuemu_flow.runners.idle_workers import IdleWorkers, WorkerSlot
from gpuemu_flow.runners.pool import Pool

pool, ws = runner_workspace.pool, runner_workspace.ws

# The file lies where no input is looked for: what a program writes itself would run it again.
NOTES_ITS_PROCESS = """
    import os

    with open(os.environ["TMPDIR"] + "/../../pids-of-references", "a") as stream:
        stream.write(f"{os.getpid()}\\n")

    def reference(x):
        return (x + x + x).astype(x.dtype)
    """


def pids(mini: Mini, code: int) -> list[str]:
    """Run the op whose reference notes its processes, from the beginning."""
    mini.without_causes()
    mini.write("scripts/scale_ref.py", NOTES_ITS_PROCESS)
    temporary = mini.root.parent / "temporary"
    temporary.mkdir()
    mini.env["TMPDIR"] = str(temporary)
    mini.command("run", "scale", code=code)
    return (temporary / "pids-of-references").read_text().split()


def test_a_run_judges_where_the_reference_ran(tmp_path: Path) -> None:
    assert len(set(pids(make_mini(tmp_path / "workspace"), 0))) == 1


def test_what_did_not_pass_there_is_judged_in_a_new_process(tmp_path: Path) -> None:
    mini = make_mini(tmp_path / "workspace")
    mini.edit("scripts/scale.py", "* 3", "* 4")
    assert len(set(pids(mini, 1))) == 2


def slot(ws: Workspace) -> tuple[WorkerClient, WorkerSlot]:
    program = ws.program("callable", "def op(x):\n    return x\n")
    holder = WorkerSlot()
    assert slugs(ws.run(program, [make_case(0)], slot=holder)) == ["ok"]
    client = holder.take()
    assert client is not None
    return client, holder


def changed() -> bool:
    return False


def unchanged() -> bool:
    return True


def test_an_idle_worker_is_handed_out_once(ws: Workspace) -> None:
    client, _ = slot(ws)
    idle = IdleWorkers(1)
    idle.put(client, unchanged)
    assert idle.take(client.program) is client
    assert idle.take(client.program) is None
    client.close()


@pytest.mark.parametrize("end", ["an input changed", "too many", "the pool closes"])
def test_an_idle_worker_ends_when_it_is_of_no_use(ws: Workspace, end: str) -> None:
    client, _ = slot(ws)
    idle = IdleWorkers(1)
    idle.put(client, changed)
    deeds: dict[str, Callable[[], object]] = {
        "an input changed": lambda: idle.take(client.program),
        "too many": lambda: idle.put(slot(ws)[0], unchanged),
        "the pool closes": idle.close,
    }
    assert is_running(client.worker.pid)
    assert deeds[end]() is None
    assert not is_running(client.worker.pid)
    idle.close()


def test_a_pool_that_closes_ends_its_idle_workers(ws: Workspace, tmp_path: Path) -> None:
    staging = tmp_path / "staged"
    staging.mkdir()
    with Pool(1, staging=staging) as own:
        program = ws.program("callable", "def op(x):\n    return x\n")
        with WorkerSlot() as holder:
            own.run(
                program,
                [],
                checks=runner_workspace.NO_CHECKS,
                publish=lambda *_: None,
                slot=holder,
            )
        client, _ = slot(ws)
        own.keep(client, unchanged)
    assert not is_running(client.worker.pid)
