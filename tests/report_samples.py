"""Reports made by hand for the tests of their writers: plain, hostile, and very large."""

from __future__ import annotations

from typing import Any

from msgspec import structs
from msgspec.structs import replace

from gpuemu_flow.judge.results import (
    CaseVerdict,
    KernelResult,
    KnownFailure,
    Minimal,
    MinimalInput,
    OpResult,
    Regression,
    RunReport,
    TaskCounts,
)
from gpuemu_flow.lint.diff import ChangeJudgement, KernelDiff, MetricChange
from gpuemu_flow.lint.kernel import KernelFigures, KernelRecord, Occupancy, Violation
from gpuemu_flow.model.errors import Problem
from gpuemu_flow.model.types import (
    Case,
    CheckResult,
    ErrorStats,
    Failure,
    FailureKind,
    InputSpec,
    Verdict,
)
from gpuemu_flow.report.document import (
    BaselineDiff,
    FileLine,
    Picture,
    Report,
)
from gpuemu_flow.store.baselines import Baseline
from gpuemu_flow.store.failures import FailureRecord

HOSTILE = (
    "<script>alert('x')</script>]]>&amp;|`x`|<!-- --> \x1b[31m\x00\x07\ufffe \u202e @everyone\r\n"
    "::error::fake %0A,line=9 --- ### [a](javascript:b) </td></details> \U0001f600\n"
    "  ::stop-commands::all ##[error]fake ##vso[task.complete] \udce9\ud800 \x85\u2028\x9b31m"
)
CONTROLS = "\x1b\x00\x07"
HOSTILE_REGRESSION = Regression(HOSTILE, HOSTILE, what=HOSTILE, old=HOSTILE, baseline=HOSTILE)


def case(op_seed: int, **values: Any) -> Case:
    """A case of one input; `values` replace its own."""
    shape = values.pop("shape", (3, 5))
    dtype = values.pop("dtype", "float32")
    own: dict[str, Any] = {
        "index": 0,
        "seed": op_seed,
        "dtype": dtype,
        "layout": "contiguous",
        "strategy": "uniform",
        "inputs": (InputSpec("x", shape, dtype),),
        "shape_class": "tail",
    }
    return Case(**{**own, **values})


def passed(op: str, seed: int, **values: Any) -> CaseVerdict:
    stats = ErrorStats(count=15, num_finite=15, max_abs=1e-7, max_rel=1e-6, tolerance_used=0.25)
    return CaseVerdict(op, case(seed, **values), CheckResult(Verdict.PASSED, stats=stats))


def failed(
    op: str,
    seed: int,
    message: str = "3 of 15 elements of 'output' exceed the tolerance",
    *,
    kind: FailureKind = FailureKind.TOLERANCE,
    verdict: Verdict = Verdict.FAILED,
    used: float = 1234.5,
    notes: tuple[str, ...] = (),
    stderr: str = "",
    **values: Any,
) -> CaseVerdict:
    stats = ErrorStats(
        count=15, num_exceeding=3, max_abs=0.5, max_rel=0.25, max_ulp=9.0, tolerance_used=used,
        worst_index=(1, 2), worst_expected=2.0, worst_actual=2.5,
    )  # fmt: skip
    failure = Failure(kind, message, "output", (1, 2), 2.0, 2.5)
    return CaseVerdict(
        op, case(seed, **values), CheckResult(verdict, (failure,), stats, notes, stderr=stderr)
    )


