"""Requests that check kernels, and the whole workspace like ``gpuemu-flow ci``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

import msgspec
from msgspec import Struct, to_builtins

from gpuemu_flow.build.compile_kernels import kernel_policy
from gpuemu_flow.config.model import Config
from gpuemu_flow.lint.kernel import KernelMetrics, KernelPolicy, KernelRecord, KernelView, Violation
from gpuemu_flow.lint.measure import Artifact, KnownLaunch, Linter, measure
from gpuemu_flow.model.decoding import convert, known
from gpuemu_flow.model.errors import UsageError, did_you_mean
from gpuemu_flow.model.types import Json, Verdict
from gpuemu_flow.report import baselines
from gpuemu_flow.services.daemon.replies import LARGEST, MAX_NAME, Fields, RequestError, invalid
from gpuemu_flow.services.daemon.service import Job, Service
from gpuemu_flow.store.baselines import ArtifactMetrics, BaselineStore

# Requests about kernels: lint, stored metrics, and baselines of metrics.

MAX_U32 = (1 << 32) - 1
_DELTAS = {
    "register_delta": "register_count",
    "spill_delta": "spill_count",
    "local_memory_delta": "local_memory_bytes",
    "instruction_delta": "instruction_count",
    "shared_memory_delta": "shared_memory_bytes",
}
_GATED = ("register_delta", "spill_delta", "local_memory_delta")
"""Changes that count as a regression if they are positive; other changes are only reported."""
_KINDS = {
    "register-limit": "ExcessiveRegisters",
    "real-spills": "ExcessiveSpills",
    "local-memory": "ExcessiveLocalMemory",
    "required-instruction": "MissingRequiredPattern",
    "forbidden-instruction": "ForbiddenPatternFound",
}
_HEADER = ".version 8.0 .target sm_80 .address_size 64 "
"""Text put before PTX without a header, such as the PTX in the protocol's pages. It adds no line,
so that line numbers stay correct."""
_SPILLS = ("ld.local", "st.local")


def lint_kernel(service: Service, fields: Fields, _job: Job) -> dict[str, Json]:
    text, name = fields.string("ptx_content"), fields.optional_name("kernel_name")
    config = service.configured().workspace.config
    if ".version" not in text and ".entry" in text:
        text = _HEADER + text
    found = measure(Artifact("ptx_content", ptx=text.encode()), _launches(config))
    if not found.kernels:
        reasons = "; ".join(problem.message for problem in found.problems)
        raise RequestError("PtxParseError", f"the text holds no kernel: {reasons}")
    results = []
    for view, shown in _chosen(found.kernels, name):
        linted = Linter(_policy(config, shown)).lint(view)
        metrics = _metrics(shown, view.metrics)
        service.artifacts.put(metrics)
        results.append(_lint_result(metrics, linted.verdict, linted.violations))
    return {
        "type": "LintResults",
        "results": results,
        "problems": [problem.message for problem in found.problems],
    }


def _chosen(views: list[KernelView], name: str | None) -> list[tuple[KernelView, str]]:
    """Return the kernels to lint, each with the name under which its findings are reported. Without
    a `name`, these are all kernels, under their own names. With a `name`, it is the kernel of that
    name. If the text has only one kernel, that kernel is reported as `name`, even if its own name
    is different."""
    if name is None:
        return [(view, view.name) for view in views]
    named = [view for view in views if view.name == name]
    if named:
        return [(named[0], name)]
    if len(views) == 1:
        return [(views[0], name)]
    known = tuple(view.name for view in views)
    raise RequestError(
        "KernelNotFound", f"the text holds no kernel {name!r}; {did_you_mean(name, known)}"
    )


def _launches(config: Config) -> dict[str, KnownLaunch]:
    return {
        kernel.name: KnownLaunch(kernel.threads_per_block or 0, kernel.dynamic_shared_memory)
        for kernel in config.kernels
    }


def _policy(config: Config, name: str) -> KernelPolicy:
    """Return the limits for a kernel: those of ``[policies]``, overridden by the kernel's own."""
    kernel = next((k for k in config.kernels if k.name == name), None)
    return kernel_policy(config.policies, kernel)


def _metrics(name: str, metrics: KernelMetrics) -> ArtifactMetrics:
    """Convert a kernel's metrics to the protocol's form, and add figures that the form lacks."""
    spills = sum(count for opcode, count in metrics.opcodes.items() if opcode.startswith(_SPILLS))
    return ArtifactMetrics(
        kernel_name=name,
        register_count=metrics.declared_registers or 0,
        spill_count=spills,
        local_memory_bytes=metrics.local_bytes or 0,
        shared_memory_bytes=metrics.shared_bytes or 0,
        instruction_count=metrics.instructions or 0,
        patterns_found=tuple(sorted(metrics.opcodes)),
        source="Ptx",
        timestamp=int(time.time()),
        registers=metrics.registers,
        metric_source=metrics.metric_source,
        max_live=metrics.max_live,
    )


def _lint_result(
    metrics: ArtifactMetrics, verdict: Verdict, violations: Sequence[Violation]
) -> dict[str, Json]:
    return {
        "kernel_name": metrics.kernel_name,
        "passed": verdict is Verdict.PASSED,
        "metrics": to_builtins(metrics),
        "violations": [
            _violation(violation.rule, violation.message, violation.actual, violation.limit)
            for violation in violations
            if violation.severity == "error" and not violation.allowed
        ],
        "findings": to_builtins(violations),
        "timestamp": metrics.timestamp,
    }


