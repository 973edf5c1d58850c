"""Atomics of several neighbours: sums, old values, and addresses that are not aligned."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from emulated_kernels import as_argument
from for_each import for_each

from gpuemu_flow.emulator.launch import LaunchResult, load_kernel

KINDS = {
    "f32": ("f32", np.dtype("f4"), (2, 4)), "f16": ("b16", np.dtype("f2"), (2, 4, 8)),
    "bf16": ("b16", np.dtype(ml_dtypes.bfloat16), (2, 4, 8)),
}  # fmt: skip
CASES = [(kind, count) for kind, (_, _, counts) in KINDS.items() for count in counts]


def launch(kind: str, count: int, base: str, target: Any, shift: int = 0) -> LaunchResult:
    """Add 1, 2, 3, ... to `count` neighbours by each of 32 threads, two threads at a place."""
    register, dtype, _ = KINDS[kind]
    numbers = [np.array(k + 1.0, dtype).view(f"u{dtype.itemsize}") for k in range(count)]
    sets = "".join(
        f"mov.b{8 * dtype.itemsize} %v{k}, {int(n)};" for k, n in enumerate(numbers)
    )  # fmt: skip
    given = "{" + ",".join(f"%v{k}" for k in range(count)) + "}"
    old = "{" + ",".join(f"%o{k}" for k in range(count)) + "}, " if base == "atom" else ""
    noftz = "" if kind == "f32" else ".noftz"
    text = f"""
    .version 8.5
    .target sm_90
    .address_size 64
    .visible .entry k(.param .u64 x) {{
    .reg .{register} %v<9>; .reg .{register} %o<9>; .reg .b32 %r<3>; .reg .b64 %d<4>;
    ld.param.u64 %d1, [x]; mov.u32 %r1, %tid.x; shr.u32 %r1, %r1, 1;
    mul.wide.u32 %d2, %r1, {count * dtype.itemsize}; add.u64 %d1, %d1, %d2; {sets}
    {base}.global.add{noftz}.v{count}.{kind} {old}[%d1+{shift}], {given};
    ret; }}"""
    return load_kernel(text.encode(), "vector.ptx").launch([1], [32], [as_argument(target)])


@for_each("base", ["atom", "red"])
@for_each(("kind", "count"), CASES)
def test_neighbours_are_added_to(kind: str, count: int, base: str) -> None:
    dtype = KINDS[kind][1]
    target = (np.arange(16 * count) % 5).astype(dtype)
    result = launch(kind, count, base, target)
    wanted = (target.astype("f8").reshape(16, count) + 2 * np.arange(1, count + 1)).astype(dtype)
    assert result.findings == ()
    assert result.buffers[0] is not None and result.buffers[0].tobytes() == wanted.tobytes()


def test_an_address_between_two_places_is_misaligned() -> None:
    result = launch("f32", 2, "red", np.zeros(33, "f4"), shift=4)
    assert [(f.check, f.rule) for f in result.findings] == [("mem", "misaligned")]
