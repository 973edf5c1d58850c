"""``mma.sp`` against numpy: elements and metadata laid into lanes by the ISA's formulas."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from emulated_kernels import as_argument, out
from for_each import for_each

from gpuemu_flow.emulator.errors import UnsupportedError
from gpuemu_flow.emulator.launch import LaunchResult, load_kernel

BF16 = np.dtype(ml_dtypes.bfloat16)
TYPES: dict[str, Any] = {
    "f16": np.dtype("f2"), "bf16": BF16, "tf32": np.dtype("f4"), "s8": np.dtype("i1"),
    "u8": np.dtype("u1"), "s4": np.dtype("i1"), "u4": np.dtype("u1"),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn), "e5m2": np.dtype(ml_dtypes.float8_e5m2),
}  # fmt: skip
CASES = [
    *((k, kind, kind, total) for k in (16, 32) for kind in ("f16",) for total in ("f16", "f32")),
    *((k, "bf16", "bf16", "f32") for k in (16, 32)),
    *((k, "tf32", "tf32", "f32") for k in (8, 16)),
    *((k, a, b, "s32") for k in (32, 64) for a, b in (("s8", "s8"), ("u8", "s8"), ("u8", "u8"))),
    *((k, a, b, "s32") for k in (64, 128) for a, b in (("s4", "s4"), ("u4", "s4"))),
    *((64, a, b, "f32") for a, b in (("e4m3", "e4m3"), ("e5m2", "e4m3"), ("e4m3", "e5m2"))),
]


def bits_of(kind: str) -> int:
    return {"tf32": 32, "f16": 16, "bf16": 16, "s4": 4, "u4": 4}.get(kind, 8)


def raw(values: Any, kind: str) -> Any:
    """Return elements as unsigned bits."""
    data = np.ascontiguousarray(values.astype(TYPES[kind])).view(f"u{TYPES[kind].itemsize}")
    return data.astype("u4") & np.uint32((1 << bits_of(kind)) - 1)


def packed(elements: list[int], bits: int) -> int:
    return sum(int(e) << bits * j for j, e in enumerate(elements))


def draw(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> Any:
    low, high = {"u4": (0, 16), "u8": (0, 200), "s4": (-8, 8), "s8": (-128, 128)}.get(kind, (-4, 5))
    return rng.integers(low, high, shape)


def compressed(rng: np.random.Generator, kind: str, k: int) -> tuple[Any, Any, list[list[int]]]:
    """Draw a sparse A: whole, as stored, and by row the indices that name its places."""
    unit, group, kept = {32: (1, 2, 1), 4: (2, 4, 2)}.get(bits_of(kind), (1, 4, 2))
    whole, stored = np.zeros((16, k), "i8"), np.zeros((16, k // 2), "i8")
    indices: list[list[int]] = []
    for row in range(16):
        names, at = [], 0
        for start in range(0, k, group * unit):
            for place in sorted(rng.choice(group, kept, replace=False).tolist()):
                names.append((0b0100, 0b1110)[place] if bits_of(kind) == 32 else place)
                for part in range(unit):
                    value = draw(rng, kind, ())
                    whole[row, start + place * unit + part] = stored[row, at] = value
                    at += 1
        indices.append(names)
    return whole, stored, indices


def metadata(indices: list[list[int]], kind: str, selector: int, rng: np.random.Generator) -> Any:
    """Lay the indices into lanes; others hold noise, which must not matter."""
    lanes = rng.integers(0, 1 << 32, 32).astype("u4")
    width = 4 if bits_of(kind) == 32 else 2
    piece = 32 if bits_of(kind) <= 8 else 16
    for row, names in enumerate(indices):
        word = packed(names, width)
        chunks = len(names) * width // piece
        for c in range(chunks):
            part = word >> piece * c & (1 << piece) - 1
            if piece == 32:
                lanes[4 * (row % 8) + 2 * (selector * chunks + c) + row // 8] = part
                continue
            lane, shift = 4 * (row % 8) + selector * chunks + c, 16 * (row // 8)
            lanes[lane] = int(lanes[lane]) & ~(0xFFFF << shift) | part << shift
    return lanes


def fragments_a(stored: Any, kind: str) -> Any:
    bits = bits_of(kind)
    e, found = 32 // bits, []
    data = raw(stored, kind)
    for r in range(stored.shape[1] * bits // 64):
        for lane in range(32):
            row, column = lane // 4 + 8 * (r % 2), 4 * e * (r // 2) + lane % 4 * e
            found.append(packed(data[row, column : column + e].tolist(), bits))
    return np.array(found, "u4").reshape(-1, 32)


def fragments_b(b: Any, kind: str) -> Any:
    bits = bits_of(kind)
    e, data = 32 // bits, raw(b, kind)
    found = [
        packed(data[4 * e * r + lane % 4 * e : 4 * e * r + (lane % 4 + 1) * e, lane // 4].tolist(),
               bits)
        for r in range(len(b) // (4 * e)) for lane in range(32)
    ]  # fmt: skip
    return np.array(found, "u4").reshape(-1, 32)


def places() -> list[tuple[Any, Any]]:
    lane = np.arange(32)
    return [(lane // 4 + 8 * (i // 2), 2 * (lane % 4) + i % 2) for i in range(4)]


def fragments_c(c: Any, total: str) -> Any:
    values = [c[rows, columns] for rows, columns in places()]
    if total != "f16":
        return np.stack([v.astype("f4" if total == "f32" else "i4").view("u4") for v in values])
    halves = [v.astype("f2").view("u2").astype("u4") for v in values]
    return np.stack([halves[0] | halves[1] << 16, halves[2] | halves[3] << 16])


def ptx(k: int, a: str, b: str, total: str, selector: int, counts: list[int], order: str) -> str:
    """Write a kernel that loads fragments by lane, multiplies once, and stores D."""
    lists, loads, number = [], [], 10
    for pointer, count in zip(("%rd1", "%rd2", "%rd3", "%rd4"), counts, strict=True):
        names = [f"%r{number + i}" for i in range(count)]
        number += count
        loads += [f"ld.global.b32 {n}, [{pointer}+{128 * i}];" for i, n in enumerate(names)]
        lists.append("{" + ",".join(names) + "}")
    results = [f"%r{number + i}" for i in range(counts[2])]
    kinds = f"{total}.{a}.{b}.{total}"
    stores = [f"st.global.b32 [%rd5+{128 * i}], {n};" for i, n in enumerate(results)]
    names = ("a", "b", "c", "e", "d")
    return "\n".join(
        [
            ".version 8.5\n.target sm_89\n.address_size 64",
            ".visible .entry k(" + ", ".join(f".param .u64 {n}" for n in names) + ") {",
            ".reg .b32 %r<60>; .reg .b64 %rd<9>; mov.u32 %r1, %tid.x; mul.wide.u32 %rd6, %r1, 4;",
            *(
                f"ld.param.u64 %rd{i}, [{n}]; add.u64 %rd{i}, %rd{i}, %rd6;"
                for i, n in enumerate(names, 1)
            ),
            *loads,
            f"mma.sp{order}.sync.aligned.m16n8k{k}.row.col.{kinds} {{{','.join(results)}}}, "
            f"{lists[0]}, {lists[1]}, {lists[2]}, {lists[3][1:-1]}, {selector};",
            *stores,
            "ret; }",
        ]
    )


def multiply(
    k: int, a: str, b: str, total: str, selector: int, seed: int, *, order: str = "",
    spoil: int | None = None,
) -> tuple[LaunchResult, Any]:  # fmt: skip
    rng = np.random.default_rng(seed)
    whole, stored, indices = compressed(rng, a, k)
    right, third = draw(rng, b, (k, 8)), draw(rng, "f16", (16, 8))
    if spoil is not None:
        indices[3][spoil : spoil + 2] = [2, 2]
    parts = [
        fragments_a(stored, a), fragments_b(right, b), fragments_c(third, total),
        metadata(indices, a, selector, rng)[None],
    ]  # fmt: skip
    text = ptx(k, a, b, total, selector, [len(p) for p in parts], order)
    arguments = [*(as_argument(p) for p in parts), as_argument(out(parts[2].shape, "u4"))]
    result = load_kernel(text.encode(), "sparse.ptx").launch([1], [32], arguments)
    return result, fragments_c(whole @ right + third, total)


@for_each(("k", "a", "b", "total"), CASES)
def test_a_sparse_product_is_that_of_the_whole_matrix(k: int, a: str, b: str, total: str) -> None:
    pieces = k // (2 if bits_of(a) != 4 else 4) * (4 if a == "tf32" else 2) * 16 // 32
    for selector in range(32 // pieces):
        result, wanted = multiply(k, a, b, total, selector, seed=selector)
        assert result.findings == ()
        assert np.array_equal(result.buffers[4], wanted)


@pytest.mark.parametrize(("k", "a", "total"), [(32, "f16", "f32"), (64, "s8", "s32")])
def test_ordered_metadata_give_the_same_product(k: int, a: str, total: str) -> None:
    result, wanted = multiply(k, a, a, total, 0, seed=7, order="::ordered_metadata")
    assert result.findings == ()
    assert np.array_equal(result.buffers[4], wanted)


@pytest.mark.parametrize(("k", "a", "total"), [(32, "f16", "f32"), (64, "s4", "s32"),
                                               (16, "tf32", "f32")])  # fmt: skip
def test_metadata_without_meaning_are_a_finding(k: int, a: str, total: str) -> None:
    result, _ = multiply(k, a, a, total, 0, seed=3, spoil=2)
    assert [(f.check, f.rule) for f in result.findings] == [("sync", "sparse-metadata")]


@pytest.mark.parametrize(("k", "a", "selector"), [(32, "f16", 2), (64, "s8", 1), (16, "f16", 4)])
def test_a_selector_that_does_not_exist_is_refused(k: int, a: str, selector: int) -> None:
    counts = [k // (8 if a == "f16" else 16), k // (8 if a == "f16" else 16), 4, 1]
    text = ptx(k, a, a, "s32" if a == "s8" else "f32", selector, counts, "")
    with pytest.raises(UnsupportedError, match="cannot be run"):
        load_kernel(text.encode(), "sparse.ptx")
