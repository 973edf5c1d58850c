"""Commands side by side in one workspace: who changes it waits, who only looks does not."""

from __future__ import annotations

import fcntl
import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from mini_workspace import Mini

from gpuemu_flow.build.session import RunOptions, RunOutcome
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.judge.results import RunReport
from gpuemu_flow.report.report import build_report, run_and_report


@pytest.fixture
def held(mini: Mini) -> Iterator[tuple[Mini, Path, subprocess.Popen[str]]]:
    """A workspace in the middle of a run, the file that ends it, and the run."""
    begun, go = mini.root / "begun", mini.root / "go"
    mini.unfence()
    mini.write(
        "scripts/scale.py",
        f"""
        import pathlib, time

        def scale(x):
            pathlib.Path({str(begun)!r}).touch()
            while not pathlib.Path({str(go)!r}).exists():
                time.sleep(0.01)
            return x * 3
        """,
    )
    process = mini.popen("run", "--format", "json", "scale")
    try:
        while not begun.exists():
            assert process.poll() is None, process.communicate()
        yield mini, go, process
    finally:
        go.touch()
        process.communicate(timeout=600)


def waits(process: subprocess.Popen[str]) -> bool:
    """Tell whether a process stands in the kernel's queue for a lock."""
    lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    return any(f" {process.pid} " in line for line in lines if "->" in line)


@pytest.mark.ci
def test_who_only_looks_does_not_wait_for_a_run(
    held: tuple[Mini, Path, subprocess.Popen[str]],
) -> None:
    mini, _, process = held
    listed = json.loads(mini.command("list", "--status", "scale", "--format", "json").stdout)
    by_name = {task["task"]: task["status"] for task in listed["tasks"]}
    assert by_name["op:scale:float32"] == "stale"
    assert "never finished" in mini.command("explain", "op:scale:float32").stdout
    assert "op:scale:float32" in mini.command("graph", "scale").stdout
    status = json.loads(mini.command("status", "--format", "json").stdout)
    assert status["tasks"]["total"] == 19
    assert process.poll() is None, "the run ended meanwhile; nothing was shown"


@pytest.mark.parametrize(
    "words",
    [
        ("clean", "scale"),
        ("clean", "--cache"),
        ("run", "scale"),
        ("ci", "scale"),
        ("test", "--op", "scale"),
    ],
)
@pytest.mark.ci
def test_who_changes_something_waits_for_the_run(
    held: tuple[Mini, Path, subprocess.Popen[str]], words: tuple[str, ...]
) -> None:
    mini, go, process = held
    second = mini.popen(*words)
    while not waits(second):
        assert second.poll() is None, f"it did not wait: {second.communicate()}"
    assert process.poll() is None
    go.touch()
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, out + err
    assert json.loads(out)["results"][0]["verdict"] == "passed"
    second_out, second_err = second.communicate(timeout=600)
    assert second.returncode == 0, second_out + second_err
    (said,) = [line for line in second_err.splitlines() if line.startswith("waiting for ")]
    assert re.fullmatch(
        rf"waiting for process {process.pid} since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d, "
        r"which runs in this workspace; Ctrl-C gives up",
        said,
    )
    if words[0] == "clean":
        assert "forgot 5 tasks" in second_out, "it cleaned before the run had ended"
    elif words[0] == "test":
        assert "[PASS] scale float32: 4/4 cases" in second_out
    else:
        assert "0 ran, 0 restored, 5 current" in second_out
    report = mini.run("scale")
    assert report["results"][0]["verdict"] == "passed"
    assert report["problems"] == []


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("words", [("run", "scale"), ("ci", "scale", "-o", "r.xml")])
@pytest.mark.ci
def test_waiting_can_be_given_up(
    held: tuple[Mini, Path, subprocess.Popen[str]],
    words: tuple[str, ...],
    sent: signal.Signals,
) -> None:
    mini, go, process = held
    second = mini.popen(*words)
    while not waits(second):
        assert second.poll() is None, f"it did not wait: {second.communicate()}"
    second.send_signal(sent)
    out, err = second.communicate(timeout=600)
    assert second.returncode == 130, (second.returncode, out, err)
    assert "Traceback" not in err
    assert process.poll() is None, "the run that was waited for ended, too"
    go.touch()
    process.communicate(timeout=600)
    assert process.returncode == 0


@pytest.mark.ci
def test_nobody_waits_for_a_run_that_was_killed(
    held: tuple[Mini, Path, subprocess.Popen[str]],
) -> None:
    """Neither its record in the lock nor processes that it left behind hold the workspace."""
    mini, go, process = held
    second = mini.popen("run", "scale", "--format", "json")
    while not waits(second):
        assert second.poll() is None, f"it did not wait: {second.communicate()}"
    process.kill()
    process.communicate(timeout=600)
    while waits(second):
        assert second.poll() is None
    go.touch()
    out, err = second.communicate(timeout=600)
    assert second.returncode == 0, out + err
    assert json.loads(out)["results"][0]["verdict"] == "passed"


def test_a_report_is_made_before_another_process_may_change_what_it_reads(
    mini: Mini, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = []

    def looked_at(workspace: Workspace, outcome: RunOutcome) -> RunReport:
        with workspace.cache.lock_path.open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held.append(True)
        return build_report(workspace, outcome)

    monkeypatch.setattr("gpuemu_flow.report.report.build_report", looked_at)
    workspace = Workspace(mini.root, environ=mini.environment())
    _, report = run_and_report(workspace, RunOptions(words=("scale",)))
    assert held == [True]
    assert [result.op for result in report.results] == ["scale"]
