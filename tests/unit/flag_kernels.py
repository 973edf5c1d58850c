"""Launches of flags.cu: right kernels whose threads wait for each other by flags in memory."""

from __future__ import annotations

import numpy as np
from emulated_kernels import Case, out

FILE = "flags.ptx"


def flags(rng: np.random.Generator, n: int) -> list[Case]:
    """Launches with exact results."""
    blocks = 2 + n % 39
    x = rng.integers(0, 50, blocks).astype("u4")
    sums = np.cumsum(x, dtype="u4")
    rows = rng.integers(0, 50, (2 + n % 7, 32)).astype("u4")
    count = len(rows)
    many = rng.integers(0, 200, n).astype("u4")
    one, state, number = np.zeros(1, "u4"), np.zeros(blocks, "u4"), np.int32(n)
    turns = rng.integers(0, 9, 128).astype("u4")
    words = np.zeros(blocks, "u8")
    few = [-(-n // 64)]
    seen = np.array([(many > 100).any()], "i4")
    return [
        Case(FILE, "scan_chain", [blocks], [32], [x, out(blocks, "u4"), words], {1: sums}),
        Case(FILE, "scan_warp", [blocks], [32], [x, out(blocks, "u4"), words], {1: sums}),
        Case(
            FILE, "scan_fenced", [blocks], [32],
            [x, out(blocks, "u4"), out(blocks, "u4"), np.zeros(blocks, "i4")], {1: sums},
        ),
        Case(
            FILE, "grid_barrier", [count], [32],
            [rows, out(rows.shape, "u4"), out(rows.shape, "u4"), one], {1: rows[::-1]},
        ),
        Case(FILE, "chain_ref", [blocks], [32], [x, out(blocks, "u4"), state], {1: sums}),
        Case(
            FILE, "chain_value", [blocks], [32], [x, out(blocks, "u4"), state],
            {1: np.cumsum(x + 1, dtype="u4")},
        ),
        Case(
            FILE, "ring", [1], [64], [rows, out(rows.shape, "u4"), np.int32(count)],
            {1: rows[:, ::-1] + 1},
        ),
        Case(
            FILE, "last_threads", [count], [32],
            [rows, out(32, "u4"), out(rows.shape, "u4"), one],
            {1: rows.sum(axis=0, dtype="u4")[::-1]},
        ),
        Case(
            FILE, "search", few, [64], [many, one, np.zeros(1, "i4"), number],
            {1: [many.max()], 2: seen},
        ),
        Case(FILE, "tickets", [blocks], [32], [one, one, one], {0: [sum(range(blocks))]}),
        Case(
            FILE, "warps_in_turn", [1], [128], [turns, out(128, "u4")],
            {1: np.cumsum(turns.reshape(4, 32), axis=0, dtype="u4").reshape(-1)},
        ),
    ]  # fmt: skip


def contended(rng: np.random.Generator, n: int) -> list[Case]:
    """Launches that end in different ways, all of them right."""
    pairs = rng.integers(0, 100, (2, n)).astype("u4")
    keys, number = rng.integers(0, 200, n).astype("u4"), np.int32(n)
    few = [-(-n // 64)]
    return [
        Case(FILE, "roots", few, [64], [*pairs, np.arange(100, dtype="u4"), number], {}),
        Case(FILE, "insert", few, [64], [keys, np.zeros(512, "u4"), number, np.uint32(512)], {}),
    ]  # fmt: skip
