"""Matrix products of warp groups (PTX ISA, "wgmma.mma_async"): operands in shared memory.

The product is computed at once, when the instruction is issued. A descriptor locates a matrix by
its start and two strides, in units of 16 bytes, and a swizzle (PTX ISA, "Matrix Descriptor
Format").
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from gpuemu_flow.emulator.matrices import canonical_bits32, unpack_elements
from gpuemu_flow.emulator.stack import Stack
from gpuemu_flow.emulator.types import WARP, WARPGROUP, Array

_ROWS = 64
_WIDTHS = (0, 128, 64, 32)
_LANES = np.arange(WARPGROUP)
_WARPS, _G, _T = _LANES // WARP, _LANES % WARP // 4, _LANES % 4
_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8}


class GroupForm(Struct, frozen=True):
    """The sizes, types and modifiers of one ``wgmma.mma_async``: D = A B, or D = A B + D."""

    n: int
    k: int
    a: str
    b: str
    d: str
    negate_a: bool = False
    negate_b: bool = False
    transpose_a: bool = False
    transpose_b: bool = False
    saturate: bool = False

    @property
    def registers(self) -> int:
        """Return the number of registers in which each lane holds elements of D."""
        return self.n // (4 if self.d == "f16" else 2)


def element_offsets(outer: Array, k: Array, size: int, descriptor: Array, *, by_k: bool) -> Array:
    """Compute the offsets of a matrix's elements in shared memory from its descriptor."""

    def field(at: int) -> Array:
        bits = descriptor >> np.uint64(at) & np.uint64(0x3FFF)
        return bits.astype(np.int64) << 4

    start, leading, stride = field(0), field(16), field(32)
    mode = (descriptor >> np.uint64(62)).astype(np.int64)
    width = np.array(_WIDTHS)[mode]
    unit = 16 // size
    if by_k:
        plain = outer % 8 * 16 + outer // 8 * stride + k % unit * size + k // unit * leading
        swizzled = outer % 8 * width + outer // 8 * stride + k * size
    else:
        plain = outer % unit * size + outer // unit * stride + k % 8 * 16 + k // 8 * leading
        row = np.maximum(width // size, 1)
        swizzled = outer % row * size + outer // row * leading + k % 8 * width + k // 8 * stride
    address = start + np.where(mode == 0, plain, swizzled)
    pattern = np.array([0, 7, 3, 1])[mode]
    return np.asarray(address ^ ((address >> 7 & pattern) << 4))


class WarpGroups(Stack):
    """The executor of the ``wgmma`` instructions of one batch of blocks."""

    def _by_group(self, x: Array) -> Array:
        return np.ascontiguousarray(self.spread(x)).reshape(self.count, -1, WARPGROUP)

    def _described(
        self, descriptor: Array, outer: int, form: GroupForm, kind: str, by_k: bool,
        mask: Array | None, step: int,
    ) -> Array:  # fmt: skip
        """Load the matrix that a descriptor locates, in the shape (blocks, groups, outer, k).

        `outer` is the number of rows of A, or of columns of B. `kind` is the type of the elements.
        See `element_offsets` for `by_k`.
        """
        size = _BITS[kind] // 8
        first = self._by_group(descriptor)[:, :, :1]
        parts = []
        for start in range(0, outer * form.k, WARPGROUP):
            number = np.minimum(start + _LANES, outer * form.k - 1)
            where = element_offsets(
                number // form.k, number % form.k, size, first, by_k=by_k
            ).reshape(self.full.shape)
            loaded = self.load_shared(where.astype(np.uint64), size, 1, mask, step, False)[0]
            parts.append(self._by_group(loaded))
        raw = np.concatenate(parts, axis=2)[:, :, : outer * form.k].astype(np.uint32)
        values = unpack_elements(raw, kind)[..., 0]
        return values.reshape(*raw.shape[:2], outer, form.k)

    def _from_registers(self, registers: Sequence[Array], form: GroupForm) -> Array:
        """Build the matrix A from the registers of the warps.

        The registers of each warp hold a fragment of A, in the layout of ``mma``.
        """
        pieces = [unpack_elements(self._by_group(r), form.a) for r in registers]
        each = pieces[0].shape[-1]
        out = np.zeros((*pieces[0].shape[:2], _ROWS, form.k), pieces[0].dtype)
        for r, piece in enumerate(pieces):
            rows = (16 * _WARPS + _G + 8 * (r % 2))[:, None]
            out[..., rows, (_T * each)[:, None] + np.arange(each) + 4 * each * (r // 2)] = piece
        return out

    def group_multiply(
        self, form: GroupForm, a: Array | Sequence[Array], b: Array, d: Sequence[Array],
        accumulate: Array, mask: Array | None, step: int,
    ) -> list[Array]:  # fmt: skip
        """Compute ``wgmma.mma_async``; return the registers of D as bits."""
        self.check_members(np.full((1, 1), 0xFFFFFFFF, np.uint32), mask, step)
        if self.width % WARPGROUP:
            active = self.spread(self.live if mask is None else mask)
            self.report_mask(
                "sync", "no-warp-group", active, step,
                f"needs warp groups of {WARPGROUP} threads; the block has {self.launch.threads}",
            )  # fmt: skip
            return list(d)
        if isinstance(a, np.ndarray):
            left = self._described(a, _ROWS, form, form.a, not form.transpose_a, mask, step)
        else:
            left = self._from_registers(a, form)
        right = self._described(b, form.n, form, form.b, not form.transpose_b, mask, step)
        product = np.matmul(left, right.swapaxes(-1, -2))
        if form.negate_a != form.negate_b:
            product = -product
        keep = self._by_group(accumulate)
        values = []
        for number in range(_ROWS * form.n // WARPGROUP):
            rows = 16 * _WARPS + _G + 8 * (number % 4 // 2)
            columns = 8 * (number // 4) + 2 * _T + number % 2
            old = self._accumulated(d, number, form)
            values.append(product[..., rows, columns] + np.where(keep, old, old.dtype.type(0)))
        return [r.reshape(self.full.shape) for r in _as_registers(values, form)]

    def _accumulated(self, d: Sequence[Array], number: int, form: GroupForm) -> Array:
        if form.d == "f16":
            pair = unpack_elements(self._by_group(d[number // 2]), "f16")
            return np.asarray(pair[..., number % 2])
        code, wide = ("f4", np.float64) if form.d == "f32" else ("i4", np.int64)
        return self._by_group(d[number]).view(code).astype(wide)


def _as_registers(values: list[Array], form: GroupForm) -> list[Array]:
    if form.d == "s32":
        if form.saturate:
            values = [np.clip(v, -(2**31), 2**31 - 1) for v in values]
        return [v.astype(np.int64).astype(np.uint32) for v in values]
    if form.d == "f32":
        return [canonical_bits32(v.astype(np.float32)) for v in values]
    halves = [v.astype(np.float16).view(np.uint16).astype(np.uint32) for v in values]
    pairs = zip(halves[::2], halves[1::2], strict=True)
    return [low | high << np.uint32(16) for low, high in pairs]
