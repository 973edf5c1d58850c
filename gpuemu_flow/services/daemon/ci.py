"""RunCi and GetCiSummary: check the whole workspace like ``gpuemu-flow ci``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time

import msgspec
from msgspec import Struct

from gpuemu_flow.lint.kernel import KernelRecord
from gpuemu_flow.model.decoding import convert, known
from gpuemu_flow.model.types import Json
from gpuemu_flow.services.daemon.artifacts import diff_summary, lint_of_run
from gpuemu_flow.services.daemon.fields import Fields
from gpuemu_flow.services.daemon.jobs import Job
from gpuemu_flow.services.daemon.replies import LARGEST, RequestError
from gpuemu_flow.services.daemon.service import Service
from gpuemu_flow.store.baselines import BaselineStore


class CiFailure(Struct, frozen=True):
    """A failing case in a report."""

    op: str
    seed: int
    verdict: str
    kind: str
    messages: tuple[str, ...]
    max_abs: float
    max_rel: float

    def to_wire(self) -> dict[str, Json]:
        """Return the failure in the protocol's form, ``ValidationResult``."""
        absent = {"index": None, "expected": None, "actual": None}
        return {
            "passed": False,
            "seed": self.seed,
            "op_name": self.op,
            "max_diff": _finite(self.max_abs),
            "max_rel_diff": _finite(self.max_rel),
            "failures": [
                {"kind": self.kind, "message": text, **absent}
                for text in self.messages or (self.verdict,)
            ],
            "timestamp": int(time.time()),
            "duration_ms": 0,
            "repro_info": None,
            "verdict": self.verdict,
        }


class CiReport(Struct, frozen=True):
    """Counts, failing cases and linted kernels of a report that ``ci`` prints."""

    total_tests: int
    passed: int
    failed: int
    errors: int
    skipped: int
    inconclusive: int
    duration_ms: int
    failures: tuple[CiFailure, ...]
    kernels: tuple[dict[str, Json], ...]

    @property
    def linted(self) -> list[KernelRecord]:
        """Return the kernels that had something to lint."""
        told = [record for record in self.kernels if record["metrics"] is not None]
        return convert(told, list[KernelRecord], strict=False)

    def summary(self) -> dict[str, Json]:
        """Return the fields of ``CiRunComplete`` that come from the report."""
        return {
            "total_tests": self.total_tests,
            "passed": self.passed,
            "failed": self.failed + self.errors,
            "skipped": self.skipped,
            "inconclusive": self.inconclusive,
            "duration_ms": self.duration_ms,
            "timestamp": int(time.time()),
            "validation_results": [failure.to_wire() for failure in self.failures],
        }


def _finite(number: float) -> float:
    return number if -LARGEST <= number <= LARGEST else LARGEST


SLICE_SECONDS = 0.1
GRACE_SECONDS = 5.0
_SERVICES = ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY")
"""Environment variables that ``ci`` must not inherit: they would make it write to a CI service
whose job did not ask for this run."""


def run_ci(service: Service, fields: Fields, job: Job) -> dict[str, Json]:
    """Answer ``RunCi``: check the workspace in a separate process, which can be killed."""
    quick = fields.flag("quick", default=False)
    jobs = fields.integer("parallel_jobs", 0, 1024, default=0)
    tag = fields.optional_name("baseline")
    if tag is not None and diff_summary(service, tag) is None:
        BaselineStore(service.cache).get(tag)  # an unknown one is an error before the work
    report = _run(service, job, jobs, quick=quick)
    summary = {
        **report.summary(),
        "lint_results": [lint_of_run(service, kernel) for kernel in report.linted],
        "artifact_diffs": None if tag is None else diff_summary(service, tag),
    }
    service.cache.state.put("wire:ci-summary", summary)
    return {"type": "CiRunComplete", **summary}


def get_ci_summary(service: Service, _fields: Fields, _job: Job) -> dict[str, Json]:
    """Answer ``GetCiSummary``: return the summary of the last ``RunCi``."""
    summary = service.cache.state.get("wire:ci-summary")
    if not isinstance(summary, dict):
        raise RequestError("NotFound", "no RunCi has finished yet")
    return {"type": "CiRunComplete", **summary}


def _run(service: Service, job: Job, jobs: int, *, quick: bool) -> CiReport:
    workspace = service.configured().workspace
    arguments = [sys.executable, "-m", "gpuemu_flow", "ci", "--format", "json"]
    arguments += ["--quick"] if quick else []
    if jobs:
        arguments += ["--parallel", str(jobs)]
    environment = {name: value for name, value in os.environ.items() if name not in _SERVICES}
    environment |= {"GPUEMU_CONFIG": str(workspace.config_path), "NO_COLOR": "1"}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(
            arguments,
            cwd=workspace.root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=complaints,
            start_new_session=True,
        )
        try:
            while True:
                try:
                    process.wait(SLICE_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    job.check()
        finally:
            _end(process)
        out.seek(0)
        complaints.seek(0)
        try:
            return msgspec.json.decode(out.read(), type=known(CiReport), strict=False)
        except msgspec.MsgspecError:
            text = complaints.read()[-2000:].decode("utf-8", "replace").strip()
            code = "ConfigError" if process.returncode == 2 else "InternalError"
            raise RequestError(code, text or "the run gave no report") from None


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
