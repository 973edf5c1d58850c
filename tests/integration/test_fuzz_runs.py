"""A fuzz run as a whole: the same cases whatever the number of jobs, memory flat, nothing lost."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mini_workspace import Mini
from msgspec.structs import replace

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.fuzz.failures import subject_for
from gpuemu_flow.fuzz.fuzzing import Fuzzer, FuzzOptions
from gpuemu_flow.fuzz.outcome import Judged, OpFuzzOutcome
from gpuemu_flow.fuzz.session import fuzz_ops
from gpuemu_flow.model.decoding import plain
from gpuemu_flow.model.errors import UsageError
from gpuemu_flow.report.fuzz_text import render
from gpuemu_flow.report.json_writer import fuzz_report
from gpuemu_flow.report.text import Style
from gpuemu_flow.store.cache import WorkspaceCache
from gpuemu_flow.store.failures import FailureStore

pytestmark = pytest.mark.ci

BIG = """\
[project]
name = "big"

[[ops]]
name = "triple"
op = "scripts/scale.py:scale"
reference = "scripts/scale_ref.py:reference"
input_names = ["x"]
dtypes = ["float32"]
schema = { dims = { M = [128], N = [1024] }, inputs = { x = ["M", "N"] }, output = ["M", "N"] }
"""


def fuzzed(mini: Mini, op: str, options: FuzzOptions, **hooks: object) -> OpFuzzOutcome:
    workspace = Workspace(mini.root, environ={"HOME": str(mini.root)})
    workspace.cache.create()
    try:
        return Fuzzer(workspace, op, options, **hooks).run()  # type: ignore[arg-type]
    finally:
        workspace.cache.close()


@pytest.mark.parametrize("shapes", [(), ((3, 5), (2, 17))])
@pytest.mark.ci
def test_the_same_cases_and_verdicts_whatever_the_number_of_jobs(
    mini: Mini, shapes: tuple[tuple[int, ...], ...]
) -> None:
    mini.edit("scripts/total.py", "acc +=", "acc =")
    options = [
        FuzzOptions(iterations=60, seed=9, jobs=jobs, force=True, shapes=shapes) for jobs in (1, 3)
    ]
    judged: list[list[Judged]] = [[], []]
    one, three = (
        fuzzed(mini, "total", each, on_case=seen.append)
        for each, seen in zip(options, judged, strict=True)
    )
    runs = [sorted(seen, key=lambda j: j.number) for seen in judged]
    numbered = [[(j.number, plain(j.case)) for j in run] for run in runs]
    assert numbered[0] == numbered[1]
    assert [number for number, _ in numbered[0]] == list(range(60))
    verdicts = [[plain(j.result) for j in run] for run in runs]
    assert verdicts[0] == verdicts[1]
    assert one.failures
    for what in ("passing", "coverage", "margins", "worst_margin", "passed_classes"):
        assert getattr(one, what) == getattr(three, what), what


@pytest.mark.ci
def test_memory_stays_flat(mini: Mini) -> None:
    """A case's inputs, outputs and expected values are 2 MB: 150 cases must not keep 20 of them.

    The lowest of several moments is taken, since a moment may fall on any stage of a batch, and on
    a worker that is being replaced.
    """
    mini.write("gpuemu.toml", BIG)
    program = Path(__file__).with_name("fuzz_memory.py")
    command = [sys.executable, str(program), str(mini.root), "triple", "310"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=mini.root)
    told = json.loads(done.stdout)
    assert told["cases"] == 310
    seen = {int(number): held for number, held in told["held"].items()}
    early = min(held for number, held in seen.items() if 60 <= number <= 150)
    late = min(held for number, held in seen.items() if 210 <= number <= 300)
    assert late - early < 40e6


def own_memory() -> int:
    """Bytes in memory of this process, which coordinates the run."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.ci
