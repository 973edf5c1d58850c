"""Copies by tensor maps against plain loops over arrays: types, ranks, edges, swizzles, sums."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import ml_dtypes
import numpy as np
import pytest
from for_each import for_each
from whole import sample

from gpuemu_flow.emulator.errors import UnsupportedError
from gpuemu_flow.emulator.launch import BufferArgument, LaunchResult, ScalarArgument, load_kernel

BF16 = np.dtype(ml_dtypes.bfloat16)
TYPES = {
    0: np.dtype("u1"), 1: np.dtype("u2"), 2: np.dtype("u4"), 3: np.dtype("i4"), 4: np.dtype("u8"),
    5: np.dtype("i8"), 6: np.dtype("f2"), 7: np.dtype("f4"), 9: np.dtype("f8"), 10: BF16,
}  # fmt: skip
"""By the number that PTX gives to ``.elemtype`` (PTX ISA, "tensormap.replace")."""


def fields(
    pointer: str, kind: int, box: Sequence[int], shape: Sequence[int], item: int, swizzle: int,
    fill: int, steps: Sequence[int],
) -> list[str]:  # fmt: skip
    """PTX that fills a map in shared memory at %r1, dimension 0 first."""
    lines = [f"ld.param.u64 %d1, [{pointer}];"]

    def put(field: str, value: str, wide: str = "b32", number: int | None = None) -> None:
        at = "" if number is None else f"{number}, "
        lines.append(
            f"@%p1 tensormap.replace.tile.{field}.shared::cta.b1024.{wide} [%r1], {at}{value};"
        )

    put("global_address", "%d1", "b64")
    put("rank", str(len(box) - 1))
    stride = item
    for n in range(len(box)):
        put("box_dim", str(box[n]), number=n)
        put("global_dim", str(shape[n]), number=n)
        put("element_stride", str(steps[n]), number=n)
        if n:
            lines.append(f"mov.u64 %d2, {stride};")
            put("global_stride", "%d2", "b64", n - 1)
        stride *= shape[n]
    put("elemtype", str(kind))
    put("interleave_layout", "0")
    put("swizzle_mode", str(swizzle))
    put("fill_mode", str(fill))
    return lines


def publish(target: str) -> list[str]:
    return [
        "bar.sync 0;",
        f"@%p2 tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync."
        f"aligned [{target}], [%r1], 128;",
        f"fence.proxy.tensormap::generic.acquire.gpu [{target}], 128;",
        "bar.sync 0;",
    ]


def clear() -> str:
    return "@%p2 st.shared.u32 [%r3], 0; bar.sync 0;"


def copy_kernel(
    kind: int, box: Sequence[int], shape: Sequence[int], corner: Sequence[int], item: int, *,
    swizzle: int = 0, fill: int = 0, steps: Sequence[int] = (1,) * 5, reduction: str = "",
) -> str:  # fmt: skip
    """Copy a box of x to shared memory, show it in raw, and copy or add it to the same box of y."""
    size = item * int(np.prod([-(-n // s) for n, s in zip(box, steps, strict=False)]))
    place = "{" + ", ".join(f"%c{n}" for n in range(len(box))) + "}"
    name = f"{len(box)}d"
    out = f"cp.reduce.async.bulk.tensor.{name}.global.shared::cta.{reduction}.tile.bulk_group"
    if not reduction:
        out = f"cp.async.bulk.tensor.{name}.global.shared::cta.tile.bulk_group"
    lines = [
        ".reg .b32 %r<20>, %c<5>; .reg .b64 %d<9>; .reg .pred %p<5>; .reg .b16 %h;",
        f".shared .align 1024 .b8 data[{size}]; .shared .align 128 .b8 map[128];",
        ".shared .align 8 .b64 done;",
        "mov.u32 %r0, %tid.x; mov.u32 %r1, map; shl.b32 %r2, %r0, 2; add.u32 %r3, %r1, %r2;",
        "setp.eq.u32 %p1, %r0, 0; setp.lt.u32 %p2, %r0, 32; mov.u32 %r4, done; mov.u32 %r5, data;",
        "@%p1 mbarrier.init.shared::cta.b64 [%r4], 1;",
        "ld.param.u64 %d3, [maps]; add.s64 %d4, %d3, 128;",
        *(f"mov.u32 %c{n}, {c};" for n, c in enumerate(corner)),
        clear(),
        *fields("x", kind, box, shape, item, swizzle, fill, steps),
        *publish("%d3"),
        clear(),
        *fields("y", kind, box, shape, item, swizzle, fill, steps),
        *publish("%d4"),
        f"@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], {size};",
        f"@%p1 cp.async.bulk.tensor.{name}.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        f" [%r5], [%d3, {place}], [%r4];",
        "W: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r4], 0; @!%p3 bra W;",
        "ld.param.u64 %d5, [raw]; mov.u32 %r6, %r0;",
        f"L: setp.ge.u32 %p3, %r6, {size}; @%p3 bra E; add.u32 %r7, %r5, %r6;",
        "ld.shared.u8 %h, [%r7]; cvt.u64.u32 %d6, %r6; add.s64 %d6, %d6, %d5;",
        "st.global.u8 [%d6], %h; add.u32 %r6, %r6, 64; bra L;",
        "E: bar.sync 0;",
        f"@%p1 {out} [%d4, {place}], [%r5];",
        "@%p1 cp.async.bulk.commit_group; @%p1 cp.async.bulk.wait_group 0; ret;",
    ]
    heads = ", ".join(f".param .u64 {n}" for n in ("x", "y", "maps", "raw"))
    return (
        f".version 8.3\n.target sm_90a\n.address_size 64\n.visible .entry k({heads})\n{{\n"
        + "\n".join(lines)
        + "\n}\n"
    )


def launch(text: str, x: np.ndarray, y: np.ndarray, size: int) -> LaunchResult:
    kernel = load_kernel(text.encode(), "tensors.ptx")
    return kernel.launch(
        [1], [64],
        [BufferArgument(np.atleast_1d(x).view("u1")), BufferArgument(np.atleast_1d(y).view("u1")),
         BufferArgument(np.zeros(256, "u1"), initialised=False),
         BufferArgument(np.zeros(size, "u1"), initialised=False)],
    )  # fmt: skip


def boxed(
    x: np.ndarray, corner: Sequence[int], box: Sequence[int], steps: Sequence[int], fill: object
) -> list[tuple[tuple[int, ...] | None, object]]:
    """Elements of a box in order: where each stands in the (reversed) array, and its value."""
    shape = x.shape[::-1]
    axes = [range(c, c + b, s) for c, b, s in zip(corner, box, steps, strict=False)]
    found: list[tuple[tuple[int, ...] | None, object]] = []
    for reversed_place in itertools.product(*axes[::-1]):
        inside = all(0 <= p < n for p, n in zip(reversed_place, shape[::-1], strict=True))
        place = tuple(reversed_place) if inside else None
        found.append((place, x[reversed_place] if inside else fill))
    return found


def swizzled(data: bytes, mode: int) -> bytes:
    """Move chunks of 16 bytes as the tables of the ISA show them for a start at a line of 1024."""
    out = bytearray(len(data))
    for chunk in range(len(data) // 16):
        line, column = divmod(chunk, 8)
        turn = {0: 0, 1: line // 1 % 2, 2: line % 4, 3: line % 8}[mode]
        at = 16 * (8 * line + (column ^ turn))
        out[at : at + 16] = data[16 * chunk : 16 * chunk + 16]
    return bytes(out)


def values(kind: int, shape: Sequence[int], seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    dtype = TYPES[kind]
    if dtype.kind in "ui":
        return rng.integers(0, 120, shape).astype(dtype)
    return rng.integers(-50, 50, shape).astype(dtype)


CORNERS = {
    1: [(0,), (-3,), (40,)],
    2: [(0, 0), (-5, 2), (20, -1), (100, 0)],
    3: [(0, 0, 0), (16, -1, 1)],
    4: [(-16, 1, 0, -1)],
    5: [(0, 0, 0, 0, 0), (8, 1, -1, 1, 1)],
}


BOXES = [(kind, rank) for kind in TYPES for rank in CORNERS]


@pytest.mark.parametrize(("kind", "rank"), sample(BOXES, 7, lambda box: box[0], lambda box: box[1]))
def test_a_box_goes_to_shared_memory_and_back(kind: int, rank: int) -> None:
    item = TYPES[kind].itemsize
    box, shape = (16, 3, 2, 3, 2)[:rank], (48, 5, 3, 2, 3)[:rank]
    x, before = values(kind, shape[::-1], rank), values(kind, shape[::-1], rank + 9)
    for corner in CORNERS[rank]:
        size = item * int(np.prod(box))
        result = launch(copy_kernel(kind, box, shape, corner, item), x, before, size)
        assert result.findings == (), [str(f) for f in result.findings]
        cells = boxed(x, corner, box, (1,) * rank, TYPES[kind].type(0))
        raw = b"".join(np.array(v, TYPES[kind]).tobytes() for _, v in cells)
        assert result.buffers[3] is not None and result.buffers[3].tobytes() == raw
        wanted = before.copy()
        for place, value in cells:
            if place is not None:
                wanted[place] = value
        assert result.buffers[1] is not None and result.buffers[1].tobytes() == wanted.tobytes()


@pytest.mark.parametrize("mode", [1, 2, 3])
def test_swizzles(mode: int) -> None:
    columns = 8 << mode  # of two bytes: rows as wide as the swizzle spans
    x = values(6, (40, columns), mode)
    result = launch(
        copy_kernel(6, (columns, 32), (columns, 40), (0, 5), 2, swizzle=mode), x, np.zeros_like(x),
        64 * columns,
    )  # fmt: skip
    assert result.findings == ()
    assert result.buffers[3] is not None and result.buffers[1] is not None
    assert result.buffers[3].tobytes() == swizzled(x[5:37].tobytes(), mode)
    wanted = np.zeros_like(x)
    wanted[5:37] = x[5:37]
    assert result.buffers[1].tobytes() == wanted.tobytes()


@pytest.mark.parametrize("kind", [6, 7, 9, 10])
def test_what_lies_outside_may_be_filled_with_nan(kind: int) -> None:
    item = TYPES[kind].itemsize
    x = values(kind, (4, 16), 1)
    result = launch(copy_kernel(kind, (16, 4), (16, 4), (0, 2), item, fill=1), x, x, 64 * item)
    assert result.findings == () and result.buffers[3] is not None
    got = result.buffers[3].view(TYPES[kind]).reshape(4, 16)
    assert got[:2].tobytes() == x[2:].tobytes() and np.isnan(got[2:].astype("f8")).all()


def test_subnormal_numbers_may_be_flushed() -> None:
    x = np.array([1e-40, -1e-40, 1.5, -0.0, np.inf, 2**-126, -(2**-126), 0] * 2, "f4")
    result = launch(copy_kernel(8, (16,), (16,), (0,), 4), x, x, 64)
    assert result.findings == () and result.buffers[3] is not None
    wanted = np.where(np.abs(x) < 2**-126, np.copysign(np.float32(0), x), x)
    assert result.buffers[3].tobytes() == wanted.tobytes()


def test_elements_may_be_left_out() -> None:
    x = values(7, (12, 16), 3)
    steps, box, corner = (1, 3), (16, 9), (0, 2)
    result = launch(copy_kernel(7, box, (16, 12), corner, 4, steps=steps), x, np.zeros_like(x), 192)
    assert result.findings == () and result.buffers[3] is not None
    assert result.buffers[3].tobytes() == x[2:11:3].tobytes()


OPERATIONS = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor,
    "inc": lambda old, limit: np.where(old >= limit, 0, old + 1),
    "dec": lambda old, limit: np.where((old == 0) | (old > limit), limit, old - 1),
}  # fmt: skip


COMBINED = [
    (kind, operation)
    for kind in (2, 3, 4, 6, 7, 10)
    for operation in (OPERATIONS if TYPES[kind].kind in "ui" else ["add"])
]
"""Floats are added only."""


@for_each(("kind", "operation"), sample(COMBINED, 3, lambda row: row[0], lambda row: row[1]))
def test_a_box_is_combined_with_what_is_there(kind: int, operation: str) -> None:
    dtype = TYPES[kind]
    x, before = values(kind, (4, 16), 5), values(kind, (4, 16), 6)
    text = copy_kernel(kind, (16, 4), (16, 4), (0, 1), dtype.itemsize, reduction=operation)
    result = launch(text, x, before, 64 * dtype.itemsize)
    assert result.findings == () and result.buffers[1] is not None
    wanted = before.copy()
    wanted[1:] = OPERATIONS[operation](before[1:], x[1:]).astype(dtype)
    assert result.buffers[1].tobytes() == wanted.tobytes()


@for_each(
    ("kind", "operation"),
    [(kind, "add") for kind in ("u32", "s32", "u64", "f16", "f32", "f64")]
    + [(kind, other) for kind in ("u32", "s32", "u64") for other in ("min", "max")],
)
def test_bytes_are_combined_with_what_is_there(kind: str, operation: str) -> None:
    dtype = np.dtype(kind.replace("s", "i")[0] + str(int(kind[1:]) // 8))
    rng = np.random.default_rng(3)
    x, before = (rng.integers(0, 90, 32).astype(dtype) for _ in range(2))
    word = ".noftz" if kind == "f16" else ""
    body = f"""
    .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .pred %p<3>; .shared .align 16 .b8 s[{x.nbytes}];
    .shared .align 8 .b64 done; mov.u32 %r1, s; mov.u32 %r2, done; mov.u32 %r0, %tid.x;
    setp.eq.u32 %p1, %r0, 0; @%p1 mbarrier.init.shared.b64 [%r2], 1; bar.sync 0;
    ld.param.u64 %d1, [x]; ld.param.u64 %d2, [y];
    @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], {x.nbytes};
    @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d1], \
{x.nbytes}, [%r2];
    W: mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0; @!%p2 bra W;
    @%p1 cp.reduce.async.bulk.global.shared::cta.bulk_group.{operation}{word}.{kind} [%d2], [%r1], \
{x.nbytes};
    @%p1 cp.async.bulk.commit_group; @%p1 cp.async.bulk.wait_group 0; ret;"""
    text = ".version 8.3\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 x, "
    text += f".param .u64 y)\n{{{body}\n}}\n"
    result = load_kernel(text.encode(), "k.ptx").launch(
        [1], [32], [BufferArgument(x), BufferArgument(before)]
    )
    assert result.findings == () and result.buffers[1] is not None
    np.testing.assert_array_equal(result.buffers[1], OPERATIONS[operation](before, x))


@pytest.mark.parametrize(
    ("options", "said"),
    [({"swizzle": 4}, "swizzle 4"), ({"swizzle": 3}, "spans more"), ({"kind": 11}, "type 11"),
     ({"reduction": "max"}, "max of .f32")],
)  # fmt: skip
def test_a_map_with_something_lacking_is_declined(options: dict[str, object], said: str) -> None:
    given = {"kind": 7, "box": (16, 4), "shape": (16, 4), "corner": (0, 0), "item": 4, **options}
    x = np.zeros((4, 16), "f4")
    with pytest.raises(UnsupportedError) as caught:
        launch(copy_kernel(**given), x, x, 256)  # type: ignore[arg-type]
    (problem,) = caught.value.problems
    assert said in problem.message and problem.line and problem.hint


def test_registers_of_warps_can_be_set() -> None:
    text = ".version 8.3\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u32 x)\n{\n"
    text += "setmaxnreg.inc.sync.aligned.u32 240; setmaxnreg.dec.sync.aligned.u32 40; ret;\n}\n"
    kernel = load_kernel(text.encode(), "k.ptx")
    assert kernel.launch([1], [128], [ScalarArgument(bytes(4))]).findings == ()
    for count in ("20", "260", "41"):
        with pytest.raises(UnsupportedError, match="24 to 256"):
            load_kernel(text.replace("240", count).encode(), "k.ptx")
