"""Matrix operations of warps: ldmatrix, stmatrix and mma.

The lanes of a warp hold the matrices of ``mma`` in registers, in the layout of the PTX ISA ("Matrix
Fragments for mma"). For a matrix A of 16 rows, let

- ``g`` be the number of the lane divided by 4, and ``t`` the remainder,
- ``r`` be the number of the register among those that the lane holds of A,
- ``e`` be the number of elements in a register,
- ``j`` be the number of an element in its register.

The element is in row ``g + 8 * (r % 2)`` and column ``4e * (r // 2) + t * e + j``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from gpuemu_flow.emulator.bulk import TensorCopies
from gpuemu_flow.emulator.semantics.convert import bfloat_to_f32, unpack_fp8
from gpuemu_flow.emulator.types import WARP, Array

_LANES = np.arange(WARP)
_G, _T = _LANES // 4, _LANES % 4

ELEMENT_BITS: dict[str, int] = {
    "f16": 16, "bf16": 16, "tf32": 32, "f64": 64, "s8": 8, "u8": 8, "s4": 4, "u4": 4, "b1": 1,
    "e4m3": 8, "e5m2": 8,
}  # fmt: skip


class MatrixForm(Struct, frozen=True):
    """One ``mma``: shape and types."""

    m: int
    n: int
    k: int
    a: str
    b: str
    c: str
    d: str
    saturate: bool = False
    bit_operation: str = ""

    def registers(self, operand: str) -> int:
        """Return how many registers a fragment of operand ``a``, ``b``, ``c`` or ``d`` takes."""
        if operand in "ab":
            bits = ELEMENT_BITS[self.a]
            per_lane = (self.m if operand == "a" else self.n) * self.k // WARP
            return max(1, per_lane * bits // (64 if bits == 64 else 32))
        kind = self.c if operand == "c" else self.d
        return self.m * self.n // WARP // (2 if kind == "f16" else 1)


def unpack_elements(word: Array, kind: str) -> Array:
    """Unpack the elements in registers, from the shape (…, lanes) to (…, lanes, elements)."""
    if kind == "f64":
        return word.view(np.float64)[..., None]
    if kind == "tf32":
        return (word & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)[..., None]
    bits = ELEMENT_BITS[kind]
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    raw = (word[..., None] >> shifts) & np.uint32((1 << bits) - 1)
    if kind == "f16":
        return raw.astype(np.uint16).view(np.float16).astype(np.float64)
    if kind == "bf16":
        return bfloat_to_f32(raw.astype(np.uint16)).astype(np.float64)
    if kind in ("e4m3", "e5m2"):
        return unpack_fp8(raw.astype(np.uint8), kind).astype(np.float64)
    values = raw.astype(np.int64)
    if kind[0] == "s":
        half = 1 << (bits - 1)
        values = (values ^ half) - half
    return values


def gather_a(registers: Sequence[Array], form: MatrixForm) -> Array:
    first = unpack_elements(registers[0], form.a)
    e = first.shape[-1]
    out = np.zeros((*registers[0].shape[:-1], form.m, form.k), first.dtype)
    halves = form.m // 8
    for r, register in enumerate(registers):
        rows = _G[:, None] + 8 * (r % halves)
        columns = (_T * e)[:, None] + np.arange(e) + 4 * e * (r // halves)
        out[..., rows, columns] = unpack_elements(register, form.a)
    return out


def gather_b(registers: Sequence[Array], form: MatrixForm) -> Array:
    first = unpack_elements(registers[0], form.b)
    e = first.shape[-1]
    out = np.zeros((*registers[0].shape[:-1], form.k, form.n), first.dtype)
    for r, register in enumerate(registers):
        rows = (_T * e)[:, None] + np.arange(e) + 4 * e * r
        out[..., rows, _G[:, None]] = unpack_elements(register, form.b)
    return out


def _accumulator_places(form: MatrixForm) -> list[tuple[Array, Array]]:
    """Return the rows and columns of the accumulator elements that the lanes of a warp hold. Every
    lane holds the same number of elements. Item i of the list is a pair of arrays with one entry
    per lane: the row and the column of the lane's element number i."""
    return [(_G + 8 * (i // 2), 2 * _T + i % 2) for i in range(form.m * form.n // WARP)]


def gather_c(registers: Sequence[Array], form: MatrixForm) -> Array:
    dtype = np.int64 if form.c == "s32" else np.float64
    out = np.zeros((*registers[0].shape[:-1], form.m, form.n), dtype)
    values: list[Array] = []
    for register in registers:
        if form.c == "f16":
            pair = unpack_elements(register, "f16")
            values += [pair[..., 0], pair[..., 1]]
        else:
            values.append(register.view({"f32": "f4", "f64": "f8", "s32": "i4"}[form.c]))
    for value, (rows, columns) in zip(values, _accumulator_places(form), strict=True):
        out[..., rows, columns] = value
    return out


def scatter_d(matrix: Array, form: MatrixForm) -> list[Array]:
    values = [matrix[..., rows, columns] for rows, columns in _accumulator_places(form)]
    if form.d == "s32":
        if form.saturate:
            values = [np.clip(v, -(2**31), 2**31 - 1) for v in values]
        return [v.astype(np.int32).view(np.uint32) for v in values]
    if form.d == "f64":
        return [v.view(np.uint64) for v in values]
    if form.d == "f32":
        return [canonical_bits32(v.astype(np.float32)) for v in values]
    halves = [v.astype(np.float16).view(np.uint16).astype(np.uint32) for v in values]
    return [
        low | high << np.uint32(16) for low, high in zip(halves[::2], halves[1::2], strict=True)
    ]


def canonical_bits32(x: Array) -> Array:
    """Return the bits of float32 values; NaNs get the one bit pattern that the ISA defines."""
    return np.where(np.isnan(x), np.uint32(0x7FFFFFFF), x.view(np.uint32))


def multiply(a: Array, b: Array, c: Array, form: MatrixForm) -> Array:
    """Compute the matrix D = ``a @ b + c`` in float64 or int64, without rounding it to D's type. If
    the form's bit operation is ``xor``, the product of two bits is their exclusive or."""
    if form.bit_operation == "xor":
        ones = a.sum(axis=-1)[..., :, None] + b.sum(axis=-2)[..., None, :]
        return ones - 2 * np.matmul(a, b) + c
    return np.matmul(a, b) + c


class Matrices(TensorCopies):
    """Executes the matrix operations of one batch of blocks."""

    def matrix_multiply(
        self,
        form: MatrixForm,
        a: Sequence[Array],
        b: Sequence[Array],
        c: Sequence[Array],
        mask: Array | None,
        step: int,
    ) -> list[Array]:
        self.check_members(np.full((1, 1), 0xFFFFFFFF, np.uint32), mask, step)
        left = gather_a([self.by_warp(x) for x in a], form)
        right = gather_b([self.by_warp(x) for x in b], form)
        third = gather_c([np.ascontiguousarray(self.by_warp(x)) for x in c], form)
        return [
            np.ascontiguousarray(r).reshape(self.full.shape)
            for r in scatter_d(multiply(left, right, third, form), form)
        ]

    def _rows(self, address: Array, number: int) -> Array:
        """Return the row addresses of one 8x8 matrix, in the shape (blocks, warps, 8)."""
        return self.by_warp(address)[:, :, 8 * number : 8 * number + 8]

    def load_matrices(
        self,
        space: str,
        address: Array,
        count: int,
        transposed: bool,
        mask: Array | None,
        step: int,
    ) -> list[Array]:
        """Execute ``ldmatrix`` for 8x8 matrices of 16-bit elements; return a register for each."""
        load = getattr(self, f"load_{space}")
        found = []
        shape = self.full.shape
        for k in range(count):
            rows = self._rows(address, k)
            if not transposed:
                where = rows[:, :, _G] + (4 * _T).astype(np.uint64)
                found.append(load(where.reshape(shape), 4, 1, mask, step, False)[0])
                continue
            parts = []
            for half in (0, 1):
                where = rows[:, :, 2 * _T + half] + (2 * _G).astype(np.uint64)
                part = load(where.reshape(shape), 2, 1, mask, step, False)[0]
                parts.append(part.astype(np.uint32))
            found.append(parts[0] | parts[1] << np.uint32(16))
        return found

    def store_matrices(
        self,
        space: str,
        address: Array,
        values: Sequence[Array],
        transposed: bool,
        mask: Array | None,
        step: int,
    ) -> None:
        store = getattr(self, f"store_{space}")
        shape = self.full.shape
        for k, value in enumerate(values):
            rows = self._rows(address, k)
            if not transposed:
                where = rows[:, :, _G] + (4 * _T).astype(np.uint64)
                store(where.reshape(shape), (value,), 4, mask, step, False)
                continue
            for half in (0, 1):
                where = rows[:, :, 2 * _T + half] + (2 * _G).astype(np.uint64)
                part = (value >> np.uint32(16 * half)).astype(np.uint16)
                store(where.reshape(shape), (part,), 2, mask, step, False)


# Products with a sparse A (PTX ISA, "mma.sp"): stored elements, and metadata about their
# columns.


SPARSE_SHAPES: dict[str, frozenset[tuple[int, int, int]]] = {
    "f16": frozenset({(16, 8, 16), (16, 8, 32)}),
    "bf16": frozenset({(16, 8, 16), (16, 8, 32)}),
    "tf32": frozenset({(16, 8, 8), (16, 8, 16)}),
    "8": frozenset({(16, 8, 32), (16, 8, 64)}),
    "4": frozenset({(16, 8, 64), (16, 8, 128)}),
    "fp8": frozenset({(16, 8, 64)}),
}
"""Shapes by family of types, with all columns of A counted."""

_ROWS = 16
_TF32_PLACES = {0b0100: 0, 0b1110: 1}


class SparseForm(Struct, frozen=True):
    """The form of one ``mma.sp``: shape, types and selector."""

    whole: MatrixForm
    selector: int
    ordered: bool

    @property
    def stored(self) -> MatrixForm:
        """Return the form of a dense product whose A has only as many columns as are stored."""
        w = self.whole
        return MatrixForm(w.m, w.n, w.k // 2, w.a, w.b, w.c, w.d)

    @property
    def wide(self) -> bool:
        """Tell whether a lane's metadata is about one row (32 bits), not two (16 bits each)."""
        return ELEMENT_BITS[self.whole.a] <= 8

    @property
    def chunks(self) -> int:
        """Return the number of words (of 32 or 16 bits; see `wide`) with the metadata of a row."""
        index = 4 if self.whole.a == "tf32" else 2
        elements = self.whole.k // 2 // (2 if ELEMENT_BITS[self.whole.a] == 4 else 1)
        return elements * index // (32 if self.wide else 16)

    @property
    def selectors(self) -> int:
        """Return the number of valid values of the selector."""
        return 4 // (self.chunks * (2 if self.wide else 1))


def _row_words(metadata: Array, form: SparseForm) -> Array:
    """Collect, for each row of the sparse matrix A, the words with the row's metadata. In
    `metadata`, the words are ordered by the lanes that hold them. The result has the shape (…, 16,
    chunks), for 16 rows; see `SparseForm.chunks`."""
    row = np.arange(_ROWS)[:, None]
    chunk = np.arange(form.chunks)[None, :]
    place = form.selector * form.chunks + chunk
    if form.wide:
        found: Array = metadata[..., 4 * (row % 8) + 2 * place + row // 8]
        return found
    words = metadata[..., 4 * (row % 8) + place]
    return words >> (16 * (row // 8)).astype(np.uint32) & np.uint32(0xFFFF)


def _indices(metadata: Array, form: SparseForm) -> Array:
    """Return the position of each stored element, or pair of elements, within its group. The shape
    of the result is (…, 16, stored elements or pairs)."""
    bits = 4 if form.whole.a == "tf32" else 2
    words = _row_words(metadata, form)
    shifts = np.arange(0, 32 if form.wide else 16, bits, dtype=np.uint32)
    fields = words[..., None] >> shifts & np.uint32((1 << bits) - 1)
    return fields.reshape(*fields.shape[:-2], -1).astype(np.int64)


def columns_of(metadata: Array, form: SparseForm) -> tuple[Array, Array]:
    """Find the column of A that each stored element belongs to."""
    index = _indices(metadata, form)
    if form.whole.a == "tf32":
        known = np.isin(index, list(_TF32_PLACES))
        columns = 2 * np.arange(index.shape[-1]) + (index == 0b1110)
        return columns, np.asarray(~known.all(axis=(-1, -2)))
    pairs = index.reshape(*index.shape[:-1], -1, 2)
    first, second = pairs[..., 0], pairs[..., 1]
    wrong = first >= second if form.ordered else first == second
    columns = index + 4 * (np.arange(index.shape[-1]) // 2)
    if ELEMENT_BITS[form.whole.a] == 4:
        columns = (2 * columns[..., None] + np.arange(2)).reshape(*columns.shape[:-1], -1)
    return columns, np.asarray(wrong.any(axis=(-1, -2)))


def spread_out(stored: Array, columns: Array, width: int) -> Array:
    """Put the stored elements (…, 16, n) of A in their columns (…, 16, width)."""
    out = np.zeros((*stored.shape[:-1], width), stored.dtype)
    np.put_along_axis(out, np.broadcast_to(columns, stored.shape), stored, axis=-1)
    return out


class SparseMatrices(Matrices):
    """Executes the ``mma.sp`` instructions of one batch of blocks."""

    def sparse_multiply(
        self, form: SparseForm, a: Sequence[Array], b: Sequence[Array], c: Sequence[Array],
        metadata: Array, mask: Array | None, step: int,
    ) -> list[Array]:  # fmt: skip
        self.check_members(np.full((1, 1), 0xFFFFFFFF, np.uint32), mask, step)
        columns, wrong = columns_of(self.by_warp(metadata), form)
        if wrong.any():
            active = self.spread(self.live if mask is None else mask)
            self.report_mask(
                "sync", "sparse-metadata", active & np.repeat(wrong, WARP, axis=1), step,
                "has metadata that the ISA gives no meaning: an index twice, out of order, or "
                "unknown",
            )  # fmt: skip
        stored = gather_a([self.by_warp(x) for x in a], form.stored)
        left = spread_out(stored, columns, form.whole.k)
        right = gather_b([self.by_warp(x) for x in b], form.whole)
        third = gather_c([np.ascontiguousarray(self.by_warp(x)) for x in c], form.whole)
        return [
            np.ascontiguousarray(r).reshape(self.full.shape)
            for r in scatter_d(multiply(left, right, third, form.whole), form.whole)
        ]
