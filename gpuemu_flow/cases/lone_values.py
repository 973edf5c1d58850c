"""Lone values: rows with a single zero or a single nonzero value, often far back in the row.

An op that tells whether all or any elements of a row are nonzero may stop reading early. In rows of
random values the first elements decide the result, so the bug would not show.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuemu_flow.types import DTYPES, InputSpec
from gpuemu_flow.value_rules import ValueRule

if TYPE_CHECKING:  # plans of cases need no numpy
    from numpy.typing import NDArray

    from gpuemu_flow.numerics.rng import SeededRng

    Array = NDArray[Any]

LONE = "normal"
"""The strategy whose cases hold such rows, since it has the most cases of long rows."""
LONE_TURNS = (3, 4, 5)
"""Turns that show such rows. Those before share values."""
TILES = (128, 64, 32)


def may_hold_lone(spec: InputSpec) -> bool:
    """Tell whether a row of an input may get a lone zero or a lone nonzero value."""
    rule = spec.rule or ValueRule()
    whole = rule.kind or rule.values or rule.concerns_whole or spec.layout == "expanded"
    if whole or not spec.shape or 0 in spec.shape or spec.shape[-1] < 2:
        return False
    low = spec.low if rule.low is None else rule.low
    high = spec.high if rule.high is None else rule.high
    computed = isinstance(low, str) or isinstance(high, str)
    return computed or _other_than_zero(spec.dtype, low, high) is not None


def _other_than_zero(dtype: str, low: Any, high: Any) -> float | None:
    """Return a value of the range other than 0; None if there is none, or if 0 is out of range."""
    if (low is not None and low > 0) or (high is not None and high < 0):
        return None
    family = DTYPES[dtype].kind
    if high is None or high >= 1:
        return 1
    if family == "float" and high > 0:
        return float(high) / 2
    if family not in ("int", "float"):
        return None
    if low is None or low <= -1:
        return -1
    return float(low) / 2 if family == "float" and low < 0 else None


def put_lone(
    values: Array, dtype: str, rng: SeededRng, turn: int, low: float | None, high: float | None
) -> None:
    """Write lone zeros and lone nonzero values into rows of an input, in place.

    A lone value is a row's only zero, or its only nonzero value. The other elements of such a row
    are changed where necessary. The parameter `turn` selects one of three ways:

    - The first and the third of `LONE_TURNS` write a lone zero into one row, and a lone nonzero
      value into the next row. They choose the positions in the rows differently (see `_place`). An
      input with a single row gets only the lone zero.
    - The second of `LONE_TURNS` treats the whole tensor as one row, whose last element becomes the
      lone value. This value is nonzero if the tensor is a vector, and else 0.

    For a tensor of booleans with several rows, all three ways write every row, alternately with a
    lone false and a lone true.
    """
    other = _other_than_zero(dtype, low, high)
    if other is None or values.ndim == 0 or values.shape[-1] < 2:
        return
    rng = rng.derive("lone")
    rows = values.reshape(-1, values.shape[-1])
    if turn == LONE_TURNS[1] and (len(rows) == 1 or dtype != "bool"):
        flat = values.reshape(-1)
        _leave_one(flat, other, flat.size - 1, zero=values.ndim > 1)
        return
    chosen = range(len(rows))
    if dtype != "bool":
        first = rng.gen_range(0, len(rows))
        chosen = range(first, first + min(2, len(rows)))
    for number, row in enumerate(chosen):
        zero = number % 2 == 0
        place = _place(rows.shape[1], rng, turn + number)
        _leave_one(rows[row % len(rows)], other, place, zero=zero)


def _leave_one(row: Array, other: float, place: int, *, zero: bool) -> None:
    """Make the element at `place` the row's only zero if `zero`, else its only nonzero value."""
    if zero:
        row[row == 0] = other
        row[place] = 0
    else:
        kept = row[place] if row[place] != 0 else other
        row[...] = 0
        row[place] = kept


def _place(width: int, rng: SeededRng, number: int) -> int:
    """Return a position in a row: the start of the last tile, the last position, or a random one.

    `number` selects among the three; the last tile may be whole or partial.
    """
    kind = number % 3
    if kind == 0:
        begins = [(width - 1) // tile * tile for tile in TILES if width > tile]
        if begins:
            return begins[rng.gen_range(0, len(begins))]
    return width - 1 if kind < 2 else rng.gen_range(0, width)
