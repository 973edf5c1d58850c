"""Fragments of ``wmma``: loaded, multiplied and stored by whole warps.

The PTX ISA leaves open which element of a matrix lies in which register of which lane. Here lanes
take consecutive elements in row-major order. The registers of a warp may have room for several
copies of a matrix, as often with f16. The upper lanes then hold the same elements as the lower
lanes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from gpuemu_flow.emulator.matrices import (
    ELEMENT_BITS,
    canonical_bits32,
    unpack_elements,
)
from gpuemu_flow.emulator.sparse import SparseMatrices
from gpuemu_flow.emulator.types import WARP, Array

WMMA_BITS: dict[str, int] = {**ELEMENT_BITS, "f32": 32, "s32": 32}


class FragmentForm(Struct, frozen=True):
    """The size, element type and registers of one fragment of ``wmma``."""

    rows: int
    columns: int
    kind: str
    registers: int

    @property
    def bits(self) -> int:
        """Return the number of bits of an element."""
        return WMMA_BITS[self.kind]

    @property
    def per_register(self) -> int:
        """Return the number of elements in a register."""
        return max(1, 32 // self.bits)

    def elements(self) -> Array:
        """Return the row-major index of each element, by (lane, register, part of the register)."""
        slots = WARP * self.registers * self.per_register
        numbers = np.arange(slots).reshape(WARP, self.registers, self.per_register)
        return numbers % (self.rows * self.columns)

    def offsets(self, stride: Array, *, by_row: bool) -> Array:
        """Return the offset of each element in memory, in elements from the start of the matrix."""
        rows, columns = np.divmod(self.elements(), self.columns)
        major, minor = (rows, columns) if by_row else (columns, rows)
        return stride[..., None, None].astype(np.int64) * major + minor


class WmmaForm(Struct, frozen=True):
    """The form of one ``wmma.mma``: ``d = a * b + c``."""

    a: FragmentForm
    b: FragmentForm
    c: FragmentForm
    d: FragmentForm
    saturate: bool = False
    bit_operation: str = ""


def gather_fragment(registers: Sequence[Array], form: FragmentForm) -> Array:
    """Build a matrix (..., rows, columns) from the registers of a fragment (..., lanes)."""
    if form.kind in ("f32", "s32"):
        code = "f4" if form.kind == "f32" else "i4"
        parts = [np.ascontiguousarray(r).view(code)[..., None] for r in registers]
    else:
        parts = [unpack_elements(np.ascontiguousarray(r), form.kind) for r in registers]
    slots = np.stack(parts, axis=-2)
    flat = slots.reshape(*slots.shape[:-3], -1)
    whole = flat[..., : form.rows * form.columns]
    shaped: Array = whole.reshape(*whole.shape[:-1], form.rows, form.columns)
    return shaped.astype(np.float64 if shaped.dtype.kind == "f" else np.int64)


def scatter_fragment(matrix: Array, form: FragmentForm, *, saturate: bool) -> list[Array]:
    """Split a matrix (..., rows, columns) into the registers of a fragment, as bits by lane."""
    flat = matrix.reshape(*matrix.shape[:-2], -1)[..., form.elements()]
    if form.kind == "s32":
        bounded = np.clip(flat, -(2**31), 2**31 - 1) if saturate else flat
        bits = bounded.astype(np.int64).astype(np.uint32)
    elif form.kind == "f64":
        bits = flat.astype(np.float64).view(np.uint64)
    elif form.kind == "f32":
        bits = canonical_bits32(flat.astype(np.float32))
    else:
        halves = flat.astype(np.float16)
        halves = np.where(np.isnan(halves), np.array(0x7FFF, "u2").view("f2"), halves)
        wide = halves.view(np.uint16).astype(np.uint32)
        bits = (wide[..., :1] | wide[..., 1:] << np.uint32(16))[..., :1]
    return [np.ascontiguousarray(bits[..., r, 0]) for r in range(form.registers)]


class WarpMatrices(SparseMatrices):
    """Executes the ``wmma`` instructions of one batch of blocks."""

    def load_fragment(
        self, space: str, form: FragmentForm, address: Array, stride: Array, by_row: bool,
        mask: Array | None, step: int,
    ) -> list[Array]:  # fmt: skip
        """Execute ``wmma.load``; return the registers as bits."""
        self.check_members(np.full((1, 1), 0xFFFFFFFF, np.uint32), mask, step)
        offsets = form.offsets(self.by_warp(stride), by_row=by_row)
        load = getattr(self, f"load_{space}")
        width = max(1, form.bits // 8) if form.bits >= 8 else 4
        found = []
        for register in range(form.registers):
            value: Array = np.zeros(self.full.shape, np.uint64 if width == 8 else np.uint32)
            for place in range(1 if form.bits < 8 else form.per_register):
                where = self._element_address(address, offsets[..., register, place], form.bits)
                part = load(where, width, 1, mask, step, False)[0]
                value = value | (
                    np.asarray(part).astype(value.dtype) << value.dtype.type(place * form.bits)
                )
            found.append(value)
        return found

    def _element_address(self, address: Array, offset: Array, bits: int) -> Array:
        moved = (offset * bits // 8).reshape(self.full.shape).astype(np.int64).view(np.uint64)
        return self.spread(address) + moved

    def store_fragment(
        self, space: str, form: FragmentForm, address: Array, values: Sequence[Array],
        stride: Array, by_row: bool, mask: Array | None, step: int,
    ) -> None:  # fmt: skip
        """Execute ``wmma.store``."""
        self.check_members(np.full((1, 1), 0xFFFFFFFF, np.uint32), mask, step)
        offsets = form.offsets(self.by_warp(stride), by_row=by_row)
        store = getattr(self, f"store_{space}")
        width = form.bits // 8
        for register, value in enumerate(values):
            for place in range(form.per_register):
                where = self._element_address(address, offsets[..., register, place], form.bits)
                part = self.spread(value) >> value.dtype.type(place * form.bits)
                store(where, (part.astype(f"u{width}"),), width, mask, step, False)

    def multiply_fragments(
        self, form: WmmaForm, a: Sequence[Array], b: Sequence[Array], c: Sequence[Array],
        mask: Array | None, step: int,
    ) -> list[Array]:  # fmt: skip
        """Compute ``wmma.mma``; return the registers of D as bits."""
        self.check_members(np.full((1, 1), 0xFFFFFFFF, np.uint32), mask, step)
        left, right, third = (
            gather_fragment([self.by_warp(x) for x in registers], part)
            for registers, part in ((a, form.a), (b, form.b), (c, form.c))
        )
        if form.bit_operation == "xor":
            ones = left.sum(axis=-1)[..., :, None] + right.sum(axis=-2)[..., None, :]
            product = ones - 2 * np.matmul(left, right)
        else:
            product = np.matmul(left, right)
        found = scatter_fragment(product + third, form.d, saturate=form.saturate)
        return [r.reshape(self.full.shape) for r in found]
