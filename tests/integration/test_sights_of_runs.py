"""Nothing that changed before a run had the workspace is missed."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from mini_workspace import Mini

from gpuemu_flow.engine.session import RunOptions, run
from gpuemu_flow.engine.workspace import Workspace
from gpuemu_flow.store.lock import RunLock

CAUSES = False
OP = "op:scale:float32"


def opened(mini: Mini) -> Workspace:
    return Workspace(mini.root, environ=mini.environment())


def edit(mini: Mini) -> None:
    path = mini.root / "scripts/scale.py"
    path.write_text(f"{path.read_text()}# another line\n")


def test_what_changed_while_a_lock_was_waited_for_is_seen(checked_mini: Mini) -> None:
    checked_mini.command("run")
    checked_mini.edit("scripts/total.py", "def total", "# another line\ndef total")
    cold = Mini(checked_mini.root, warm=False)
    with RunLock(checked_mini.root / ".gpuemu-cache/lock"):
        waiting = cold.popen("run")
        assert waiting.stderr is not None
        assert "waiting for process" in waiting.stderr.readline()
        edit(checked_mini)
    out, err = waiting.communicate(timeout=600)
    assert waiting.returncode == 0, err
    assert re.search(r"^scale +float32 .* run$", out, re.MULTILINE), out


def test_what_changed_after_another_run_is_seen(checked_mini: Mini) -> None:
    """That run began and ended while this one loaded what it needs, so that none had to wait."""
    checked_mini.command("run")
    workspace = opened(checked_mini)
    edit(checked_mini)
    checked_mini.command("run")
    edit(checked_mini)
    assert OP in run(workspace, RunOptions()).executed


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("what", ["the script", "a link to it"])
def test_a_script_that_became_another_users_is_not_run(
    checked_mini: Mini, what: str, tmp_path: Path
) -> None:
    checked_mini.command("run")
    script = checked_mini.root / "scripts/scale.py"
    edit(checked_mini)
    if what == "a link to it":
        elsewhere = tmp_path / "scale.py"
        script.rename(elsewhere)
        script.symlink_to(elsewhere)
    os.chown(script, 54321, 54321, follow_symlinks=False)
    done = Mini(checked_mini.root, warm=False).command("run", code=2)
    assert "workspace-untrusted" in done.stderr and "scripts/scale.py" in done.stderr