def results_of(cases: list[CaseVerdict]) -> tuple[OpResult, ...]:
    """The summaries that the engine would make of such cases."""
    groups: dict[tuple[str, str], list[CaseVerdict]] = {}
    for one in cases:
        groups.setdefault((one.op, one.case.dtype), []).append(one)
    found = []
    for (op, dtype), members in groups.items():
        by = {v: [m for m in members if m.result.verdict is v] for v in Verdict}
        verdict = next(
            v
            for v in (Verdict.FAILED, Verdict.ERROR, Verdict.INCONCLUSIVE, Verdict.PASSED)
            if by[v]
        )
        found.append(
            OpResult(
                op, dtype, verdict, cases=len(members), passed=len(by[Verdict.PASSED]),
                failed=len(by[Verdict.FAILED]), errors=len(by[Verdict.ERROR]),
                inconclusive=len(by[Verdict.INCONCLUSIVE]),
                max_abs=max(m.result.stats.max_abs for m in members),
                max_rel=max(m.result.stats.max_rel for m in members),
                max_ulp=max(m.result.stats.max_ulp for m in members),
                tolerance_used=max(m.result.stats.tolerance_used for m in members),
                duration_s=0.5,
                sandbox="landlock 7, seccomp",
                failures=tuple(m for m in members if m.result.verdict != Verdict.PASSED),
                passing=tuple(m.case for m in by[Verdict.PASSED]),
            )
        )  # fmt: skip
    return tuple(found)


def report_of(cases: list[CaseVerdict], **values: Any) -> Report:
    """A report of such cases; `values` replace its own."""
    run = RunReport(
        TaskCounts(total=4, ran=4), ("compare:softmax:float32",), results_of(cases), duration_s=1.5
    )
    own: dict[str, Any] = {
        "run": run,
        "project": "sample",
        "created": "2026-01-02T03:04:05Z",
        "version": "1.2.3",
        "cases": tuple(cases),
        "places": {"softmax": FileLine("scripts/softmax.py", 7)},
    }
    return Report(**{**own, **values})


KERNEL = KernelResult(
    "softmax_kernel", "sm_80", Verdict.FAILED,
    entries=(
        KernelRecord(
            name="softmax_kernel", file="scripts/softmax.ptx", arch="sm_80", metric_source="cubin",
            metrics=KernelFigures(
                registers=40, spill_instructions=2, spill_bytes=16, stack_bytes=0, local_bytes=16,
                shared_bytes=1024, instructions=200, families={"fma": 10},
                occupancy=Occupancy(8, 32, 0.5, ("registers",), 128),
            ),
            violations=(
                Violation(
                    "register-limit", "error", "40 registers, the limit is 32",
                    "scripts/softmax.cu", 12, actual=40, limit=32,
                ),
            ),
            verdict=Verdict.FAILED,
        ),
    ),
)  # fmt: skip


def recorded(failure_id: str, **values: Any) -> FailureRecord:
    """The stored record of some failing case; `values` replace its own."""
    found = failed("softmax", 1, shape=(1, 1))
    record = FailureRecord.of(found.op, found.case, found.result, source="minimize")
    return replace(record, **{"id": failure_id, **values})


