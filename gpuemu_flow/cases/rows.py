"""The rows of a tensor that is being drawn, and the random choices that value strategies share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.numerics.rng import SeededRng
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import Shape

Array = NDArray[Any]


def pick(rng: SeededRng, palette: Array, shape: Shape) -> Array:
    """Pick elements of `palette` (1-d), each equally likely, as an array of `shape`."""
    count = int(np.prod(shape))
    return palette[rng.ranges(count, 0, palette.size)].reshape(shape)


@dataclass(frozen=True)
class Rows:
    """The size of a tensor, seen as rows along its last axis, and the generator of its values.

    Attributes
    ----------
    rng : SeededRng
        Generator of the values; each structure below has a domain of its own.
    number : int
        Rows, at least 1.
    count : int
        Elements, at least 1.
    """

    rng: SeededRng
    number: int
    count: int

    @property
    def width(self) -> int:
        """Return the number of elements of a row."""
        return self.count // self.number

    @property
    def shape(self) -> tuple[int, int]:
        """Return the pair of the number of rows and the number of elements in a row."""
        return self.number, self.width

    def turns(self, kinds: int) -> NDArray[np.int64]:
        """Give the rows the kinds 0 to `kinds` - 1 in rotation, starting at a random kind."""
        start = self.rng.derive("turns").gen_range(0, kinds)
        return (np.arange(self.number, dtype=np.int64) + start) % kinds

    def every(self, kinds: int) -> NDArray[np.bool_]:
        """Mark one row in `kinds`; of several rows, mark at least one and leave one unmarked."""
        turns = self.turns(kinds)
        marked: NDArray[np.bool_] = turns == 0
        if not marked.any() and self.number > 1:
            marked[0] = True
        return marked

    def some_row(self) -> int:
        """Return a random row."""
        return self.rng.derive("row").gen_range(0, self.number)

    def random_columns(self) -> NDArray[np.int64]:
        """Return a random position in each row."""
        return self.rng.derive("columns").ranges(self.number, 0, self.width)

    def coin_flips(self) -> NDArray[np.bool_]:
        """Mark about half of the elements at random."""
        words = self.rng.derive("flips").u64(-(-self.count // 64))
        bits = np.unpackbits(words.astype("<u8").view(np.uint8), count=self.count)
        return bits.view(np.bool_).reshape(self.shape)

    def sparse_zeros(self) -> NDArray[np.bool_]:
        """Mark about half of the elements, but in one row of eight all except a random one.

        A row whose only unmarked element lies in its last tile shows whether that tile is read. Of
        a single row the first element is marked and the last one is not: a bias that begins with 0
        is a bias.
        """
        zeros = self.coin_flips()
        if self.number > 1:
            alone = np.flatnonzero(self.every(8))
            zeros[alone] = True
            zeros[alone, self.random_columns()[alone]] = False
        elif self.width > 1:
            zeros[0, 0], zeros[0, -1] = True, False
        return zeros

    def few_values(self, palette: Array) -> Array:
        """Draw rows that are constant, of two values, and of four values, in turn."""
        rng = self.rng.derive("palette")
        order = list(range(palette.size))
        rng.shuffle(order)
        few = palette[order[:4]]
        values = np.empty(self.shape, palette.dtype)
        turns = self.turns(3)
        if self.number > 1 and not (turns == 0).any():
            turns[0] = 0
        constant, two, four = (turns == kind for kind in range(3))
        values[constant] = pick(rng, palette, (int(constant.sum()), 1))
        values[two] = pick(rng, few[:2], values[two].shape)
        values[four] = pick(rng, few, values[four].shape)
        return values
