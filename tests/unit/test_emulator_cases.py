"""Many cases in one launch give the bits that single launches give."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from typing import Any

import numpy as np
import pytest
from emulated_kernels import Case, all_cases, as_argument, kernel_of, out
from for_each import for_each
from whole import sample

from gpuemu_flow.emulator.cases import can_share, launch_cases
from gpuemu_flow.emulator.launch import Argument, BufferArgument, load_kernel
from gpuemu_flow.model.errors import FlowError

MANY = 5


@cache
def drawn(seed: int) -> dict[str, Case]:
    """Draw each entry's first case."""
    return {c.entry: c for c in reversed(all_cases(seed, 70))}


def together(entry: str) -> list[Case]:
    return [drawn(seed)[entry] for seed in range(MANY)]


ENTRIES = sorted(drawn(0))
SHARED: dict[str, bool] = defaultdict(bool)


@for_each("entry", sample(ENTRIES, 3))
def test_cases_side_by_side_equal_single_launches(entry: str) -> None:
    cases = together(entry)
    first = cases[0]
    kernel = kernel_of(first.file, entry)
    lists = [[as_argument(a) for a in case.arguments] for case in cases]
    found = launch_cases(kernel, first.grid, first.block, lists, shared=first.shared)
    if found is None:
        assert (
            not can_share(kernel.program)
            or int(np.prod(first.block)) * int(np.prod(first.grid)) > 32768 // 2
        )
        return
    SHARED[entry] = True
    for case, outputs in zip(cases, found, strict=True):
        alone = case.launch()
        assert alone.findings == ()
        for a, b in zip(outputs, alone.buffers, strict=True):
            assert (a is None) == (b is None)
            assert a is None or b is None or a.tobytes() == b.tobytes()


def test_most_kernels_can_share() -> None:
    able = [e for e in ENTRIES if can_share(kernel_of(together(e)[0].file, e).program)]
    assert len(able) >= len(ENTRIES) * 3 // 4


HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n.global .u32 total[4];\n"
HEAD += ".visible .entry k(.param .u64 x, .param .u32 n)\n{\n"
HEAD += ".reg .b32 %r<9>; .reg .b64 %d<9>; .reg .pred %p<4>;\n"
HEAD += "ld.param.u64 %d0, [x]; ld.param.u32 %r1, [n]; mov.u32 %r0, %tid.x;\n"
HEAD += "mul.wide.u32 %d1, %r0, 4; add.s64 %d1, %d0, %d1; mov.u64 %d2, total;\n"


def launch(body: str, counts: list[int], **options: Any) -> list[Any] | None:
    kernel = load_kernel((HEAD + body + "\nret;\n}\n").encode(), "k.ptx")
    lists: list[list[Argument]] = [[out(32, "u4"), as_argument(np.int32(n))] for n in counts]
    found = launch_cases(kernel, [1], [32], lists, **options)
    return None if found is None else [outputs[0] for outputs in found]


def test_numbers_and_variables_of_the_module_are_each_cases_own() -> None:
    body = (
        "st.global.u32 [%d2+4], %r1; bar.sync 0; ld.global.u32 %r2, [%d2+4];\n"
        "add.u32 %r2, %r2, %r0; st.global.u32 [%d1], %r2;"
    )
    found = launch(body, [5, 100, 7, 5])
    assert found is not None
    for n, values in zip([5, 100, 7, 5], found, strict=True):
        assert (values == np.arange(32) + n).all()


@pytest.mark.parametrize(
    "body",
    [
        "mul.wide.u32 %d3, %r1, 4; add.s64 %d3, %d3, %d0; st.global.u32 [%d3], %r0;",
        "setp.gt.u32 %p0, %r1, 50; @%p0 trap; st.global.u32 [%d1], %r0;",
        "L: setp.gt.u32 %p0, %r1, 50; @%p0 bra L; st.global.u32 [%d1], %r0;",
        "mov.u32 %r2, %clock; st.global.u32 [%d1], %r2;",
    ],
)
def test_what_must_be_told_for_one_case_is_left_to_single_launches(body: str) -> None:
    assert launch(body, [5, 100, 7], budget=100_000) is None


def test_cases_that_fill_a_batch_are_launched_one_by_one() -> None:
    case = next(c for c in all_cases(0, 333) if c.entry == "vecadd")
    x = np.ones(40_000, "f4")
    lists = [[as_argument(a) for a in (x, x, out(40_000), np.int32(40_000))]] * 2
    assert launch_cases(kernel_of(case.file, "vecadd"), [313], [128], lists) is None


def test_arguments_that_make_no_sense_are_refused_by_single_launches() -> None:
    kernel = load_kernel((HEAD + "ret;\n}\n").encode(), "k.ptx")
    short: list[list[Argument]] = [[BufferArgument(np.zeros(4))]] * 2
    assert launch_cases(kernel, [1], [32], short) is None
    with pytest.raises(FlowError):
        kernel.launch([1], [32], short[0])
