"""The emulator's test kernels: how each is launched, and what it must compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import erf
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from gpuemu_flow.emulator.launch import (
    Argument,
    BufferArgument,
    Kernel,
    LaunchResult,
    ScalarArgument,
    load_kernel,
)

FOLDER = Path(__file__).resolve().parent.parent / "emulator_kernels"
BF16 = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True)
class Case:
    """One launch.

    Attributes
    ----------
    file, entry : str
    grid, block : sequence of int
    arguments : list
        Arrays, ``out(...)`` for buffers without contents, numpy scalars and bytes.
    expected : dict of int to array
        What argument numbers must hold afterwards.
    rtol, atol : float
        0 for equality bit by bit.
    """

    file: str
    entry: str
    grid: Sequence[int]
    block: Sequence[int]
    arguments: list[Any]
    expected: dict[int, Any]
    rtol: float = 0.0
    atol: float = 0.0
    shared: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    def launch(self, **options: Any) -> LaunchResult:
        """Run it with the default checks."""
        arguments = [as_argument(a) for a in self.arguments]
        kernel = kernel_of(self.file, self.entry)
        return kernel.launch(self.grid, self.block, arguments, shared=self.shared, **options)

    def check(self, result: LaunchResult) -> None:
        """Compare the outputs with what is expected."""
        for number, expected in self.expected.items():
            got = result.buffers[number]
            assert got is not None
            wanted = np.asarray(expected)
            assert got.size == wanted.size, (self.entry, got.shape, wanted.shape)
            got = got.reshape(wanted.shape)
            if self.rtol or self.atol:
                np.testing.assert_allclose(
                    got.astype("f8"), wanted.astype("f8"), self.rtol, self.atol, err_msg=self.entry
                )
            else:
                np.testing.assert_array_equal(got, wanted, err_msg=self.entry)


@cache
def kernel_of(file: str, entry: str) -> Kernel:
    """Read a kernel once."""
    return load_kernel((FOLDER / file).read_bytes(), file, entry)


def as_argument(value: Any) -> Argument:
    """Make a launch's argument."""
    if isinstance(value, (BufferArgument, ScalarArgument)):
        return value
    if isinstance(value, bytes):
        return ScalarArgument(value)
    if isinstance(value, np.generic):
        return ScalarArgument(value.tobytes())
    return BufferArgument(value)


def out(shape: int | tuple[int, ...], dtype: Any = "f4") -> BufferArgument:
    """Make a buffer without contents."""
    return BufferArgument(np.zeros(shape, dtype), initialised=False)


def _gelu(x: Any) -> Any:
    x = x.astype("f8")
    return 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3)))


