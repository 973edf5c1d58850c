"""Stores by which threads of a block meet, drawn at random: plain Python, numpy and C agree."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from both_backends import HAS_COMPILER
from emulated_kernels import as_argument

from gpuemu_flow.emulator.launch import Kernel, LaunchResult, load_kernel

THREADS, PLACES = 70, 6
STORES = ("u32", "v2.u32", "u8", "u32")
"""Types of the stores, which stand one behind the other; each thread makes some of them."""

BYTES = {"u32": 4, "v2.u32": 8, "u8": 1}
COLUMNS = ("made", "place", "value")


def kernel(strength: str) -> Kernel:
    """A kernel that reads what each thread stores, and then stores it."""
    lines = [
        ".version 8.0\n.target sm_80\n.address_size 64",
        ".visible .entry k(.param .u64 plan, .param .u64 out) {",
        ".reg .b32 %r<60>; .reg .b64 %rd<60>; .reg .pred %p<9>; .reg .b16 %h<9>;",
        "ld.param.u64 %rd0, [plan]; ld.param.u64 %rd1, [out]; mov.u32 %r0, %tid.x;",
        f"mul.wide.u32 %rd2, %r0, {4 * len(COLUMNS) * len(STORES)}; add.s64 %rd2, %rd2, %rd0;",
    ]
    for k in range(len(STORES)):
        made, place, value = (f"%r{10 * k + 1 + c}" for c in range(3))
        for c, name in enumerate((made, place, value)):
            lines.append(f"ld.global.u32 {name}, [%rd2+{4 * (len(COLUMNS) * k + c)}];")
        lines.append(f"setp.ne.u32 %p{k}, {made}, 0; mul.wide.u32 %rd{k + 10}, {place}, 8;")
        lines.append(f"add.s64 %rd{k + 10}, %rd{k + 10}, %rd1; cvt.u16.u32 %h{k}, {value};")
    for k, kind in enumerate(STORES):
        value = f"%r{10 * k + 3}"
        written = {"v2.u32": f"{{0, {value}}}", "u8": f"%h{k}"}.get(kind, value)
        # On one line: a place is known by its line.
        lines.append(f"bar.sync 0; @%p{k} st{strength}.global.{kind} [%rd{k + 10}], {written};")
    return load_kernel("\n".join([*lines, "ret;", "}"]).encode(), "meetings.ptx")


FIRST_STORE = 8 + 5 * len(STORES)
"""Its line; each of the others has the next one."""

KERNELS = {strength: kernel(strength) for strength in ("", ".volatile")}


def plan_of(rng: np.random.Generator) -> np.ndarray:
    """Draw who makes which store, where, and of what: mostly little is wrong, or nothing."""
    shape = (THREADS, len(STORES))
    made = rng.random(shape) < rng.choice([0.03, 0.1, 1.0])
    place = rng.integers(0, PLACES, shape)
    if rng.random() < 0.5:
        place[:] = np.arange(THREADS)[:, None] // 32
    if rng.random() < 0.4:  # two threads that store to one place again and again
        made = np.isin(np.arange(THREADS), rng.choice(THREADS, 2))[:, None] & (
            rng.random(shape) < 0.8
        )
        place[:] = 0
    value = np.where(rng.random(shape) < rng.choice([0.0, 0.03, 0.5]), 7, 0) + rng.integers(0, 2)
    return np.stack([made, place, value], axis=-1).astype("u4")


def expected(plan: np.ndarray, strong: bool) -> set[tuple[int, str]]:
    """The findings that the plan must give: the number of the store, and the rule."""
    found = set()
    for number in range(len(STORES)):
        groups: dict[int, list[tuple[int, int]]] = {}
        for thread in range(THREADS):
            made, place, value = plan[thread, number].tolist()
            if made:
                groups.setdefault(place, []).append((thread // 32, value))
        for stores in groups.values():
            warps = {w: {v for other, v in stores if other == w} for w, _ in stores}
            if any(len(values) > 1 for values in warps.values()):
                found.add((number, "same-instruction"))
            elif len(set().union(*warps.values())) > 1 and not strong:
                found.add((number, "write-after-write"))
    return found


def launch(strength: str, plan: np.ndarray, backend: str) -> LaunchResult:
    """Run one block."""
    arguments = [as_argument(plan), as_argument(np.zeros(2 * (PLACES + 2), "u4"))]
    return KERNELS[strength].launch([1], [THREADS], arguments, backend=backend)


@pytest.mark.parametrize("strength", KERNELS)
def test_threads_that_meet_are_found(
    strength: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rng = np.random.default_rng(11)
    right, rules = 0, set()
    for _ in range(100):
        plan = plan_of(rng)
        wanted = expected(plan, bool(strength))
        right += not wanted
        rules |= {rule for _, rule in wanted}
        results = [launch(strength, plan, b) for b in ("numpy", "c")[: 1 + HAS_COMPILER]]
        for result in results:
            found = {(f.place.ptx_line - FIRST_STORE, f.rule) for f in result.findings}
            assert found == wanted
        if wanted:
            assert results[-1].backend == "numpy", "C suspected nothing"
    assert right > 10
    assert rules == (
        {"same-instruction"} if strength else {"same-instruction", "write-after-write"}
    )
