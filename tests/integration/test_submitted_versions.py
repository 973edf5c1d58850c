"""Test that outputs of clients count as long as the code that gave them is as it was."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from daemon_workspace import Served
from submissions import ONLY_CLIENTS, command, results, run

from gpuemu_flow.types import Verdict

pytestmark = pytest.mark.ci

OPS = """
def right(i):
    import numpy as np
    x = i["x"]
    if not x.ndim or not x.size:
        return np.ones_like(x)
    wide = x.astype(np.float64)
    powers = np.exp(wide - wide.max(-1, keepdims=True))
    return (powers / powers.sum(-1, keepdims=True)).astype(x.dtype)
"""
FUZZ = """
import sys
from gpuemu_flow.client import Client
import ours

with Client(sys.argv[1]) as client:
    how, seed = sys.argv[2], int(sys.argv[3])
    if how == "fuzz":
        client.fuzz_op_client_side("softmax", ours.op, 3, seed, dtypes=["float32"])
    else:
        for case in client.get_test_batch("softmax", 3, seed, dtypes=["float32"]):
            client.submit_output("softmax", case.inputs, ours.op(case.inputs), case.seed)
"""


def as_user(served: Served, folder: str, how: str, seed: int, op: str) -> None:
    """Another process, whose script imports the op from a module beside it."""
    served.write(f"{folder}/ours.py", OPS + f"\n\ndef op(i):\n    return {op}\n")
    script = served.write(f"{folder}/script.py", FUZZ)
    command = [sys.executable, "-B", str(script), served.socket, how, str(seed)]
    subprocess.run(command, check=True, timeout=600, env=served.environ, cwd=served.folder)


@pytest.mark.parametrize("how", ["fuzz", "submit"])
@pytest.mark.ci
def test_newer_code_retires_what_older_code_gave(unserved: Served, how: str) -> None:
    unserved.start()
    as_user(unserved, "one", how, 1, "right(i) + 1")
    first = results(unserved)["softmax", "float32"]
    assert (first.verdict, first.failed) == (Verdict.FAILED, 3)
    assert " UTC by script.py (pid " in first.reason
    as_user(unserved, "one", how, 2, "right(i)")
    mended = results(unserved)["softmax", "float32"]
    assert (mended.verdict, mended.passed, mended.cases) == (Verdict.PASSED, 3, 3)
    as_user(unserved, "one", how, 3, "right(i)")
    assert results(unserved)["softmax", "float32"].passed == 6, "the same code adds to it"


def test_other_code_hides_no_failure(unserved: Served) -> None:
    """Two checkouts, even on the same cases."""
    unserved.start()
    as_user(unserved, "one", "fuzz", 1, "right(i) + 1")
    as_user(unserved, "two", "fuzz", 1, "right(i)")
    found = results(unserved)["softmax", "float32"]
    assert (found.verdict, found.passed, found.failed) == (Verdict.FAILED, 3, 3)


def told(served: Served) -> dict[str, str]:
    """Return the verdict on the op by each command that reads results, and by JUnit."""
    found = {}
    for name in ("run", "ci", "report"):
        done = command(served, name, "--format", "json")
        (result,) = json.loads(done.stdout)["results"]
        found[name] = f"{result['verdict']}: {result['reason']}"
        assert (done.returncode == 0) == (result["verdict"] == "passed"), done.stdout
    verdicts = json.loads(command(served, "status", "--format", "json").stdout)["verdicts"]
    found["status"] = f"{', '.join(verdicts)}: {command(served, 'status').stdout}"
    xml = command(served, "report", "--format", "junit").stdout
    found["junit"] = f"{'skipped' if '<skipped' in xml else 'passed'}: {xml}"
    return found


@pytest.mark.parametrize(("how", "path"), [("fuzz", "ours.py"), ("submit", "script.py")])
def test_code_that_changed_since_did_not_pass(unserved: Served, how: str, path: str) -> None:
    unserved.write("gpuemu.toml", ONLY_CLIENTS)
    unserved.start()
    as_user(unserved, "one", how, 1, "right(i)")
    good = told(unserved)
    assert {said.partition(":")[0] for said in good.values()} == {"passed"}
    assert "up to date" in command(unserved, "run").stdout
    command(unserved, "baseline", "good")

    edited = unserved.root / "one" / path
    before = edited.read_text()
    edited.write_text(before.replace("right(i)", "right(i) + 1") + "\n# edited\n")
    changed = told(unserved)
    assert {said.partition(":")[0] for said in changed.values()} == {"skipped"}, changed
    for name, said in changed.items():
        if name != "status":
            assert "3 submissions, whose code changed since: " in said, name
            assert path in said and "submit again" in said, name
    diff = command(unserved, "diff", "--format", "json")
    (change,) = json.loads(diff.stdout)["results"]
    assert (diff.returncode, change["status"], change["new"]) == (1, "regression", "skipped")

    edited.write_text(before)
    assert run(unserved, 0)["reason"] == good["run"].removeprefix("passed: "), "as it was"
    edited.unlink()
    assert f"{path} (gone)" in run(unserved, 4)["reason"]


@pytest.mark.parametrize("how", ["fuzz", "submit"])
def test_a_constant_that_the_code_imports_by_name_is_its_code(unserved: Served, how: str) -> None:
    unserved.write("gpuemu.toml", ONLY_CLIENTS)
    unserved.write("one/passed_on.py", "from constants import S\n")
    constants = unserved.write("one/constants.py", "S = 1\n")
    unserved.start()
    as_user(unserved, "one", how, 1, "right(i) * S\n\n\nfrom passed_on import S")
    assert run(unserved, 0)["verdict"] == "passed"
    constants.write_text("S = 3\n")
    found = run(unserved, 4)
    assert found["verdict"] == "skipped" and "one/constants.py" in found["reason"], found
    constants.write_text("S = 1\n")
    assert run(unserved, 0)["verdict"] == "passed"


def test_code_that_is_not_judged_as_it_is_leaves_no_pass_to_other_code(unserved: Served) -> None:
    """The code of one origin was edited; that of the other passed, and says nothing of it."""
    unserved.start()
    as_user(unserved, "one", "fuzz", 1, "right(i)")
    as_user(unserved, "two", "fuzz", 2, "right(i)")
    assert results(unserved)["softmax", "float32"].passed == 6
    path = unserved.root / "one" / "ours.py"
    path.write_text(path.read_text() + "# edited\n")
    found = results(unserved)["softmax", "float32"]
    assert (found.verdict, found.passed) == (Verdict.INCONCLUSIVE, 3)
    assert "one/ours.py changed since its outputs were submitted" in found.reason
    as_user(unserved, "one", "fuzz", 3, "right(i)")
    found = results(unserved)["softmax", "float32"]
    assert (found.verdict, found.passed) == (Verdict.PASSED, 9), "as it was, and three more"
    path.unlink()
    found = results(unserved)["softmax", "float32"]
    assert (found.verdict, found.passed) == (Verdict.PASSED, 3), "what is gone needs no verdict"
    assert "6 more do not count" in found.reason
