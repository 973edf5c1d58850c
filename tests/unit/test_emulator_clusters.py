"""Clusters of blocks: right results, no false alarms, and each planted bug found by its check."""

from __future__ import annotations

import re

import numpy as np
import pytest
from cluster_kernels import FILE, cluster_cases
from emulated_kernels import FOLDER, Case, as_argument
from for_each import for_each

from gpuemu_flow.emulator.clusters import together
from gpuemu_flow.emulator.errors import LaunchError
from gpuemu_flow.emulator.launch import LaunchResult, load_kernel
from gpuemu_flow.emulator.session import find_order_dependence

CASES = cluster_cases(1)
BY_ENTRY = {case.entry: case for case in CASES}
SYNC = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;"


def _name(case: Case) -> str:
    return f"{case.entry}-{case.options.get('cluster', ['own'])[0]}"


@for_each("case", CASES)
def test_a_kernel_with_clusters_is_right_and_nothing_is_found(case: Case) -> None:
    result = case.launch(**case.options)
    case.check(result)
    assert result.findings == ()


@pytest.mark.parametrize("entry", ["cluster_sum_f32", "pair_matmul_f16", "ring", "multicast_scale"])
def test_the_order_of_blocks_and_warps_does_not_matter(entry: str) -> None:
    case = BY_ENTRY[entry]
    kernel = load_kernel((FOLDER / FILE).read_bytes(), FILE, entry)
    arguments = [as_argument(a) for a in case.arguments]
    result = case.launch(**case.options)
    found = find_order_dependence(
        kernel, case.grid, case.block, arguments, result, shared=case.shared, budget=10**9,
        cluster=case.options.get("cluster", ()),
    )  # fmt: skip
    assert found == []


def body_of(entry: str) -> str:
    """Return the file with one kernel only."""
    text = (FOLDER / FILE).read_text()
    first = text.index(".visible .entry")
    found = re.search(rf"\.visible \.entry {entry}\(.*?^\}}", text, re.DOTALL | re.MULTILINE)
    assert found is not None
    return text[:first] + found.group()


def edited(entry: str, old: str, new: str, number: int) -> LaunchResult:
    """Launch a kernel whose text was changed at the n-th place, or at all of them for -1."""
    text = body_of(entry)
    places = [m.start() for m in re.finditer(re.escape(old), text)]
    assert places, (entry, old)
    for place in reversed(places if number < 0 else [places[number]]):
        text = text[:place] + new + text[place + len(old) :]
    case = BY_ENTRY[entry]
    kernel = load_kernel(text.encode(), FILE)
    arguments = [as_argument(a) for a in case.arguments]
    return kernel.launch(
        case.grid, case.block, arguments, shared=case.shared, budget=200_000_000, **case.options
    )


RAW, WAR = "between-cluster-blocks-read-after-write", "between-cluster-blocks-write-after-read"
WAW = "between-cluster-blocks-write-after-write"
BULK = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
WAIT = "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p"
ARRIVE = "mbarrier.arrive.release.cluster.shared::cluster.b64"

