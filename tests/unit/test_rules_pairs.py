"""Every rule has a kernel that breaks it and one close to it that does not: a row for each."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import pytest
from msgspec.structs import replace
from ptx_text import HEADER, broken_rules, kernel_views, view_of

from gpuemu_flow.lint.kernel import KernelPolicy, KernelView
from gpuemu_flow.lint.rules import RULES_BY_ID


class Pair(NamedTuple):
    """Two kernels and the policy that tells them apart."""

    bad: KernelView
    good: KernelView
    policy: KernelPolicy = KernelPolicy()
    good_policy: KernelPolicy | None = None


def compiled(source: str, kernel: str) -> KernelView:
    """A committed kernel, with PTX and cubin."""
    return kernel_views(source)[kernel]


def in_one(source: str, bad: str, good: str, policy: KernelPolicy | None = None) -> Pair:
    """Two kernels of one committed source."""
    return Pair(compiled(source, bad), compiled(source, good), policy or KernelPolicy())


def written(bad: str, good: str) -> Pair:
    """Two bodies in PTX."""
    return Pair(view_of(bad), view_of(good))


def limited(source: str, kernel: str, at: KernelPolicy, below: KernelPolicy) -> Pair:
    """One kernel at its limit, and with the limit one lower."""
    view = compiled(source, kernel)
    return Pair(view, view, below, at)


LOOP = "mov.b32 %r9, 0; L: {} add.s32 %r9, %r9, 1; setp.lt.s32 %p9, %r9, 10; @%p9 bra L; ret;"
SOFTMAX = ("softmax", "softmax_kernel")  # 15 registers, 178 instructions


@cache
def pairs() -> dict[str, Pair]:
    """By rule."""
    softmax, tiled = compiled(*SOFTMAX), compiled("matmul_tiled", "matmul_tiled_kernel")
    count = softmax.metrics.instructions or 0
    tensor = compiled("matmul_tensor", "matmul_tensor_kernel")
    bounds = ".maxntid 1024\n.minnctapersm 2"
    return {
        "real-spills": in_one("forced_spills", "forced_spills_kernel", "relaxed_spills_kernel"),
        "local-memory": in_one("dynamic_index", "dynamic_index_kernel", "constant_index_kernel"),
        "register-limit": limited(
            *SOFTMAX, KernelPolicy(max_registers=15), KernelPolicy(max_registers=14)
        ),
        "accidental-f64": in_one("accidental_f64", "accidental_f64_kernel", "real_f64_kernel"),
        "debug-call": in_one("printf_left_in", "printf_left_in_kernel", "printf_removed_kernel"),
        "debug-build": Pair(
            view_of("ret;", HEADER.replace("sm_80", "sm_80, debug")), view_of(".loc 1 1 0\nret;")
        ),
        "static-shared-memory": written(
            ".shared .b8 s[49153]; mov.u32 %r1, s; ret;",
            ".shared .b8 s[49152]; mov.u32 %r1, s; ret;",
        ),
        "narrow-offset": written(
            "ld.param.u32 %r0, [n]; ld.param.u64 %rd0, [x]; mov.u32 %r1, %ctaid.x; "
            "mad.lo.s32 %r2, %r1, %r0, %r1; mul.wide.s32 %rd1, %r2, 4; "
            "add.s64 %rd2, %rd0, %rd1; ld.global.u32 %r3, [%rd2]; ret;",
            "ld.param.u32 %r0, [n]; ld.param.u64 %rd0, [x]; mov.u32 %r1, %ctaid.x; "
            "mul.wide.s32 %rd1, %r1, %r0; shl.b64 %rd1, %rd1, 2; "
            "add.s64 %rd2, %rd0, %rd1; ld.global.u32 %r3, [%rd2]; ret;",
        ),
        "unset-constant": Pair(
            view_of("ld.const.u32 %r1, [w]; ret;", HEADER + ".const .align 4 .u32 w[2];\n"),
            view_of("ld.const.u32 %r1, [w]; ret;", HEADER + ".const .u32 w[2] = {1, 2};\n"),
        ),
        "unmet-launch-bounds": Pair(
            view_of("ret;", HEADER.replace("sm_80", "sm_86"), directives=bounds),
            view_of("ret;", directives=bounds),
        ),
        "no-full-block": Pair(
            compiled("many_registers", "many_registers_kernel"),
            compiled("forced_spills", "relaxed_spills_kernel"),
        ),
        "missing-tensor-cores": Pair(tiled, tensor, KernelPolicy(expect_tensor_cores=True)),
        "portability": Pair(
            view_of("ret;", HEADER.replace("sm_80", "sm_90a")),
            view_of("ret;", HEADER.replace("sm_80", "sm_90")),
            KernelPolicy(archs=("sm_100",)),
        ),
        "divergent-barrier": in_one(
            "divergent_barrier", "divergent_barrier_kernel", "guarded_work_kernel"
        ),
        "integer-division-in-loop": written(
            LOOP.format("div.s32 %r2, %r3, %r4;"),
            "div.s32 %r2, %r3, %r4; " + LOOP.format("div.rn.f32 %f1, %f2, %f3;"),
        ),
        "generic-address": in_one("several_kernels", "smooth_step_kernel", "scale_kernel"),
        "atomics-in-loop": written(
            LOOP.format("atom.global.add.u32 %r1, [%rd1], 1;"),
            "atom.global.add.u32 %r1, [%rd1], 1; " + LOOP.format(""),
        ),
        "scalar-accesses": in_one("gelu_vectorised", "gelu_scalar_kernel", "gelu_vector_kernel"),
        "unfused-multiply-add": written(
            "mul.rn.f32 %f1, %f2, %f3; add.rn.f32 %f4, %f1, %f5; ret;",
            "mul.f32 %f1, %f2, %f3; add.f32 %f4, %f1, %f5; ret;",
        ),
        "exact-division": written(
            "div.rn.f32 %f1, %f2, %f3; ret;", "div.full.f32 %f1, %f2, %f3; ret;"
        ),
        "unused-shared-memory": written(
            ".shared .b32 s[64]; ret;", ".shared .b32 s[64]; mov.u32 %r1, s; ret;"
        ),
        "legacy-warp-operations": written(
            "shfl.down.b32 %r1, %r2, 16, 31; ret;", "shfl.sync.down.b32 %r1, %r2, 16, 31, -1; ret;"
        ),
        "forbidden-instruction": Pair(
            view_of("add.f64 %fd1, %fd2, %fd3; ret;"),
            view_of("cvt.f32.f64x2 %f1, %fd1; ret;"),
            KernelPolicy(forbidden_instructions=("f64",)),
        ),
        "required-instruction": Pair(tiled, tensor, KernelPolicy(required_patterns=("wmma.mma",))),
        "shared-memory-limit": limited(
            "matmul_tiled",
            "matmul_tiled_kernel",
            KernelPolicy(max_shared_memory=8320),
            KernelPolicy(max_shared_memory=8319),
        ),
        "instruction-limit": limited(
            *SOFTMAX, KernelPolicy(max_instructions=count), KernelPolicy(max_instructions=count - 1)
        ),
    }


def test_there_is_a_pair_for_every_rule() -> None:
    assert set(pairs()) == set(RULES_BY_ID)


@pytest.mark.parametrize("rule", RULES_BY_ID)
def test_a_rule_finds_its_kernel_and_leaves_the_one_beside_it(rule: str) -> None:
    pair = pairs()[rule]
    assert rule in broken_rules(pair.bad, pair.policy)
    good = pair.good_policy or pair.policy
    assert rule not in broken_rules(pair.good, good)
    silenced = replace(pair.policy, severities={rule: "off"})
    assert rule not in broken_rules(pair.bad, silenced)
