"""Launches of cooperative.cu: right kernels, and those whose one bug a check finds."""

from __future__ import annotations

import numpy as np
from emulated_kernels import Case, out

FILE = "cooperative.ptx"

WRONG: dict[str, tuple[str, str, bool]] = {
    # entry: (check, rule, True if its values are right in spite of the bug)
    "group_dot_wrong": ("race", "read-after-write", True),
    "cluster_max_wrong": ("race", "block-may-have-ended", True),
    "compaction_wrong": ("race", "same-instruction", False),
    "last_adds_wrong": ("race", "between-blocks-read-after-write", True),
    "warp_prefix_wrong": ("sync", "absent-lanes", False),
}


def cooperative(rng: np.random.Generator, n: int, ending: str = "") -> list[Case]:
    """Launches with exact results; `ending` is that of the kernels' names."""
    x = rng.integers(-9, 10, n).astype("i4")
    a, b = (rng.integers(-4, 5, n).astype("f4") for _ in range(2))
    few = np.where(np.arange(32) < n, rng.integers(-9, 10, 32), 0).astype("i4")
    few[:2] = 3, 5
    kept = np.zeros(32, "i4")
    kept[: (few > 0).sum()] = few[few > 0]
    pairs = rng.integers(-99, 99, (2, n)).astype("i4")
    many = rng.integers(-1, 1, n).astype("i4") * 8 + 7
    sevens = np.where(np.arange(n) < (many > 0).sum(), 7, 0)
    count, blocks = np.int32(n), -(-n // 64)
    dot = np.array([(a * b).sum()])
    parts, zero = out(4, "i4"), np.zeros(1, "i4")
    cases = [
        Case(FILE, f"group_dot{ending}", [4], [128], [a, b, np.zeros(1, "f4"), count], {2: dot}),
        Case(
            FILE, f"cluster_max{ending}", [8], [64], [pairs, out(8, "i4"), count],
            {1: np.repeat(pairs.max(1), 4)},
        ),
        Case(
            FILE, f"compaction{ending}", [1], [32], [few, np.zeros(32, "i4"), zero, np.int32(32)],
            {1: kept, 2: (few > 0).sum(keepdims=True)},
        ),
        Case(
            FILE, f"last_adds{ending}", [4], [32], [x, parts, out(1, "i4"), count],
            {2: x.sum(keepdims=True)},
        ),
        Case(
            FILE, f"warp_prefix{ending}", [1], [32], [few, out(32, "i4")], {1: np.cumsum(few)}
        ),
    ]  # fmt: skip
    if not ending:
        several = [many, np.zeros(n, "i4"), zero, count]
        cases.append(Case(FILE, "compaction", [blocks], [64], several, {1: sevens}))
    return cases