def test_memory_stays_flat_where_two_of_three_cases_fail(mini: Mini) -> None:
    """A case that fails takes some 4 kB where it is kept: 5 MB between the two looks."""
    mini.edit("scripts/scale.py", "* 3)", "* 3)[: -1 if len(x) % 2 else None]")
    seen: dict[int, int] = {}

    def on_case(judged: Judged) -> None:
        if judged.number % 20 == 0 and (judged.number < 600 or judged.number >= 2400):
            gc.collect()  # in a process with many objects the interpreter seldom does
            seen[judged.number] = own_memory()

    workspace = Workspace(mini.root, environ={"HOME": str(mini.root)})
    options = FuzzOptions(iterations=2600, jobs=1, confirm=False, most_failures=100)
    (report,) = fuzz_ops(workspace, ["scale"], options, on_case=on_case)
    early = min(seen[number] for number in range(400, 600, 20))
    late = min(seen[number] for number in range(2400, 2600, 20))
    assert late - early < 2.5e6
    assert report.failed + report.errors > 1000
    listed = sum(len(group.failures) for group in report.groups)
    assert 100 <= listed <= 101
    assert sum(report.left_out.values()) == report.failed + report.errors - listed
    assert len(FailureStore(workspace.cache).list("scale")) < 120
    assert fuzz_report(report)["failures_left_out"] == dict(report.left_out)
    (told,) = [
        line for line in render(report, Style(color=False)).splitlines() if "more fail" in line
    ]
    assert told.endswith(f"neither listed nor recorded: {report.errors - listed} ShapeMismatch")
    workspace.cache.close()


@pytest.mark.ci
def test_an_interrupted_fuzz_keeps_its_failures_and_goes_on(mini: Mini) -> None:
    mini.edit("scripts/scale.py", "* 3", "* (3 if len(x) < 7 else 4)")
    process = mini.popen("fuzz", "scale", "-n", "1000000", "-j", "1", "--minimize")
    deadline = time.monotonic() + 600
    while _recorded(mini.root) < 20:
        assert time.monotonic() < deadline
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 130, out + err
    assert "interrupted after" in out
    assert "run again to go on" in out
    assert "failed ToleranceExceeded" in out
    listed = mini.command("failures", "--format", "json", "-l", "100000").stdout
    failures = json.loads(listed)["failures"]
    assert len(failures) >= 20
    done = mini.command("fuzz", "scale", "-n", "10", "--format", "json", code=None)
    assert json.loads(done.stdout)["cached"] == 10


def _recorded(root: Path) -> int:
    if not (root / ".gpuemu-cache/failures/cache.db").exists():
        return 0
    cache = WorkspaceCache(root / ".gpuemu-cache")
    try:
        return len(FailureStore(cache).list())
    finally:
        cache.close()


def test_after_an_edit_of_the_op_its_cases_are_judged_again(mini: Mini) -> None:
    first = fuzzed(mini, "scale", FuzzOptions(iterations=20))
    assert (first.cached, len(first.failures)) == (0, 0)
    assert fuzzed(mini, "scale", FuzzOptions(iterations=20)).cached == 20
    mini.edit("scripts/scale.py", "* 3", "* 3.0625")
    again = fuzzed(mini, "scale", FuzzOptions(iterations=20))
    assert again.cached == 0
    assert len(again.failures) > 10
    mini.edit("scripts/scale.py", "* 3.0625", "* 3")
    assert fuzzed(mini, "scale", FuzzOptions(iterations=20)).cached == 20


@pytest.mark.parametrize("lacking", ["compare", "reference", "op"])
def test_a_record_that_does_not_say_how_the_op_was_run_is_refused(mini: Mini, lacking: str) -> None:
    mini.edit("scripts/scale.py", "* 3)", "* 3.5)")
    mini.command("fuzz", "scale", "-n", "1", "--no-confirm", code=1)
    text = (mini.root / "gpuemu.toml").read_text()
    mini.write("gpuemu.toml", text.replace('"scale"', '"scaled"'))
    workspace = Workspace(mini.root, environ=mini.environment())
    (record,) = FailureStore(workspace.cache)
    subject, _ = subject_for(workspace, record)
    assert subject.name == "scale"
    for damaged in ({"junk": 1}, [], None):
        changed = replace(record, provenance={**record.provenance, lacking: damaged})
        with pytest.raises(UsageError) as refused:
            subject_for(workspace, changed)
        assert refused.value.slug == "failure-not-runnable"
    workspace.cache.close()