PLANTED: dict[str, tuple[str, str, tuple[str, str, str, int]]] = {
    # name: check, rule, (kernel, text, replacement, place)
    "a histogram begins before all parts are empty": (
        "race", RAW, ("cluster_histogram", SYNC, "", 0)),
    "a histogram is read before all have counted": (
        "race", RAW, ("cluster_histogram", SYNC, "bar.sync 0;", 1)),
    "a histogram's part is never emptied": (
        "init", "never-written", ("cluster_histogram", "st.shared.u32", "ld.shared.u32 %r19, "
                                  "[%r18]; //", 0)),
    "a part is read past its end": (
        "mem", "out-of-bounds", ("cluster_histogram", "[%rd10], 1", "[%rd10+4096], 1", 0)),
    "sums are read before they are there": (
        "race", RAW, ("cluster_sum_f32", SYNC, "", 0)),
    "a barrier of the block in place of the cluster's": (
        "race", RAW, ("cluster_sum_i32", SYNC, "bar.sync 0;", 0)),
    "an arrival that releases nothing": (
        "race", RAW, ("cluster_sum_f64", SYNC, SYNC.replace("arrive", "arrive.relaxed"), 0)),
    "a block may end while its sum is read": (
        "race", "block-may-have-ended", ("cluster_sum_f16", SYNC, "", 1)),
    "a wait without an arrival": (
        "sync", "not-arrived", ("cluster_sum_bf16", "barrier.cluster.arrive.aligned;", "", 0)),
    "two arrivals without a wait": (
        "sync", "arrived-twice", ("cluster_sum_i32", "barrier.cluster.wait.aligned;", "", 0)),
    "only one warp arrives": (
        "sync", "never-completed", ("cluster_sum_i32", SYNC, "{ .reg .pred q; .reg .b32 z; "
        "mov.u32 z, %tid.x; setp.gt.u32 q, z, 31; @q bra ALONE; " + SYNC
        + " bra OVER; ALONE: bar.sync 1, 64; OVER: }", 0)),
    "a tile is read before both halves are there": (
        "race", RAW, ("pair_matmul_f32", SYNC, "bar.sync 0;", 0)),
    "a tile is overwritten while the other block reads it": (
        "race", WAR, ("pair_matmul_f16", SYNC, "bar.sync 0;", 1)),
    "a rank that the cluster does not have": (
        "mem", "no-such-block", ("pair_matmul_f32", "mapa.u64 %rd13, %rd1, %r37",
                                 "mapa.u64 %rd13, %rd1, 2", 0)),
    "an address that is none of shared memory": (
        "mem", "no-shared-address", ("pair_matmul_f32", "mapa.u64 %rd13, %rd1, %r37",
                                     "mapa.u64 %rd13, %rd2, %r37", 0)),
    "a mapped address past the other block's memory": (
        "mem", "out-of-bounds", ("pair_matmul_bf16", "ld.f32 	%f9, [%rd11]",
                                 "ld.f32 	%f9, [%rd11+4096]", 0)),
    "a mapped address used by an access of the block's own memory": (
        "mem", "other-block", ("ring", "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes"
                               ".u32 [%r13], %r17, [%r10];", "st.shared.u32 [%r13], %r17;", 0)),
    "stored values are read before they arrive": (
        "init", "never-written", ("ring", WAIT + ", [%r11], %r26; @p bra D;",
                                  "setp.eq.u32 p, 0, 0; @p bra D;", 0)),
    "a copy is read before it arrives": (
        "init", "never-written", ("ring", WAIT + ", [%r11], %r42; @p bra D;",
                                  "setp.eq.u32 p, 0, 0; @p bra D;", 0)),
    "a block ends before its copies arrive": (
        "mem", "ended-block", ("ring", WAIT + ", [%r11], %r42; @p bra D;", "exit;", 0)),
    "bytes that nobody sends": (
        "sync", "never-completed", ("ring", "_, [%r11], 256;", "_, [%r11], 512;", 0)),
    "a store to one block that arrives at another": (
        "mem", "other-block", ("ring", "[%r13], %r17, [%r10];", "[%r13], %r17, [%r11];", 0)),
    "a value stored at half of its place": (
        "mem", "misaligned", ("ring", "[%r13], %r17, [%r10];", "[%r13+2], %r17, [%r10];", 0)),
    "a tile is sent before it is free": (
        "race", WAR, ("multicast_scale", WAIT, "setp.eq.u32 p, 0, 0; @p bra D; " + WAIT, 0)),
    "a tile is sent to a block that does not exist": (
        "mem", "no-such-block", ("multicast_scale", "mov.u16 	%rs1, 15", "mov.u16 %rs1, 31", 0)),
    "a tile is sent to three of four": (
        "sync", "never-completed", ("multicast_scale", "mov.u16 	%rs1, 15",
                                    "mov.u16 %rs1, 7", 0)),
    "a tile is never given back": (
        "sync", "never-completed", ("multicast_scale", ARRIVE, "//", 0)),
    "global memory is read before the other block's barrier": (
        "race", "between-blocks-read-after-write", ("handed_on", SYNC, "bar.sync 0;", 0)),
    "global memory is read without waiting for the other block": (
        "race", "between-blocks-write-after-read", ("handed_on", WAIT,
                                                    "setp.eq.u32 p, 0, 0; @p bra D; " + WAIT, 0)),
    "global memory of another cluster is read": (
        "race", "between-blocks-read-after-write", ("handed_on", "%r9, 32;", "%r9, 64;", 0)),
    "a tile is given back twice": (
        "sync", "too-many-arrivals", ("multicast_scale", "_, [%r35];", "_, [%r35], 3;", 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str) -> None:
    check, rule, edit = PLANTED[name]
    found = {(f.check, f.rule) for f in edited(*edit).findings}
    assert (check, rule) in found


def test_clusters_stand_together_in_the_order_of_their_first_blocks() -> None:
    ids = together(np.arange(8), (4, 2, 1), (2, 2, 1))
    assert ids.tolist() == [0, 1, 4, 5, 2, 3, 6, 7]
    assert together(np.arange(8)[::-1], (4, 2, 1), (2, 2, 1)).tolist() == [7, 6, 3, 2, 5, 4, 1, 0]


@pytest.mark.parametrize(
    ("grid", "cluster", "said"),
    [
        ([3], [2], "multiple of the cluster"),
        ([32], [32], "at most 16"),
        ([4], [0], "no shape"),
    ],
)
def test_a_cluster_that_makes_no_sense_is_refused(
    grid: list[int], cluster: list[int], said: str
) -> None:
    case = BY_ENTRY["cluster_sum_f32"]
    with pytest.raises(LaunchError) as error:
        Case(FILE, case.entry, grid, case.block, case.arguments, {}).launch(cluster=cluster)
    problem = error.value.problems[0]
    assert said in f"{problem.message} {problem.hint}"


def test_a_kernel_compiled_for_a_cluster_runs_in_no_other() -> None:
    case = BY_ENTRY["ring"]
    with pytest.raises(LaunchError, match="compiled for exactly"):
        case.launch(cluster=[2])


def test_the_compiled_back_end_leaves_clusters_to_numpy() -> None:
    case = BY_ENTRY["cluster_sum_f32"]
    result = case.launch(backend="c", **case.options)
    case.check(result)
    assert (result.backend, result.note) == ("numpy", "clusters of blocks are run by numpy only")
