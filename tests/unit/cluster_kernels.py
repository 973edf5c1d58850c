"""Launches of clusters.cu, and what they must compute."""

from __future__ import annotations

from typing import Any

import numpy as np
from emulated_kernels import BF16, Case, out

FILE = "clusters.ptx"


def _sums(rng: np.random.Generator, size: int) -> list[Case]:
    rows, n = 3, 517
    whole = rng.integers(-20, 20, (rows, n))
    kinds: list[tuple[str, Any, Any]] = [
        ("f32", "f4", "f4"), ("f64", "f8", "f8"), ("i32", "i4", "i4"), ("f16", "f2", "f4"),
        ("bf16", BF16, "f4"),
    ]  # fmt: skip
    return [
        Case(
            FILE, f"cluster_sum_{name}", [rows * size], [64],
            [whole.astype(dtype), out(rows * size, total), np.int32(n)],
            {1: np.repeat(whole.sum(1), size).astype(total)}, options={"cluster": [size]},
        )
        for name, dtype, total in kinds
    ]  # fmt: skip


def cluster_cases(seed: int) -> list[Case]:
    """Launches of every kernel, with exact results; numbers are small integers."""
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 64, 500).astype("i4")
    cases = [
        Case(
            FILE, "cluster_histogram", [8], [64],
            [values, np.int32(500), np.int32(64), np.zeros(64, "i4")],
            {3: np.bincount(values, minlength=64)}, shared=4 * 64 // size,
            options={"cluster": [size]},
        )
        for size in (1, 2, 8)
    ]  # fmt: skip
    for size in (1, 4):
        cases += _sums(rng, size)
    a, b = rng.integers(-4, 5, (32, 48)), rng.integers(-4, 5, (48, 64))
    for name, dtype in (("f32", "f4"), ("f16", "f2"), ("bf16", BF16)):
        cases.append(
            Case(
                FILE, f"pair_matmul_{name}", [4, 2], [256],
                [a.astype(dtype), b.astype(dtype), out((32, 64)), np.int32(64), np.int32(48)],
                {2: (a @ b).astype("f4")},
            )
        )  # fmt: skip
    x = rng.integers(-9, 9, (2, 3, 128)).astype("f4")
    scaled = np.stack([x[c] * (r + 1) for c in range(2) for r in range(4)])
    cases.append(
        Case(FILE, "multicast_scale", [8], [128], [x, out((8, 3, 128)), np.int32(3)], {1: scaled})
    )
    given = rng.integers(-99, 99, (2, 4, 64)).astype("i4")
    before, twice = np.roll(given, 1, axis=1), np.roll(given, 2, axis=1)
    pairs = np.stack([before, np.repeat(before.sum(2, keepdims=True), 64, 2)], axis=-1)
    ring = np.concatenate([pairs.reshape(-1), twice.reshape(-1)])
    cases.append(Case(FILE, "ring", [8], [64], [given, out(ring.size, "i4")], {1: ring}))
    rows = [
        (i % 2, j % 2, 0, i // 2, j // 2, 3, 2, 2, 1, i % 2 + 2 * (j % 2),
         (i % 2 + 2 * (j % 2)) ^ 3, 6)
        for j in range(4)
        for i in range(6)
    ]  # fmt: skip
    cases.append(Case(FILE, "places", [6, 4], [32], [out((24, 12), "u4")], {0: np.array(rows)}))
    x = rng.integers(0, 99, (4, 2, 32)).astype("i4")
    got = x[:, ::-1] + 1
    got[:, 1] = 2 * (x[:, 1] + 1)
    cases.append(
        Case(
            FILE,
            "handed_on",
            [8],
            [32],
            [x, out(x.size, "i4"), out(x.size, "i4")],
            {2: got.reshape(-1)},
        )
    )
    return cases
