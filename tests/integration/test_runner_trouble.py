"""Test the runner's errors: programs that cannot be loaded, limits, and the cases after a failed
one."""

from __future__ import annotations

from pathlib import Path

import pytest
from runner_workspace import Workspace, make_case, marked_case, slugs, workspace

from gpuemu_flow.workers import attempt
from gpuemu_flow.workers.pool import Pool

pytestmark = pytest.mark.ci


def test_a_missing_file(ws: Workspace) -> None:
    for kind in ("script", "callable", "command"):
        program = ws.program(kind, "pass")
        Path(program.path).unlink()
        assert slugs(ws.run(program, 2)) == ["op-not-loadable"] * 2


def test_a_hang_while_loading_is_a_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "LOAD_SECONDS", 0.3)
    with workspace(tmp_path) as ws:
        program = ws.program("callable", "import signal\nsignal.pause()", timeout=0.3)
        assert slugs(ws.run(program, 2)) == ["op-timeout"] * 2


def test_after_a_crash_each_case_has_its_own_process(ws: Workspace) -> None:
    source = """
    import os
    import numpy as np
    def op(x):
        if x[0, 0] == 42:
            os.abort()
        return np.array(os.getpid())
    """
    cases = [make_case(0), make_case(1), marked_case(2), make_case(3), make_case(4)]
    pids = {}
    for isolation in ("fork", "warm"):
        outcomes = ws.run(ws.program("callable", source, isolation=isolation), cases)
        pids[isolation] = [int(ws.outputs(o)["result"]) for o in outcomes if o.ok]
    assert len(set(pids["fork"])) == 4  # the second is run again: its first answer was lost
    first, _, third, fourth = pids["warm"]
    assert third == fourth != first


def test_a_case_that_hangs_among_others_is_waited_for_once(ws: Workspace) -> None:
    source = """
    import time
    def op(x):
        if x[0, 0] == 42:
            with open("hung", "a") as log:
                log.write("x")
            time.sleep(60)
        return x
    """
    cases = [make_case(0), make_case(1), make_case(2), marked_case(3), make_case(4)]
    outcomes = ws.run(ws.program("callable", source, timeout=2.0), cases)
    assert slugs(outcomes) == ["ok", "ok", "ok", "op-timeout", "ok"]
    assert (ws.folder / "hung").read_text() == "x"


def test_a_trusted_program_keeps_its_process(tmp_path: Path) -> None:
    """Unless a case fails: what that leaves behind must not reach the cases of another dtype."""
    source = """
    import os
    import numpy as np
    def op(x):
        if x[0, 0] == 42:
            raise ValueError("planted")
        return np.array(os.getpid())
    """
    with workspace(tmp_path) as ws, Pool(1, keeps=1) as ws.pool:
        program = ws.program("callable", source)
        runs = [[make_case(0)], [make_case(1), marked_case(2)], [make_case(3)]]
        found = [ws.run(program, cases, trusted=True)[0] for cases in runs]
        first, second, third = (int(ws.outputs(each)["result"]) for each in found)
        untrusted = int(ws.outputs(ws.run(program, 1)[0])["result"])
    assert first == second
    assert len({second, third, untrusted}) == 3


STATUS_LIES = ["math.nan", "math.inf", "-math.inf", "time.monotonic() + 1e9", "-1e300"]


@pytest.mark.parametrize("since", STATUS_LIES)
def test_lies_on_the_status_page_do_not_defer_the_timeout(ws: Workspace, since: str) -> None:
    source = f"""
    import math, os, signal, struct, time
    def op(x):
        for fd in range(3, 1000):
            try:
                if os.fstat(fd).st_size == 64:
                    os.pwrite(fd, struct.pack("<Id", 1, {since}), 0)
            except OSError:
                pass
        signal.pause()
    """
    assert slugs(ws.run(ws.program("callable", source, timeout=0.4))) == ["op-timeout"]


def test_a_forged_answer_is_not_believed(ws: Workspace) -> None:
    """Well-formed, but not the answer to this request: the op cannot know the request's number."""
    source = """
    import json, os, signal, stat, struct
    def op(x):
        outcome = {"index": 0, "ok": True, "blob": "0" * 64, "size": 0, "outputs": [],
                   "error": None, "violations": [], "duration_s": 0.0}
        body = json.dumps({"type": "outcome", "serial": 1, "outcome": outcome}).encode()
        for fd in range(3, 1000):
            try:
                if stat.S_ISSOCK(os.fstat(fd).st_mode):
                    os.write(fd, struct.pack("<4sI", b"gfr1", len(body)) + body)
            except OSError:
                pass
        signal.pause()
    """
    (outcome,) = ws.run(ws.program("callable", source, timeout=600))
    assert slugs([outcome]) == ["op-broke-runner"]


def test_a_misnamed_parameter_is_named_where_its_mapping_fails(ws: Workspace) -> None:
    (outcome,) = ws.run(ws.program("callable", "def op(data): return data + 1"))
    assert outcome.error is not None
    assert outcome.error.slug == "op-exception"
    assert "no parameter is named 'x'" in outcome.error.hint
    (named,) = ws.run(ws.program("callable", "def op(x): return x + 'a'"))
    assert named.error is not None
    assert named.error.hint == ""


RAISES = """
    import os
    def op(x):
        with open({marks!r}, "a") as file:
            file.write(f"{{os.getpid()}}\\n")
        {body}
        return x
    """


def test_exceptions_at_other_lines_and_of_later_cases_are_tried_alone(
    ws: Workspace, tmp_path: Path
) -> None:
    """Two cases that raise tell nothing of another line, nor of a state that the op keeps."""
    marks = tmp_path / "marks"
    body = """
        if x[0, 0] == 42:
            raise RuntimeError("of the case")
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("of the process")"""
    source = "    calls = []\n" + RAISES.format(marks=str(marks), body=body)
    cases = [
        marked_case(0),
        marked_case(1),
        marked_case(2),
        make_case(3),
        make_case(4),
        marked_case(5),
    ]
    found = slugs(ws.run(ws.program("callable", source), cases))
    assert found == ["op-exception"] * 3 + ["ok", "ok", "op-exception"]
