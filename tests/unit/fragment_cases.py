"""Launches of fragments.cu and barriers.cu: wmma, alloca, barrier objects, bulk copies."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from emulated_kernels import Case, out

BF16 = np.dtype(ml_dtypes.bfloat16)
TF32_MASK = np.uint32(0xFFFFE000)


def _product(a: Any, b: Any, c: Any) -> Any:
    return a.astype("f8") @ b.astype("f8") + c.astype("f8")


def fragments(rng: np.random.Generator, n: int) -> list[Case]:
    """Launches of fragments.cu; `n` is what alloca takes."""

    def draw(*shape: int) -> Any:
        return rng.integers(-8, 9, shape) / 4  # sums of products are exact in every type

    f, one = "fragments.ptx", [1]
    a, b, c = draw(16, 16), draw(16, 16), draw(16, 16)
    half = (a.astype("f2"), b.astype("f2"))
    cases = [
        Case(f, "wmma_f16_shared", one, [32], [*half, c.astype("f4")], {2: _product(a, b.T, c)}),
        Case(f, "wmma_f16_half", one, [32], [*half, c.astype("f2")], {2: _product(a.T, b, c)}),
    ]
    a, b, c = draw(32, 16), draw(16, 8), draw(32, 8)
    cases.append(
        Case(
            f, "wmma_bf16", one, [32], [a.astype(BF16), b.astype(BF16), c.astype("f4")],
            {2: _product(a, b, c)},
        )
    )  # fmt: skip
    a, b = (rng.integers(-128, 128, shape).astype("i1") for shape in ((8, 16), (32, 16)))
    ints = rng.integers(-(2**20), 2**20, (8, 32)).astype("i4")
    cases.append(
        Case(f, "wmma_s8", one, [32], [a, b, ints], {2: a.astype("i4") @ b.T.astype("i4") + ints})
    )
    x, y = (rng.standard_normal(s).astype("f4") for s in ((16, 8), (8, 16)))
    c = draw(16, 16).astype("f4")
    short = [(v.view("u4") & TF32_MASK).view("f4") for v in (x, y)]
    cases.append(Case(f, "wmma_tf32", one, [32], [x, y, c], {2: _product(*short, c)}, 1e-6, 1e-6))
    a, b, c = rng.standard_normal((8, 4)), rng.standard_normal((8, 4)), draw(8, 8)
    cases.append(Case(f, "wmma_f64", one, [32], [a, b, c], {2: _product(a, b.T, c)}, 1e-13, 1e-13))
    sums = np.arange(32) * (n * (n - 1) // 2)
    cases.append(
        Case(f, "stack_sum", one, [32], [out(32, "i4"), np.int32(n)], {0: sums.astype("i4")})
    )
    return cases


def barriers(rng: np.random.Generator, n: int) -> list[Case]:
    """Launches of barriers.cu."""
    f = "barriers.ptx"
    x = rng.standard_normal(128).astype("f4")
    many = rng.standard_normal(256 * (1 + n % 5)).astype("f4")
    return [
        Case(f, "rotate", [1], [128], [x, out(128)], {1: np.roll(x, -3)}),
        Case(f, "copied", [1], [128], [x, out(128)], {1: x[::-1]}),
        Case(f, "bulk_double", [many.size // 256], [256], [many], {0: many * 2}),
    ]
