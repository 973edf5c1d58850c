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

from gpuemu_flow.emulator.ir import STACK, KernelProgram
from gpuemu_flow.emulator.matrices import (
    ELEMENT_BITS,
    SparseMatrices,
    canonical_bits32,
    unpack_elements,
)
from gpuemu_flow.emulator.types import WARP, WARPGROUP, Array

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


# Stack memory of a thread: alloca, stacksave, stackrestore.


def stack_region(program: KernelProgram) -> tuple[int, int]:
    """Return the offsets in local memory where a thread's stack begins and ends."""
    for region in program.local:
        if region.name == STACK:
            return region.offset, region.offset + region.size
    return 0, 0


class Stack(WarpMatrices):
    """Stack pointers of the threads of one batch, as offsets into local memory."""

    def begin(self, block_ids: Array) -> None:
        """Set up empty stacks."""
        super().begin(block_ids)
        bottom, self._stack_end = stack_region(self.launch.program)
        self.stack_pointer: Array = np.full((1, 1), bottom, np.uint64)

    def allocate_stack(self, size: Array, alignment: int, mask: Array | None, step: int) -> Array:
        """Execute ``alloca``; return the address of the new memory."""
        unit = np.uint64(alignment)
        start = (self.stack_pointer + unit - np.uint64(1)) // unit * unit
        end = start + np.minimum(size, np.uint64(1 << 40))
        over = end > np.uint64(self._stack_end)
        if over.any():
            chosen = self.spread(over) & self.spread(self.live if mask is None else mask)
            most = self._stack_end - stack_region(self.launch.program)[0]
            self.report_mask(
                "mem", "stack-overflow", chosen, step,
                f"takes more than the {most:,} bytes of stack that a thread has here",
            )  # fmt: skip
        self.restore_stack(end, mask)
        return start

    def restore_stack(self, pointer: Array, mask: Array | None) -> None:
        """Set the stack pointers of some lanes."""
        if mask is None:
            self.stack_pointer = pointer
        else:
            self.stack_pointer = np.where(mask, pointer, self.stack_pointer)


# Matrix products of warp groups (PTX ISA, "wgmma.mma_async"): operands in shared memory.


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
        See `element_offsets` for `by_k`."""
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
        """Build the matrix A from the registers of the warps. The registers of each warp hold a
        fragment of A, in the layout of ``mma``."""
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
