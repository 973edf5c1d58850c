"""Requests about kernels and about the whole workspace, by way of our own client."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from daemon_workspace import Served

from gpuemu_flow.client import Client, ClientError

PTX = """.version 8.0
.target sm_80
.address_size 64
.visible .entry scale(.param .u64 p)
{
    .reg .b32 %r<8>;
    .reg .f32 %f<4>;
    .local .align 4 .b8 buffer[64];
    mov.u32 %r1, 1;
    add.s32 %r2, %r1, %r1;
    ret;
}
"""


@pytest.fixture
def client(daemon: Served) -> Client:
    return daemon.client(timeout_ms=600_000)


def test_kernels(client: Client) -> None:
    (linted,) = client.lint_kernel(PTX)
    assert linted["kernel_name"] == "scale"
    assert linted["metrics"]["instruction_count"] == 3
    assert linted["metrics"]["local_memory_bytes"] == 64
    assert client.get_artifact("scale")["patterns_found"] == ["add.s32", "mov.u32", "ret"]
    assert client.lint_kernel(PTX, "other")[0]["kernel_name"] == "other"
    assert {a["kernel_name"] for a in client.list_artifacts()} >= {"scale", "other"}
    client.store_artifact_baseline("v1")
    assert not client.diff_artifact_baseline("v1")["has_regressions"]
    metrics = {**client.get_artifact("scale"), "spill_count": 7}
    client.store_artifact("scale", metrics)
    diff = client.diff_artifact_baseline("v1")
    assert diff["has_regressions"]
    assert {d["kernel_name"]: d["spill_delta"] for d in diff["diffs"]}["scale"] == 7
    for call, code in (
        (lambda: client.lint_kernel("not PTX"), "PtxParseError"),
        (lambda: client.get_artifact("none"), "ArtifactNotFound"),
        (lambda: client.diff_artifact_baseline("v2"), "BaselineNotFound"),
    ):
        with pytest.raises(ClientError) as caught:
            call()
        assert caught.value.code == code


def test_kernels_of_the_whole_workspace(unserved: Served) -> None:
    unserved.write(
        "gpuemu.toml",
        """
        [project]
        name = "kernels"
        [[kernels]]
        name = "scale"
        ptx = "scale.ptx"
        [kernels.checks]
        max_registers = 4
        """,
    )
    unserved.write("scale.ptx", PTX)
    unserved.start()
    with unserved.client() as client:
        summary = client.run_ci()
        (lint,) = summary.lint_results
        assert lint["kernel_name"] == "scale"
        assert client.get_ci_summary().lint_results == [lint]
        assert client.get_artifact("scale")["local_memory_bytes"] == 64
        client.store_artifact_baseline("before")
        unserved.write("scale.ptx", PTX.replace("buffer[64]", "buffer[96]"))
        diffs = client.run_ci(baseline="before").artifact_diffs
        assert (diffs["baseline_tag"], diffs["has_regressions"]) == ("before", True)
        assert [d["local_memory_delta"] for d in diffs["diffs"]] == [32]


@pytest.mark.ci
def test_the_whole_workspace(daemon: Served, client: Client) -> None:
    daemon.open_gate()
    summary = client.run_ci()
    assert summary.passed > 0
    failing = {r.op_name for r in summary.validation_results}
    assert "wrong" in failing
    assert failing <= {"wrong", "softmax", "scaled", "matmul"}, "or what clients submitted"
    assert summary.artifact_diffs is None
    assert summary.failed == len(summary.validation_results)
    assert summary.total_tests == (
        summary.passed + summary.failed + summary.inconclusive + summary.skipped
    )
    assert summary.skipped > 0
    assert client.get_ci_summary().total_tests == summary.total_tests
    with pytest.raises(ClientError) as caught:
        client.run_ci(baseline="none")
    assert caught.value.code == "BaselineNotFound"


@pytest.mark.ci
def test_what_a_daemon_counts_is_what_the_command_counts(unserved: Served) -> None:
    unserved.write(
        "gpuemu.toml",
        """
        [project]
        name = "counted"
        [validation]
        cases = 3
        [ci]
        fuzz_iterations = 5
        quick = { fuzz_iterations = 2, dtypes = ["float64"] }
        [[ops]]
        name = "wrong"
        op = "scripts/twice.py:wrong"
        reference = "scripts/double.py:reference"
        input_names = ["x"]
        dtypes = ["float32", "float64"]
        [[ops]]
        name = "double"
        op = "scripts/twice.py:double"
        reference = "scripts/double.py:reference"
        input_names = ["x"]
        """,
    )
    step_summary = unserved.folder / "step-summary.md"
    unserved.environ |= {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(step_summary)}
    unserved.start()
    counted = ("total_tests", "passed", "skipped", "inconclusive")
    for quick, total in ((False, 3 * 5), (True, 2 + 1)):
        words = ["--quick"] if quick else []
        with unserved.client() as client:
            summary = client.run_ci(quick=quick)
        done = subprocess.run(
            [sys.executable, "-m", "gpuemu_flow", "ci", "--format", "json", *words],
            cwd=unserved.root,
            env={n: v for n, v in unserved.environ.items() if not n.startswith("GITHUB")},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        report = json.loads(done.stdout)
        assert report["executed"] == [], "the daemon's run left nothing to do"
        assert {name: getattr(summary, name) for name in counted} == {
            name: report[name] for name in counted
        }
        assert summary.failed == report["failed"] + report["errors"]
        assert summary.total_tests == total
    assert not step_summary.exists(), "a service was told of a run that it had not asked for"
