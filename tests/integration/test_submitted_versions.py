"""Test that of clients' outputs those of the newest command count, with all of its processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from daemon_workspace import Served
from submissions import results, submit

from gpuemu_flow.model.types import Verdict

pytestmark = pytest.mark.ci

SCRIPT = """
import sys
import numpy as np
from gpuemu_flow.client import Client

def right(i):
    x = i["x"]
    wide = x.astype(np.float64)
    powers = np.exp(wide - wide.max(-1, keepdims=True))
    return (powers / powers.sum(-1, keepdims=True)).astype(x.dtype)

def wrong(i):
    return right(i) + 1

with Client(sys.argv[1]) as client:
    for case in client.get_test_batch("softmax", 3, int(sys.argv[2]), dtypes=["float32"]):
        if sys.argv[3] == "both":
            for op in (wrong, right):
                client.fuzz_op_client_side("softmax", op, 3, 1, dtypes=["float32"])
            break
        output = globals()[sys.argv[3]](case.inputs)
        client.submit_output("softmax", case.inputs, output, case.seed)
"""


def as_user(served: Served, *runs: tuple[int, str]) -> None:
    """Run a script of the user's for each seed and op, all in one command of a shell."""
    script = served.write("check.py", SCRIPT)
    lines = [f"{sys.executable} -B {script} {served.socket} {seed} {op}" for seed, op in runs]
    subprocess.run(
        ["sh", "-ec", "\n".join(lines)],
        check=True,
        timeout=600,
        env=served.environ,
        cwd=Path(served.folder),
        start_new_session=True,
    )


def counted(served: Served) -> tuple[Verdict, int, int]:
    found = results(served)["softmax", "float32"]
    return found.verdict, found.passed, found.failed


def test_a_newer_command_retires_what_an_older_one_gave(unserved: Served) -> None:
    unserved.start()
    as_user(unserved, (1, "wrong"))
    assert counted(unserved) == (Verdict.FAILED, 0, 3)
    assert " UTC by check.py (pid " in results(unserved)["softmax", "float32"].reason
    as_user(unserved, (2, "right"))
    assert counted(unserved) == (Verdict.PASSED, 3, 0)
    reason = results(unserved)["softmax", "float32"].reason
    assert "3 of earlier commands do not count" in reason


def test_all_processes_of_a_command_count(unserved: Served) -> None:
    unserved.start()
    as_user(unserved, (1, "wrong"), (2, "right"))
    assert counted(unserved) == (Verdict.FAILED, 3, 3)
    as_user(unserved, (1, "right"), (2, "right"))
    assert counted(unserved) == (Verdict.PASSED, 6, 0)


def test_another_function_hides_no_failure(unserved: Served) -> None:
    """Both are run on the same cases; the right one is the last."""
    unserved.start()
    as_user(unserved, (1, "both"))
    assert counted(unserved) == (Verdict.FAILED, 3, 3)


def test_a_command_at_the_same_time_hides_no_failure(unserved: Served) -> None:
    unserved.start()
    submit(unserved, wrong=True, seed=1)
    as_user(unserved, (1, "right"))
    submit(unserved, seed=9)
    verdict, _, failed = counted(unserved)
    assert (verdict, failed) == (Verdict.FAILED, 1)
