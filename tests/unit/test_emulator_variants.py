"""Contraction and approximation: a verdict that depends on them is none, and says on what."""

from __future__ import annotations

import numpy as np
import pytest
from emulated_kernels import as_argument, out
from test_emulator_checks import HEAD

from gpuemu_flow.emulator.findings import CheckFinding
from gpuemu_flow.emulator.launch import Kernel, LaunchResult, load_kernel
from gpuemu_flow.emulator.types import Array
from gpuemu_flow.emulator.variants import (
    find_approximate,
    find_flips,
    find_pairs,
    fuse,
    make_variants,
    perturb,
)
from gpuemu_flow.numerics.contract_views import split_variants, variant_name

LOAD = "ld.global.f32 %f1, [%rd4]; "
CLOSE = np.sqrt(2.0 + np.arange(64)).astype("f4")


def kernel_of(body: str) -> Kernel:
    return load_kernel((HEAD + body + "\n ret;\n}\n").encode(), "variant.ptx")


def run(kernel: Kernel, x: Array = CLOSE) -> LaunchResult:
    return kernel.launch(
        [1], [64], [as_argument(x), as_argument(out(64)), as_argument(np.int32(0))]
    )


def flips(body: str, check: str, x: Array = CLOSE) -> list[CheckFinding]:
    kernel = kernel_of(body)
    given = [as_argument(x), as_argument(out(64)), as_argument(np.int32(0))]
    variants = make_variants(kernel, [check])
    return find_flips(kernel, variants, run(kernel, x), given, lambda k: run(k, x))


@pytest.mark.parametrize(
    ("operation", "wanted"),
    [
        ("add.f32 %f3, %f2, %f1", lambda a: a * a + a),
        ("add.f32 %f3, %f1, %f2", lambda a: a * a + a),
        ("sub.f32 %f3, %f2, %f1", lambda a: a * a - a),
        ("sub.f32 %f3, %f1, %f2", lambda a: a - a * a),
    ],
)
def test_fused_operations_round_once(operation: str, wanted: object) -> None:
    kernel = kernel_of(LOAD + f"mul.f32 %f2, %f1, %f1; {operation}; st.global.f32 [%rd5], %f3;")
    (pair,) = find_pairs(kernel.program)
    fused = run(Kernel(fuse(kernel.program, [pair]))).buffers[1]
    exact = wanted(CLOSE.astype("f8")).astype("f4")  # type: ignore[operator]
    np.testing.assert_array_equal(fused, exact)
    assert (run(kernel).buffers[1] != exact).any()


@pytest.mark.parametrize(
    "body",
    [
        "mul.rn.f32 %f2, %f1, %f1; add.f32 %f3, %f2, %f1;",
        "mul.f32 %f2, %f1, %f1; add.rn.f32 %f3, %f2, %f1;",
        "mul.f32 %f2, %f1, %f1; mov.f32 %f1, 0f00000000; add.f32 %f3, %f2, %f1;",
        "mul.f32 %f2, %f1, %f1; mov.f32 %f2, %f1; add.f32 %f3, %f2, %f1;",
        "mul.ftz.f32 %f2, %f1, %f1; add.f32 %f3, %f2, %f1;",
        "mul.f32 %f1, %f1, %f1; add.f32 %f3, %f1, %f1;",
    ],
)
def test_what_must_not_or_cannot_be_fused_is_left_alone(body: str) -> None:
    assert find_pairs(kernel_of(LOAD + body).program) == []


def test_a_fusion_that_decides_is_named() -> None:
    body = LOAD + (
        "mul.f32 %f2, %f1, %f1; mul.rn.f32 %f3, %f1, %f1; sub.f32 %f4, %f2, %f3; "
        "setp.eq.f32 %p1, %f4, 0f00000000; selp.f32 %f5, 0f3F800000, 0f7F800000, %p1; "
        "st.global.f32 [%rd5], %f5;"
    )
    (found,) = flips(body, "contract")
    assert (found.check, found.rule) == ("contract", "one-decides")
    assert "sub.f32" in found.message and "mul.f32" in found.message and "y[" in found.message
    assert flips(body.replace("sub.f32", "sub.rn.f32"), "contract") == []


def test_an_approximation_that_decides_is_named() -> None:
    body = LOAD + (
        "rcp.approx.f32 %f2, %f1; lg2.approx.f32 %f3, %f1; "
        "setp.ge.f32 %p1, %f2, 0f3F800000; selp.u32 %r9, 1, 0x7f800000, %p1; "
        "st.global.u32 [%rd5], %r9;"
    )
    ones = np.ones(64, "f4")
    (found,) = flips(body, "approx", ones)
    assert found.rule == "one-decides" and "rcp.approx.f32" in found.message
    assert "lower bound" in found.message
    assert flips(body.replace("0f3F800000", "0f3F000000"), "approx", ones) == []


@pytest.mark.parametrize(
    ("name", "bound"),
    [("ex2", 2.0**-22), ("rsqrt", 2.0**-22.9), ("sqrt", 2.0**-22.9), ("rcp", 2.0**-22.9)],
)
def test_moved_results_keep_to_the_bound_and_repeat(name: str, bound: float) -> None:
    body = LOAD + f"{name}.approx.f32 %f2, %f1; st.global.f32 [%rd5], %f2;"
    kernel = kernel_of(body)
    steps = find_approximate(kernel.program)
    plain = run(kernel).buffers[1]
    assert plain is not None and len(steps) == 1
    for draw in range(4):
        moved = [run(Kernel(perturb(kernel.program, steps, draw))).buffers[1] for _ in range(2)]
        assert moved[0] is not None and moved[1] is not None
        assert moved[0].tobytes() == moved[1].tobytes()
        assert (np.abs(moved[0].astype("f8") - plain) <= 1.01 * bound * np.abs(plain)).all()
        if draw < 2:
            assert (moved[0] != plain).any()
            assert ((moved[0] >= plain) if draw == 0 else (moved[0] <= plain)).all()


def test_outputs_of_variants_travel_beside_the_own_ones() -> None:
    one, two, three = (np.full(2, k) for k in range(3))
    given = {"a": one, "b": two, variant_name("a", "add at k.cu:1 fused"): three}
    own, variants = split_variants(given)
    assert own == {"a": one, "b": two}
    assert variants == {"add at k.cu:1 fused": {"a": three, "b": two}}
