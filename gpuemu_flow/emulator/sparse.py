"""Products with a sparse A (PTX ISA, "mma.sp"): stored elements, and metadata about their columns.

Half of the elements of A are stored: of every four elements of a row, two are stored, each with an
index of two bits. There are two exceptions. Of every two ``tf32`` elements, one is stored, with an
index of four bits. Of every four pairs of 4-bit elements, two pairs are stored, each with an index
of two bits. The metadata of a row is held by one, two or four lanes of every four; the selector
chooses these lanes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from gpuemu_flow.emulator.matrices import (
    ELEMENT_BITS,
    Matrices,
    MatrixForm,
    gather_a,
    gather_b,
    gather_c,
    multiply,
    scatter_d,
)
from gpuemu_flow.emulator.types import WARP, Array

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
    """Collect, for each row of the sparse matrix A, the words with the row's metadata.

    In `metadata`, the words are ordered by the lanes that hold them. The result has the shape
    (…, 16, chunks), for 16 rows; see `SparseForm.chunks`.
    """
    row = np.arange(_ROWS)[:, None]
    chunk = np.arange(form.chunks)[None, :]
    place = form.selector * form.chunks + chunk
    if form.wide:
        found: Array = metadata[..., 4 * (row % 8) + 2 * place + row // 8]
        return found
    words = metadata[..., 4 * (row % 8) + place]
    return words >> (16 * (row // 8)).astype(np.uint32) & np.uint32(0xFFFF)


def _indices(metadata: Array, form: SparseForm) -> Array:
    """Return the position of each stored element, or pair of elements, within its group.

    The shape of the result is (…, 16, stored elements or pairs).
    """
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
        """Compute ``mma.sp``; return the registers of D as bits."""
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
