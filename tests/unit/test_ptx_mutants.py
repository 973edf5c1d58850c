"""Bugs planted in PTX by machine: each kind changes what it says, and the checks find most."""

from __future__ import annotations

import numpy as np
import pytest
from cluster_kernels import FILE as CLUSTERS
from cluster_kernels import cluster_cases
from emulated_kernels import FOLDER, Case, all_cases, as_argument
from test_emulator_checks import HEAD

from gpuemu_flow.emulator.errors import BudgetError
from gpuemu_flow.emulator.launch import load_kernel
from gpuemu_flow.emulator.mutants import MUTANT_KINDS, PtxMutant, plant_in_ptx

CHANGES = {
    "mask-off-by-one": ("@%p1 setp.lt.s32 %p2, %r2, %r1;", "@%p1 setp.le.s32 %p2, %r2, %r1;"),
    "barrier-removed": ("bar.sync 0;", ";"),
    "cluster-barrier-removed": (
        "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;", "; ;"),
    "rank-changed": ("mapa.shared::cluster.u32 %r1, %r2, %r9;",
                     "mapa.shared::cluster.u32 %r1, %r2, 0;"),
    "flush-added": ("add.rn.f32 %f1, %f2, %f3;", "add.rn.ftz.f32 %f1, %f2, %f3;"),
    "stride-changed": ("mul.wide.u32 %rd8, %r2, 4;", "mul.wide.u32 %rd8, %r2, 8;"),
    "sum-for-maximum": ("max.f32 %f1, %f2, %f3;", "add.f32 %f1, %f2, %f3;"),
    "wait-removed": ("cp.async.wait_group 0;", ";"),
}  # fmt: skip


def planted(text: str, kind: str) -> list[PtxMutant]:
    return [m for m in plant_in_ptx(text.encode()) if m.name.startswith(kind)]


@pytest.mark.parametrize("kind", [k.name for k in MUTANT_KINDS])
def test_a_kind_changes_one_instruction(kind: str) -> None:
    before, after = CHANGES[kind]
    head = HEAD.replace("mul.wide", "mad.wide").replace("4;", "4, 0;", 1).replace("shl", "shr")
    text = head + f"{before}\n ret;\n}}\n"
    (mutant,) = planted(text, kind)
    squeezed = " ".join(mutant.data.decode().split())
    assert squeezed == " ".join(text.replace(before, after).split())
    assert f"line {len(HEAD.splitlines()) + 1}" in mutant.name


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("mask-off-by-one", "setp.lt.f32 %p1, %f1, %f2;"),
        ("mask-off-by-one", "setp.eq.s32 %p1, %r1, %r2;"),
        ("barrier-removed", "bar.warp.sync -1;"),
        ("barrier-removed", "barrier.cluster.arrive; barrier.cluster.wait;"),
        ("cluster-barrier-removed", "barrier.sync 0;"),
        ("cluster-barrier-removed", "barrier.cluster.arrive; @%p1 barrier.cluster.wait;"),
        ("flush-added", "add.ftz.f32 %f1, %f2, %f3;"),
        ("flush-added", "cvt.rn.f32.s32 %f1, %r2;"),
        ("sum-for-maximum", "min.f32 %f1, %f2, %f3;"),
        ("wait-removed", "cp.async.commit_group;"),
    ],
)
def test_other_instructions_are_left_alone(kind: str, text: str) -> None:
    head = HEAD.replace("mul.wide", "mad.wide").replace("shl", "shr")
    assert planted(head + f"{text}\n ret;\n}}\n", kind) == []


def is_found(case: Case, mutant: PtxMutant) -> bool:
    """Tell whether a check, or the values, show the bug."""
    kernel = load_kernel(mutant.data, case.file, case.entry)
    arguments = [as_argument(a) for a in case.arguments]
    try:
        result = kernel.launch(
            case.grid, case.block, arguments, shared=case.shared, budget=200_000_000,
            **case.options,
        )  # fmt: skip
        case.check(result)
    except (AssertionError, BudgetError):
        return True
    return bool(result.findings)


WRONG = {
    "vecadd": 2, "block_sum": 6, "argmax_rows": 5, "transpose": 3, "softmax_rows": 8,
    "bulk_double": 3, "rotate": 1,
}  # fmt: skip
"""By kernel, how many of its mutants must be found (all but flushes and equivalent ones)."""


@pytest.mark.parametrize("entry", WRONG)
def test_most_bugs_in_real_kernels_are_found(entry: str) -> None:
    cases = [case for case in all_cases(5, 130) if case.entry == entry]
    data = (FOLDER / cases[0].file).read_bytes()
    mutants = [m for m in plant_in_ptx(data, entry) if m.kind != "flush-to-zero"]
    found = [m.name for m in mutants if any(is_found(case, m) for case in cases)]
    assert len(found) >= WRONG[entry], (found, [m.name for m in mutants])


CLUSTERED = ("cluster_histogram", "pair_matmul_f16", "handed_on")


@pytest.mark.parametrize("entry", CLUSTERED)
def test_bugs_at_what_joins_a_cluster_are_found(entry: str) -> None:
    cases = [c for c in cluster_cases(5) if c.entry == entry and c.options.get("cluster") != [1]]
    data = (FOLDER / CLUSTERS).read_bytes()
    mutants = [
        m for m in plant_in_ptx(data, entry)
        if m.name.startswith(("cluster-barrier", "rank"))
    ]  # fmt: skip
    assert {m.kind for m in mutants} == {"missing-barrier", "wrong-rank"}
    survived = [m.name for m in mutants if not any(is_found(c, m) for c in cases)]
    assert survived == []


def test_a_rank_of_zero_becomes_one() -> None:
    text = HEAD + "mov.u32 %r9, 0;\n mapa.u64 %rd1, %rd2, %r9;\n ret;\n}\n"
    for rank, before in (("%r9", "mov.u32 %r9, 0;"), ("0", "")):
        body = text.replace("%rd2, %r9", f"%rd2, {rank}").replace("mov.u32 %r9, 0;", before)
        (mutant,) = planted(body, "rank-changed")
        assert b"mapa.u64 %rd1, %rd2, 1;" in mutant.data


def test_the_kernels_themselves_are_right() -> None:
    for case in all_cases(5, 130):
        if case.entry in WRONG:
            result = case.launch()
            case.check(result)
            assert result.findings == ()
            assert all(b is None or isinstance(b, np.ndarray) for b in result.buffers)
