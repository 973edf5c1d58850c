"""Register pressure: counted by hand on small bodies, and close to ptxas on real kernels."""

from __future__ import annotations

import pytest
from for_each import for_each
from ptx_text import ARCHITECTURES, KERNELS, analysed, kernel_views

from gpuemu_flow.lint import measure as liveness
from gpuemu_flow.lint.measure import estimate_registers, max_live, register_cap
from gpuemu_flow.lint.ptx.model import LaunchBounds


def pressure(statements: str) -> int:
    analysis = analysed(statements)
    found = max_live(analysis.body, analysis.graph, analysis.flow)
    assert found is not None
    return found.max_live


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        ("ret;", 0),
        ("mov.b32 %r1, 1; mov.b32 %r2, 2; add.s32 %r3, %r1, %r2; st.global.u32 [%rd1], %r3;", 4),
        ("mov.b32 %r1, 1; ret;", 1),  # a dead result still needs a place
        ("ld.global.f64 %fd1, [%rd1]; add.f64 %fd2, %fd1, %fd1; st.global.f64 [%rd1], %fd2;", 4),
        ("setp.eq.s32 %p1, 1, 2; @%p1 bra L; L: ret;", 0),  # predicates take no register
        (
            "ld.global.v4.f32 {%f1,%f2,%f3,%f4}, [%rd1]; "
            "st.global.v4.f32 [%rd1], {%f1,%f2,%f3,%f4};",
            6,
        ),
    ],
)
def test_straight_line_code(statements: str, expected: int) -> None:
    assert pressure(statements) == expected


def test_a_guarded_definition_does_not_end_the_old_value() -> None:
    before = "mov.b32 %r3, 1; mov.b32 %r1, 1; mov.b32 %r2, 2; "
    between = "st.global.u32 [%rd1], %r1; st.global.u32 [%rd1], %r2; "
    after = "st.global.u32 [%rd1], %r3; ret;"
    assert pressure(before + between + "mov.b32 %r3, 5; " + after) == 4
    assert pressure(before + between + "@%p1 mov.b32 %r3, 5; " + after) == 5


def test_values_live_around_a_loop_count_inside_it() -> None:
    before = "mov.b32 %r1, 1; mov.b32 %r2, 2; mov.b32 %r3, 3; mov.b32 %r9, 0; "
    loop = "L: add.s32 %r9, %r9, 1; setp.lt.s32 %p1, %r9, 10; @%p1 bra L; "
    after = "add.s32 %r4, %r1, %r2; add.s32 %r4, %r4, %r3; st.global.u32 [%rd1], %r4; ret;"
    assert pressure(before + loop + after) == 4 + 2


def test_a_value_is_not_live_before_the_block_that_defines_it() -> None:
    first = "mov.b32 %r1, 1; mov.b32 %r2, 2; add.s32 %r3, %r1, %r2; st.global.u32 [%rd1], %r3; "
    second = "bra.uni M; M: mov.b32 %r4, 4; bra.uni N; N: st.global.u32 [%rd1], %r4; ret;"
    assert pressure(first + second) == 4


def test_the_point_of_highest_pressure_is_given() -> None:
    analysis = analysed("mov.b32 %r1, 1; mov.b32 %r2, 2; add.s32 %r3, %r1, %r2; ret;")
    found = max_live(analysis.body, analysis.graph, analysis.flow)
    assert found is not None
    assert found.instruction in (1, 2)


def test_a_body_beyond_the_table_limit_gets_no_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "MAX_TABLE_BITS", 3)
    analysis = analysed("mov.b32 %r1, 1; L: add.s32 %r1, %r1, 1; @%p1 bra L; ret;")
    assert max_live(analysis.body, analysis.graph, analysis.flow) is None


@for_each(
    ("live", "calls", "bounds", "expected"),
    [
        (3, False, LaunchBounds(), 8),
        (3, True, LaunchBounds(), 24),
        (100, True, LaunchBounds(), 100),
        (400, False, LaunchBounds(), 255),
        (100, False, LaunchBounds(max_threads=1024), 64),
        (100, False, LaunchBounds(max_threads=1024, min_blocks=2), 32),
        (100, False, LaunchBounds(max_registers=40), 40),
    ],
)
def test_estimate(live: int, calls: bool, bounds: LaunchBounds, expected: int) -> None:
    assert estimate_registers(live, calls, bounds) == expected


def test_the_cap_never_goes_below_what_a_kernel_needs() -> None:
    assert register_cap(LaunchBounds(max_threads=10**9, min_blocks=10**9)) == 8


def test_estimates_stay_near_the_compilers_figures() -> None:
    errors = []
    for arch in ARCHITECTURES:
        for source in sorted((KERNELS / arch).glob("*.ptx")):
            for view in kernel_views(source.stem, arch).values():
                metrics = view.metrics
                assert metrics.max_live is not None
                assert metrics.registers is not None
                estimate = estimate_registers(metrics.max_live, bool(metrics.calls), view.bounds)
                errors.append(abs(estimate - metrics.registers) / metrics.registers)
    assert len(errors) >= 40
    assert sum(errors) / len(errors) < 0.35
    assert sum(error <= 0.5 for error in errors) > 0.85 * len(errors)
