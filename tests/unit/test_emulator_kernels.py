"""CUDA kernels, compiled by nvcc, against references; correct ones give no finding."""

from __future__ import annotations

import numpy as np
import pytest
from cooperative_kernels import WRONG, cooperative
from emulated_kernels import FOLDER, Case, all_cases, as_argument, kernel_of
from emulator_kernels import compile_all
from for_each import for_each
from whole import sample

from gpuemu_flow.emulator.launch import load_kernel
from gpuemu_flow.lint.toolchain import Tool, find_tools

SIZES = (100, 1, 333)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(c, id=f"{c.entry}-{n}")
        for n, c in sample(
            [(n, c) for n in SIZES for c in all_cases(1, n)], 5, lambda made: made[1].entry
        )
    ],
)
def test_a_correct_kernel_is_right_and_clean(case: Case) -> None:
    result = case.launch()
    case.check(result)
    assert [str(f) for f in result.findings] == []


def test_there_are_many_kernels() -> None:
    assert len({c.entry for c in all_cases(1, 100)}) >= 40


def test_the_order_of_blocks_changes_nothing_where_blocks_are_alone() -> None:
    for case in all_cases(2, 300):
        if case.entry in ("gelu_f32", "block_sum", "softmax_rows", "mma_f16"):
            count = int(np.prod(case.grid))
            first, second = case.launch(), case.launch(order=list(range(count))[::-1])
            for a, b in zip(first.buffers, second.buffers, strict=True):
                assert (a is None) == (b is None)
                assert a is None or a.tobytes() == b.tobytes()


@pytest.mark.parametrize(
    "case", [pytest.param(c, id=c.entry) for c in sample(all_cases(1, 100), 4)]
)
def test_a_correct_kernel_is_right_in_the_other_order_of_warps(case: Case) -> None:
    result = case.launch(warps_reversed=True, backend="numpy")
    case.check(result)
    assert [str(f) for f in result.findings] == []


@for_each("backend", ["numpy", "c"])
@for_each("case", cooperative(np.random.default_rng(3), 300, "_wrong"))
def test_a_bug_is_found_even_where_the_values_are_right(case: Case, backend: str) -> None:
    check, rule, right = WRONG[case.entry]
    result = case.launch(backend=backend)
    if right:
        case.check(result)
    else:
        with pytest.raises(AssertionError):
            case.check(result)
    assert {f.check for f in result.findings} == {check}
    assert rule in {f.rule for f in result.findings}


@pytest.mark.ci
def test_kernels_with_cooperative_groups_as_nvcc_compiles_them_here() -> None:
    tool = find_tools().first("nvcc")
    if not isinstance(tool, Tool):
        pytest.skip(f"{tool.message}: {tool.hint}")
    text = compile_all.compile_kernel(FOLDER / "cooperative.cu", tool.path).encode()
    for ending in ("", "_wrong"):
        for case in cooperative(np.random.default_rng(5), 200, ending):
            arguments = [as_argument(a) for a in case.arguments]
            kernel = load_kernel(text, "cooperative.ptx", case.entry)
            result = kernel.launch(case.grid, case.block, arguments)
            check, _, right = WRONG.get(case.entry, ("", "", True))
            if right:
                case.check(result)
            assert {f.check for f in result.findings} == ({check} if check else set())


def test_printf_is_captured() -> None:
    kernel = kernel_of("elementwise.ptx", "hello")
    result = kernel.launch([1], [4], [as_argument(np.int32(3))])
    assert result.printed.splitlines() == [
        "thread 0 says hello  0.00 ff",
        "thread 1 says hello  0.50 ff",
        "thread 2 says hello  1.00 ff",
    ]