def sample() -> Report:
    """A bit of everything: passed, failed, in error, inconclusive, skipped, kernels, a baseline."""
    cases = [
        passed("softmax", 11),
        failed("softmax", 12, shape=(2, 3), notes=("wrong in the last column",)),
        failed("softmax", 13, shape=(7, 9), used=2.0),
        failed(
            "silu", 14, "exit code 1", kind=FailureKind.EXECUTION, verdict=Verdict.ERROR, used=0.0,
            stderr="Traceback\nRuntimeError: no",
        ),
        passed("silu", 15),
        failed("argmax", 16, "too close to call", verdict=Verdict.INCONCLUSIVE, used=0.0),
        passed("gelu", (1 << 64) - 1, dtype="float16"),
    ]  # fmt: skip
    report = report_of(cases)
    skipped = OpResult("matmul", "bfloat16", Verdict.SKIPPED, reason="no program for this machine")
    problem = Problem("cache-damaged", "a blob was damaged", "nothing", "x.bin", 0, warning=True)
    run = replace(
        report.run, results=(*report.run.results, skipped), kernels=(KERNEL,), problems=(problem,),
        minima={("softmax", 12, "float32"): Minimal(
            {"x": MinimalInput("float32", (1, 2), "[[1. 2.]]")}, FailureKind.TOLERANCE.value,
            "output", (0, 1), 1.0, 2.0, "expected 1  got 2", "scripts/softmax.py:7",
            "gpuemu-flow reproduce min1", "min1",
        )},
    )  # fmt: skip
    minimized = recorded("min1", message="1 of 1")
    picture = Picture(
        output="output", shape=(2, 3), rows=("016", "230"), fold="2 downward, 3 to the right",
        elements=6, failing=2,
    )  # fmt: skip
    diff = KernelDiff(
        "softmax_kernel", "sm_80", "changed", is_regression=True,
        changes=(
            MetricChange("registers", 32, 40, 8, 25.0),
            MetricChange("shared_bytes", 2048, 1024, -1024, -50.0),
        ),
        judgements=(ChangeJudgement("regression", "registers", "32 -> 40"),),
    )  # fmt: skip
    baseline = Baseline(
        tag="v1", created="2026-01-01T00:00:00.000000Z", tool="1.2.3", environment={}, kernels={},
        results={},
    )  # fmt: skip
    known = {
        ("softmax", 12, "float32"): KnownFailure("abc123", "2026-01-02", minimized.id, 1e-5, 0.0),
        ("softmax", 13, "float32"): KnownFailure("def456", "2026-01-02"),
    }
    return replace(
        report,
        run=replace(run, known=known),
        kernel_places={"softmax_kernel": FileLine("scripts/softmax.cu")},
        pictures={("softmax", 12, "float32"): picture},
        baseline=BaselineDiff(baseline, [("softmax_kernel", diff)]),
        regressions=(
            Regression(
                "softmax", "float32", what="verdict", old="passed", new="failed", baseline="v1"
            ),
        ),
        fail_on_regression=True,
    )  # fmt: skip


def hostile() -> Report:
    """Names, messages, notes and files that are attacks."""
    cases = [
        failed(HOSTILE, 1, HOSTILE, stderr=HOSTILE),
        failed(HOSTILE, 1, HOSTILE, notes=(HOSTILE,)),  # the very same name again
        passed(HOSTILE, 2),
    ]
    problem = Problem("task-broke", HOSTILE, HOSTILE, HOSTILE, 3)
    report = report_of(cases, project=HOSTILE, mode=HOSTILE, regressions=(HOSTILE_REGRESSION,))
    (entry,) = KERNEL.entries
    (violation,) = entry.violations
    found = structs.replace(violation, message=HOSTILE, file=HOSTILE)
    entry = structs.replace(entry, name=HOSTILE, violations=(found,))
    kernels = (
        KernelResult(HOSTILE, "sm_80", Verdict.FAILED, entries=(entry,)),
        KernelResult(HOSTILE, HOSTILE, Verdict.ERROR, reason=HOSTILE),
    )
    skipped = OpResult(HOSTILE, "float16", Verdict.SKIPPED, reason=HOSTILE)
    run = replace(
        report.run,
        problems=(problem,),
        kernels=kernels,
        results=(
            *report.run.results,
            skipped,
            OpResult("gone", "int8", Verdict.ERROR, reason=HOSTILE),
        ),
    )
    return replace(
        report,
        run=run,
        places={HOSTILE: FileLine(HOSTILE, 3)},
        fail_on_regression=True,
        pictures={(HOSTILE, 1, "float32"): Picture(note=HOSTILE)},
        recorded=(
            recorded(
                "x", op=HOSTILE, dtype=HOSTILE, kind=HOSTILE, source=HOSTILE, time=HOSTILE,
                message=HOSTILE,
            ),
        ),
    )  # fmt: skip


def huge(ops: int = 5000, noise: int = 1_000_000) -> Report:
    """Many failing ops with hostile names, and one that wrote very much to standard error."""
    cases = [failed(f"{HOSTILE} {n}", n, f"{HOSTILE} {n}") for n in range(ops - 1)]
    cases.append(failed("noisy", 7, "y" * noise, stderr=CONTROLS + "x" * noise))
    return report_of(cases)