def _softmax(x: Any) -> Any:
    e = np.exp(x.astype("f8") - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


_ERF = np.vectorize(erf)


def elementwise(rng: np.random.Generator, n: int) -> list[Case]:
    """Launches of elementwise.cu."""
    f = "elementwise.ptx"
    grid, block, count = [-(-n // 128)], [128], np.int32(n)
    x, y = (rng.standard_normal(n).astype("f4") for _ in range(2))
    xi = rng.integers(-(2**31), 2**31, n).astype("i4")
    yi = rng.integers(0, 2**32, n).astype("u4")
    cases = [
        Case(f, "vecadd", grid, block, [x, y, out(n), count], {2: x + y}),
        Case(
            f, "saxpy_strided", [2], [64], [np.float32(1.5), x, y, count],
            {2: (x.astype("f8") * 1.5 + y).astype("f4")},
        ),
        Case(f, "gelu_f32", grid, block, [x, out(n), count], {1: _gelu(x)}, 1e-5, 1e-6),
    ]  # fmt: skip
    h, b = x.astype("f2"), x.astype(BF16)
    cases += [
        Case(f, "gelu_f16", grid, block, [h, out(n, "f2"), count], {1: _gelu(h)}, 1e-3, 1e-4),
        Case(f, "gelu_bf16", grid, block, [b, out(n, BF16), count], {1: _gelu(b)}, 8e-3, 1e-3),
    ]
    pairs = n // 2
    h2, k2 = x[: 2 * pairs].astype("f2"), y[: 2 * pairs].astype("f2")
    fused = (h2.astype("f8") * 1.5 + k2.astype("f8")).astype("f2")
    if pairs:
        b2 = x[: 2 * pairs].astype(BF16)
        cases += [
            Case(
                f, "half2_axpy", grid, block, [h2, k2, out(2 * pairs, "f2"), np.int32(pairs)],
                {2: fused},
            ),
            Case(
                f, "bfloat2_scale", grid, block, [b2, out(2 * pairs, BF16), np.int32(pairs)],
                {1: (b2.astype("f8") ** 2).astype(BF16)},
            ),
        ]  # fmt: skip
    d = np.abs(rng.standard_normal(n))
    poly = d * (d * 0.25 - 1.5) + np.sqrt(d) / 3
    cases.append(
        Case(f, "double_poly", grid, block, [d, out(n, "f8"), count], {1: poly}, 1e-12, 1e-15)
    )
    cases.append(
        Case(
            f, "integer_mix", grid, block, [xi, yi, out(n, "i8"), count], {2: _integer_mix(xi, yi)}
        )
    )
    weights = np.array([1, -0.5, 0.25, 2.0])
    cases.append(
        Case(
            f, "polynomial_call", grid, block, [x, out(n), count],
            {1: np.polyval(weights[::-1], x.astype("f8"))}, 1e-5, 1e-5,
        )
    )  # fmt: skip
    z = rng.uniform(-2.5, 2.5, n).astype("f4")
    z8 = z.astype("f8")
    whole = np.exp(-z8) + np.log(z8 + 3) + np.sin(z8) * np.cos(z8) + (z8 + 3) ** 1.3
    whole = whole + _ERF(z8) + (z8 + 4) ** -0.5
    cases.append(Case(f, "transcendental", grid, block, [z, out(n), count], {1: whole}, 2e-6, 1e-6))
    codes = np.clip(np.rint(x / np.float32(0.03)), -128, 127).astype("i1")
    cases.append(
        Case(
            f, "int8_quantize", grid, block, [x, out(n, "i1"), np.float32(0.03), count], {1: codes}
        )
    )
    cases.append(Case(f, "switch_table", grid, block, [xi, out(n, "i4"), count], {1: _switch(xi)}))
    rows = rng.integers(-1000, 1000, (n, 16)).astype("i4")
    cases.append(
        Case(
            f, "local_array", grid, block, [rows, out((n, 16), "i4"), count], {1: np.sort(rows, 1)}
        )
    )
    quads = rng.standard_normal((n, 4)).astype("f4")
    moved = quads.copy()
    moved[:, 0] *= np.float32(2.5)
    moved[:, 1] += 7
    moved[:, 2] -= np.float32(2.5)
    moved[:, 3] = 7
    pair = np.float32(2.5).tobytes() + np.int32(7).tobytes()
    cases.append(Case(f, "by_value", grid, block, [pair, quads, out((n, 4)), count], {2: moved}))
    big = rng.integers(0, 2**64, n, dtype="u8")
    products = [int(v) * int(v) + int(v) for v in big]
    halves = np.array([[p & (2**64 - 1), p >> 64] for p in products], "u8").reshape(n, 2)
    cases.append(Case(f, "wide_product", grid, block, [big, out((n, 2), "u8"), count], {1: halves}))
    return cases


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _integer_mix(xs: Any, ys: Any) -> Any:
    found = []
    for x, y in zip(map(int, xs), map(int, ys), strict=True):
        a = x * _signed(y, 32)
        divisor = y % 7 + 1
        a += int(abs(x) // divisor * (1 if x >= 0 else -1)) - (abs(x) % 5 * (1 if x >= 0 else -1))
        bits = x & 0xFFFFFFFF
        other = bin(y).count("1") + (32 - bits.bit_length())
        other += (bits & -bits).bit_length() + int(f"{y:032b}"[::-1], 2)
        a = _signed(a, 64) ^ other
        a += (x * x >> 32) + (y * 12345 >> 32) + (a >> 3)
        found.append(_signed(a, 64))
    return np.array(found, "i8")


def _switch(xs: Any) -> Any:
    def one(v: int) -> int:
        quotient = int(abs(v) // 3) * (1 if v >= 0 else -1)
        rest = abs(v) % 11 * (1 if v >= 0 else -1)
        choices = (v * 3, v - 17, v ^ 0x55, -v, v << 2, quotient, rest, 42)
        return _signed(choices[v & 7], 32)

    return np.array([one(int(v)) for v in xs], "i4")


def reductions(rng: np.random.Generator, n: int) -> list[Case]:
    """Launches of reductions.cu."""
    f = "reductions.ptx"
    x = rng.standard_normal((3, n)).astype("f4")
    xi = rng.integers(-100, 100, n).astype("i4")
    total = x.astype("f8").sum(1)
    cases = [
        Case(f, "block_sum", [3], [256], [x, out(3), np.int32(n)], {1: total}, 1e-5, 1e-4),
        Case(f, "warp_sum", [3], [128], [x, out(3), np.int32(n)], {1: total}, 1e-5, 1e-4),
        Case(f, "argmax_rows", [3], [128], [x, out(3, "i4"), np.int32(n)], {1: x.argmax(1)}),
    ]
    m = min(n, 256)
    cases.append(
        Case(
            f, "inclusive_scan", [1], [256], [xi[:m], out(m, "i4"), np.int32(m)],
            {1: np.cumsum(xi[:m], dtype="i4")}, shared=1024,
        )
    )  # fmt: skip
    padded = np.zeros(-(-n // 32) * 32, "i4")
    padded[:n] = xi
    scans = np.cumsum(padded.reshape(-1, 32), axis=1, dtype="i4").reshape(-1)[:n]
    blocks = [-(-n // 128)]
    cases.append(Case(f, "warp_scan", blocks, [128], [xi, out(n, "i4"), np.int32(n)], {1: scans}))
    codes = rng.integers(0, 256, n).astype("u1")
    cases.append(
        Case(
            f, "histogram", [2], [128], [codes, np.zeros(256, "u4"), np.int32(n)],
            {1: np.bincount(codes, minlength=256)},
        )
    )  # fmt: skip
    unsorted = rng.integers(-1000, 1000, (2, 512)).astype("i4")
    cases.append(Case(f, "bitonic_sort", [2], [256], [unsorted], {0: np.sort(unsorted, 1)}))
    v = rng.standard_normal((5, 256)).astype("f4")
    cases.append(
        Case(
            f, "last_block_sum", [5], [256], [v, out(5), out(1), np.zeros(1, "u4")],
            {2: [v.astype("f8").sum()]}, 1e-5, 1e-3,
        )
    )  # fmt: skip
    kept = xi[xi > 0]
    cases.append(
        Case(
            f, "warp_aggregated", blocks, [128], [xi, out(n, "i4"), np.zeros(1, "i4"), np.int32(n)],
            {2: [len(kept)]},
        )
    )  # fmt: skip
    cases.append(
        Case(
            f, "float_max_cas", [3], [128],
            [x[0, :384], np.full(1, -1e30, "f4"), np.int32(min(n, 384))], {1: [x[0, :384].max()]},
        )
    )  # fmt: skip
    cases.append(Case(f, "spin_lock", [2], [40], [np.zeros(1, "i4"), np.zeros(1, "i4")], {1: [80]}))
    g = rng.integers(-100, 100, 256).astype("i4")
    cases.append(
        Case(
            f, "group_reduce", [2], [128], [g, out(16, "i4"), np.int32(256)],
            {1: g.reshape(16, 16).sum(1)},
        )
    )  # fmt: skip
    votes = rng.integers(0, 8, 64).astype("i4")
    cases.append(Case(f, "redux_votes", [2], [32], [votes, out(64, "u4")], {1: _votes(votes)}))
    w = rng.integers(-3, 5, 256).astype("i4").reshape(2, 128)
    counted = (w > 0).sum(1) * 4 + 2 + (w == 3).any(1)
    cases.append(
        Case(
            f, "count_barrier", [2], [128], [w, out((2, 128), "i4")],
            {1: np.repeat(counted[:, None], 128, 1)},
        )
    )  # fmt: skip
    q = rng.integers(-100, 100, 128).astype("i4")
    cases.append(Case(f, "named_barriers", [1], [128], [q, out(64, "i4")], {1: q[:64] * 2 + 1}))
    swapped = q.reshape(-1, 2)[:, ::-1].reshape(-1) + 1
    mirrored = swapped.reshape(-1, 32)[:, ::-1].reshape(-1)
    cases.append(Case(f, "warp_private", [1], [128], [q, out(128, "i4")], {1: mirrored}))
    return cases


def _votes(values: Any) -> Any:
    found = []
    for warp in values.reshape(-1, 32):
        ints = [int(v) for v in warp]
        same = int(np.bitwise_xor.reduce(warp))
        base = sum(ints) + max(ints) + same + sum((v > 2) << i for i, v in enumerate(ints))
        base += 0xFFFFFFFF + 1 + (5 in ints) + 2
        for v in ints:
            match = sum((w == v) << i for i, w in enumerate(ints))
            found.append((base + match) & 0xFFFFFFFF)
    return np.array(found, "u4")


def matrices(rng: np.random.Generator, n: int) -> list[Case]:
    """Launches of matrices.cu."""
    f = "matrices.ptx"
    rows, cols = n, n + 7

    def normal(*shape: int, dtype: Any = "f4") -> Any:
        return rng.standard_normal(shape).astype(dtype)

    x = normal(rows, cols)
    grid = [-(-cols // 32), -(-rows // 32)]
    size = [np.int32(rows), np.int32(cols)]
    cases = [Case(f, "transpose", grid, [32, 8], [x, out((cols, rows)), *size], {1: x.T})]
    a, b = normal(n, 20), normal(20, cols)
    product = a.astype("f8") @ b.astype("f8")
    cases.append(
        Case(
            f, "tiled_matmul", [-(-cols // 16), -(-n // 16)], [16, 16],
            [a, b, out((n, cols)), np.int32(n), np.int32(cols), np.int32(20)],
            {2: product}, 1e-4, 1e-4,
        )
    )  # fmt: skip
    p, q = normal(128, 128), normal(128, 128)
    cases.append(
        Case(
            f, "register_matmul", [2, 2], [256], [p, q, out((128, 128)), np.int32(128)],
            {2: p.astype("f8") @ q.astype("f8")}, 1e-4, 1e-3,
        )
    )  # fmt: skip
    ha, hb = normal(32, 48, dtype="f2"), normal(24, 48, dtype="f2")
    cases.append(
        Case(
            f, "mma_f16", [3, 2], [32], [ha, hb, out((32, 24)), np.int32(24), np.int32(48)],
            {2: ha.astype("f8") @ hb.astype("f8").T}, 1e-5, 1e-4,
        )
    )  # fmt: skip
    ia, ib = (rng.integers(-128, 128, s).astype("i1") for s in ((16, 32), (8, 32)))
    cases.append(
        Case(
            f, "mma_int8", [1], [32], [ia, ib, out((16, 8), "i4")],
            {2: ia.astype("i4") @ ib.astype("i4").T},
        )
    )  # fmt: skip
    ta, tb = normal(16, 8), normal(8, 8)
    cases.append(
        Case(
            f, "mma_tf32", [1], [32], [ta, tb, out((16, 8))],
            {2: ta.astype("f8") @ tb.astype("f8").T}, 5e-3, 5e-3,
        )
    )  # fmt: skip
    da, db = rng.standard_normal((8, 4)), rng.standard_normal((8, 4))
    cases.append(
        Case(f, "mma_f64", [1], [32], [da, db, out((8, 8), "f8")], {2: da @ db.T}, 1e-12, 1e-12)
    )
    qa, qb = (rng.integers(-128, 128, s).astype("i1") for s in ((64, 20), (20,)))
    cases.append(
        Case(
            f, "dp4a_dot", [2], [32], [qa, qb, out(64, "i4"), np.int32(5)],
            {2: qa.astype("i4") @ qb.astype("i4")},
        )
    )  # fmt: skip
    image, kernel = normal(rows, cols), normal(3, 3)
    padded = np.pad(image.astype("f8"), 1)
    smooth = sum(
        kernel[i, j] * padded[i : i + rows, j : j + cols] for i in range(3) for j in range(3)
    )
    cases.append(
        Case(
            f, "convolution", [-(-cols // 16), -(-rows // 16)], [16, 16],
            [image, kernel, out((rows, cols)), *size], {2: smooth}, 1e-4, 1e-4,
        )
    )  # fmt: skip
    s = normal(4, cols)
    cases.append(
        Case(
            f, "softmax_rows", [4], [128], [s, out((4, cols)), np.int32(cols)], {1: _softmax(s)},
            1e-5, 1e-6,
        )
    )  # fmt: skip
    hs, gamma, beta = normal(4, cols, dtype="f2"), normal(cols), normal(cols)
    h8 = hs.astype("f8")
    norm = (h8 - h8.mean(1, keepdims=True)) / np.sqrt(h8.var(1, keepdims=True) + 1e-5)
    cases.append(
        Case(
            f, "layernorm", [4], [64], [hs, gamma, beta, out((4, cols), "f2"), np.int32(cols)],
            {3: norm * gamma + beta}, 2e-3, 2e-3,
        )
    )  # fmt: skip
    fq, fk, fv = (normal(64, 16) for _ in range(3))
    attention = _softmax(fq.astype("f8") @ fk.astype("f8").T / 4) @ fv.astype("f8")
    cases.append(
        Case(
            f, "flash_attention", [2], [32], [fq, fk, fv, out((64, 16)), np.int32(64)],
            {3: attention}, 1e-4, 1e-5,
        )
    )  # fmt: skip
    return cases


def small_floats(rng: np.random.Generator, n: int) -> list[Case]:
    """Launches of small_floats.cu."""
    f = "small_floats.ptx"
    grid, count = [-(-n // 128)], np.int32(n)
    x = (rng.standard_normal(n) * 10).astype("f4")
    codes = rng.integers(0, 0x7C, n).astype("u1")
    e4m3 = x.astype(ml_dtypes.float8_e4m3fn)
    e5m2 = codes.view(ml_dtypes.float8_e5m2).astype("f4")
    return [
        Case(f, "to_e4m3", grid, [128], [x, out(n, "u1"), count], {1: e4m3.view("u1")}),
        Case(f, "from_e5m2", grid, [128], [codes, out(n), count], {1: e5m2}),
    ]


FAMILIES: tuple[Callable[[np.random.Generator, int], list[Case]], ...] = (
    elementwise, reductions, matrices, small_floats,
)  # fmt: skip


def all_cases(seed: int, n: int) -> list[Case]:
    """Launches of every kernel for one seed and size."""
    from cooperative_kernels import cooperative
    from fragment_cases import barriers, fragments

    rng = np.random.default_rng([seed, n])
    families = (*FAMILIES, fragments, barriers, cooperative)
    return [case for family in families for case in family(rng, n)]