def lint_of_run(service: Service, record: KernelRecord) -> dict[str, Json]:
    """Store the metrics of a kernel that a CI run linted, and return its ``LintResult``."""
    figures = record.metrics
    metrics = ArtifactMetrics(
        kernel_name=record.name,
        register_count=_u32(figures.declared_registers or figures.registers) or 0,
        spill_count=_u32(figures.spill_instructions) or 0,
        local_memory_bytes=_u32(figures.local_bytes) or 0,
        shared_memory_bytes=_u32(figures.shared_bytes) or 0,
        instruction_count=_u32(figures.instructions) or 0,
        patterns_found=tuple(sorted(figures.families)),
        source="Ptx",
        timestamp=int(time.time()),
        registers=figures.registers,
        metric_source=record.metric_source,
        max_live=figures.max_live,
    )
    service.artifacts.put(metrics)
    return _lint_result(metrics, record.verdict, record.violations)


def _violation(
    rule: str, message: str, actual: float | None, limit: float | None
) -> dict[str, Json]:
    return {
        "kind": _KINDS.get(rule, rule),
        "message": message,
        "actual": _u32(actual),
        "threshold": _u32(limit),
    }


def _u32(value: float | None) -> int | None:
    return None if value is None else max(0, min(int(value), MAX_U32))


def store_artifact(service: Service, fields: Fields, _job: Job) -> dict[str, Json]:
    fields.name("kernel_name")
    metrics = fields.object("metrics")
    name = metrics.get("kernel_name")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        raise invalid("metrics.kernel_name must be a name")
    counts: dict[str, Json] = {key: metrics.get(key) for key in _DELTAS.values()}
    for key, value in counts.items():
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_U32:
            raise invalid(f"metrics.{key} must be an integer between 0 and {MAX_U32}")
    patterns = metrics.get("patterns_found", [])
    if not isinstance(patterns, list) or not all(isinstance(p, str) for p in patterns):
        raise invalid("metrics.patterns_found must be an array of strings")
    source = metrics.get("source", "Ptx")
    if source not in ("Ptx", "Sass", "Both"):
        raise invalid("metrics.source must be Ptx, Sass or Both")
    stamp = metrics.get("timestamp", int(time.time()))
    if not isinstance(stamp, int) or isinstance(stamp, bool):
        raise invalid("metrics.timestamp must be an integer")
    service.artifacts.put(
        ArtifactMetrics(
            kernel_name=name,
            **counts,
            patterns_found=tuple(patterns),
            source=source,
            timestamp=stamp,
        )
    )
    return {"type": "Ok"}


def get_artifact(service: Service, fields: Fields, _job: Job) -> dict[str, Json]:
    name = fields.name("kernel_name")
    metrics = service.artifacts.get(name)
    if metrics is None:
        known = tuple(service.artifacts.everything())
        text = f"no metrics of a kernel {name!r}; {did_you_mean(name, known)}"
        raise RequestError("ArtifactNotFound", text.rstrip("; "))
    return {"type": "ArtifactMetricsResult", **to_builtins(metrics)}


def list_artifacts(service: Service, _fields: Fields, _job: Job) -> dict[str, Json]:
    every = list(service.artifacts.everything().values())
    return {"type": "ArtifactList", "artifacts": to_builtins(every)}


def store_baseline(service: Service, fields: Fields, _job: Job) -> dict[str, Json]:
    """Answer ``StoreArtifactBaseline``: store all metrics in the baseline that has the given tag.
    Metrics that the baseline already had are replaced."""
    tag, workspace = fields.name("tag"), service.configured().workspace
    with service.baselines_lock:
        baselines.store_artifacts(workspace, tag, service.artifacts.everything())
    return {"type": "Ok"}


def diff_baseline(service: Service, fields: Fields, _job: Job) -> dict[str, Json]:
    tag = fields.name("tag")
    summary = diff_summary(service, tag)
    if summary is None:
        known = BaselineStore(service.cache).list()
        tags = [baseline.tag for baseline in known if baseline.artifacts is not None]
        text = f"no artifact baseline {tag!r}; {did_you_mean(tag, tags)}"
        raise RequestError("BaselineNotFound", text.rstrip("; "))
    return {"type": "ArtifactDiffs", **summary}


def diff_summary(service: Service, tag: str) -> dict[str, Json] | None:
    """Compare the present metrics with a baseline; None if no baseline of metrics has the tag."""
    try:
        then = BaselineStore(service.cache).get(tag).artifacts
    except UsageError:
        return None
    if then is None:
        return None
    now = service.artifacts.everything()
    diffs = [_diff(name, then.get(name), current) for name, current in now.items()]
    return {
        "baseline_tag": tag,
        "diffs": diffs,
        "has_regressions": any(diff["is_regression"] for diff in diffs),
        "removed": sorted(set(then) - set(now)),
    }


def _diff(name: str, then: ArtifactMetrics | None, now: ArtifactMetrics) -> dict[str, Json]:
    deltas = {
        delta: 0 if then is None else getattr(now, count) - getattr(then, count)
        for delta, count in _DELTAS.items()
    }
    return {
        "kernel_name": name,
        "baseline": to_builtins(then),
        "current": to_builtins(now),
        **deltas,
        "is_regression": any(deltas[delta] > 0 for delta in _GATED),
    }


# RunCi and GetCiSummary: check the whole workspace like ``gpuemu-flow ci``.


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
