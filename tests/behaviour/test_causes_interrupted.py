"""Signals that come once all cases are judged: the verdicts, which are complete, are shown."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable
from typing import Any

import psutil
import pytest
from mini_workspace import Mini
from terminal import terminal
from whole import WHOLE

from gpuemu_flow.build.signals import cancel_on_signals
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.fuzz import causes
from gpuemu_flow.fuzz import session as fuzz_session
from gpuemu_flow.fuzz.fuzzing import FuzzOptions
from gpuemu_flow.report import fuzz_text, pictures
from gpuemu_flow.report.reporting import ReportRequest, check
from gpuemu_flow.report.text import Style

pytestmark = pytest.mark.ci

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if WHOLE else (signal.SIGTERM,)


def plant(mini: Mini) -> None:
    """Make the op wrong for long rows, so that there is a cause to confirm."""
    mini.keep_only("scale")
    mini.edit("scripts/scale.py", "* 3", "* (3 if len(x) <= 16 else 2)")
    mini.edit("gpuemu.toml", "cases = 4", "cases = 24")


def send_at(
    process: subprocess.Popen[str], text: str, number: signal.Signals
) -> tuple[str, str, list[psutil.Process]]:
    """Send a signal once a line of standard error holds a text; return the output and children."""
    assert process.stdout is not None and process.stderr is not None
    before, children = [], []
    for line in process.stderr:
        before.append(line)
        if text in line:
            children = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(number)
            break
    out, err = process.communicate(timeout=300)
    return out, "".join(before) + err, children


def assert_ended(children: Iterable[psutil.Process]) -> None:
    """Assert that no process survives the command that started it."""
    _, alive = psutil.wait_procs(children, timeout=60)
    assert alive == []


def causes_cut_short(report: dict[str, Any]) -> list[str]:
    return [p["message"] for p in report["problems"] if p["slug"] == "causes-cut-short"]


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("command", ["run", "ci"])
def test_the_verdicts_are_shown(mini: Mini, command: str, number: signal.Signals) -> None:
    plant(mini)
    process = mini.popen(command, "--format", "json")
    out, err, children = send_at(process, "looking for the cause", number)
    assert process.returncode == 130, (out, err)
    report = json.loads(out)
    assert [(r["op"], r["verdict"]) for r in report["results"]] == [("scale", "failed")]
    (told,) = causes_cut_short(report)
    assert "the search for causes was interrupted" in told
    assert_ended(children)
    again = mini.run(code=1)
    assert (again["executed"], again["interrupted"]) == ([], False)
    assert not causes_cut_short(again)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_scores_are_shown(mini: Mini, number: signal.Signals) -> None:
    plant(mini)
    process = mini.popen("score", "--format", "json")
    out, err, children = send_at(process, "looking for the cause", number)
    assert process.returncode == 130, (out, err)
    assert json.loads(out)["scores"], out
    assert_ended(children)


@pytest.mark.parametrize("command", ["run", "ci"])
def test_a_terminal_that_closes(mini: Mini, command: str) -> None:
    plant(mini)
    with terminal(mini, command) as opened:
        opened.wait_for(lambda text: "looking for the cause" in text)
        children = psutil.Process(opened.process.pid).children(recursive=True)
        opened.hang_up()
        assert_ended(children)
    report = mini.run(code=1)
    assert report["executed"] == []
    known = json.loads(mini.command("failures", "--format", "json").stdout)["failures"]
    assert {failure["op"] for failure in known} == {"scale"}


class Interrupting:
    """A stand-in for a function, which sends a signal to this process and then calls it."""

    def __init__(self, function: Callable[..., Any], number: signal.Signals) -> None:
        self._function = function
        self._number = number

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        signal.raise_signal(self._number)
        return self._function(*arguments, **named)


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("when", ["causes_of", "_minimized"])
def test_fuzz_reports_all_cases(
    mini: Mini, monkeypatch: pytest.MonkeyPatch, when: str, number: signal.Signals
) -> None:
    plant(mini)
    interrupting = Interrupting(getattr(fuzz_session, when), number)
    monkeypatch.setattr(fuzz_session, when, interrupting)
    workspace = Workspace(mini.root, environ={"HOME": str(mini.root)})
    options = FuzzOptions(iterations=24, jobs=1)
    with cancel_on_signals() as cancel:
        reports = fuzz_session.fuzz_ops(workspace, ["scale"], options, minimize=True, cancel=cancel)
    (report,) = reports
    assert cancel.is_set()
    assert (report.iterations, report.failed + report.passed) == (24, 24)
    assert report.groups and all(cause.minimized is None for cause in report.groups)
    assert fuzz_text.exit_code(reports) == 130
    assert "interrupted once all cases were judged" in fuzz_text.render(report, Style(color=False))


@pytest.mark.parametrize("before", ["first", "second"])
def test_a_signal_before_an_op_is_told(mini: Mini, before: str) -> None:
    """It came while a cluster started, or between two ops, and neither op was interrupted."""
    workspace = Workspace(mini.root, environ={"HOME": str(mini.root)})
    ops = ["scale", "total"]
    cancel = threading.Event()
    if before == "first":
        cancel.set()
    reports = fuzz_session.fuzz_ops(
        workspace,
        ops,
        FuzzOptions(iterations=4, jobs=1),
        on_start=lambda op, _: cancel.set() if op == "total" else None,
        cancel=cancel,
    )
    assert [report.iterations for report in reports] == ([0] if before == "first" else [4, 0])
    assert fuzz_text.exit_code(reports) == 130
    assert "interrupted after 0 cases" in fuzz_text.render(reports[-1], Style(color=False))


class Named:
    """A field of a class, at whose naming Ctrl-C arrives."""

    def __set_name__(self, owner: type, name: str) -> None:
        signal.raise_signal(signal.SIGINT)


def test_one_that_arrives_while_a_module_is_imported(
    mini: Mini, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(mini)
    monkeypatch.setattr(causes, "causes_of", lambda *_, **__: type("C", (), {"f": Named()}))
    report = check(Workspace(mini.root), ReportRequest(pictures=False))
    assert (report.exit_code, report.verdict) == (130, "interrupted")
    assert [(r.op, r.verdict.value) for r in report.run.results] == [("scale", "failed")]


@pytest.mark.parametrize("number", SIGNALS)
def test_ci_reports_without_drawings(
    mini: Mini, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    plant(mini)
    monkeypatch.setattr(pictures, "open_ordered", Interrupting(pictures.open_ordered, number))
    workspace = Workspace(mini.root, environ={"HOME": str(mini.root)})
    report = check(workspace, ReportRequest(pictures=True, confirm=False))
    assert (report.exit_code, report.verdict) == (130, "interrupted")
    assert {note for p in report.pictures.values() if (note := p.note)} == {pictures.NOT_DRAWN}
    assert [(r.op, r.verdict.value) for r in report.run.results] == [("scale", "failed")]
