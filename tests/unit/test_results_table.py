"""The table of a run shows figures only where outputs were compared."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from gpuemu_flow.judge.results import Absence, KernelResult, OpResult
from gpuemu_flow.lint.kernel import KernelFigures, KernelRecord
from gpuemu_flow.model.types import Verdict
from gpuemu_flow.report.text import Style, render_kernels, render_results, wrapped
from gpuemu_flow.report.workspace_text import reason_lines
from gpuemu_flow.store.keys import BuildReason


def columns(result: OpResult) -> str:
    return " ".join(render_results([result], Style())[1].split())


def test_an_op_that_never_gave_outputs_has_no_errors_to_show() -> None:
    result = OpResult("broken", "float32", Verdict.ERROR, cases=3, errors=3, duration_s=0.5)
    assert columns(result) == "broken float32 error 0 of 3 500 ms run"


def test_an_exact_op_shows_zeros() -> None:
    result = OpResult("copy", "float32", Verdict.PASSED, cases=3, passed=3, duration_s=0.5)
    assert columns(result) == "copy float32 passed 3 of 3 0 0 0 % 500 ms run"


def test_figures_that_were_not_judged_are_never_left_out() -> None:
    """Columns go where the table is wider than 80, but not one that says something."""
    figures = {"max_abs": 1e-7, "max_rel": 2e-5, "duration_s": 0.5}
    judged = OpResult("an_op_of_mine", "float32", Verdict.PASSED, 3, 3, **figures)
    in_part = OpResult("another", "float32", Verdict.PASSED, 3, 3, **figures, unjudged=0.25)
    assert "unjudged" not in render_results([judged], Style())[0]
    lines = render_results([judged, in_part], Style())
    assert "unjudged" in lines[0] and "25.0 %" in lines[2]
    assert max(map(len, lines)) <= 80


def test_a_wide_table_of_results_loses_half_of_its_gaps() -> None:
    figures = {"max_abs": 1e-7, "max_rel": 2e-5, "duration_s": 0.5, "unjudged": 1e-4}
    wide = OpResult("transposed_copies_of_rows", "bfloat16", Verdict.PASSED, 24, 24, **figures)
    lines = render_results([wide], Style())
    assert "unjudged" in lines[0] and "<0.1 %" in lines[1]
    assert max(map(len, lines)) <= 80
    assert lines[1].startswith("transposed_copies_of_rows bfloat16 passed ")


def kernel(name: str, spills: int) -> KernelResult:
    figures = KernelFigures(registers=40, spill_instructions=spills)
    entry = KernelRecord(
        name=name,
        file=f"{name}.ptx",
        arch="sm_90",
        metric_source="cubin",
        metrics=figures,
        verdict=Verdict.PASSED,
    )
    return KernelResult(name, "sm_90", Verdict.PASSED, entries=(entry,))


def test_columns_of_kernels_go_where_they_say_nothing() -> None:
    plain = render_kernels([kernel("matmul_tiled_kernel", 0)], Style())
    assert plain[0].split() == [
        "kernel",
        "arch",
        "lint",
        "registers",
        "spills",
        "errors",
        "warnings",
    ]
    spilling = render_kernels([kernel("matmul_tiled_kernel", 3)], Style())
    assert "spills" in spilling[0].split()
    assert max(map(len, plain + spilling)) <= 80
    several = replace(kernel("k", 0), entries=kernel("k", 0).entries * 2)
    assert "entries" in render_kernels([several], Style())[0].split()


def test_a_long_line_is_broken_behind_its_commas_only() -> None:
    items = [f"group_{n} ({n})" for n in range(40)]
    lines = wrapped(f"groups: {', '.join(items)}", 8)
    assert max(map(len, lines)) <= 80 and len(lines) > 5
    assert all(line.endswith("),") for line in lines[:-1])
    assert " ".join(line.strip() for line in lines) == f"groups: {', '.join(items)}"


def test_a_new_interpreter_is_one_reason() -> None:
    env = [BuildReason("env", f"packages.p{n}", "1", "2") for n in range(30)]
    told = reason_lines([BuildReason("code", "op.py", "a", "b"), *env])
    assert told == [
        "source changed: op.py: a -> b",
        "environment changed: packages.p0: 1 -> 2, packages.p1: 1 -> 2, and 28 more",
    ]


def test_why_there_is_no_verdict() -> None:
    for make in (partial(KernelResult, "k", "sm_80"), partial(OpResult, "op", "float32")):
        for verdict in Verdict:
            known = [make(verdict, absence=one).absent for one in (Absence.NONE, Absence.CUT_OFF)]
            missed = verdict in (Verdict.SKIPPED, Verdict.INCONCLUSIVE)
            assert known == [Absence.UNABLE if missed else Absence.NONE, Absence.CUT_OFF], verdict
