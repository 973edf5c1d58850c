"""Jump ahead: compute words and states far down a stream, with tables over GF(2).

A step of `rng.next_word` uses only shifts and exclusive-ors, so it is linear over GF(2). A state is
the exclusive-or of states with a single bit set. The words that follow it are therefore the
exclusive-or of the words that follow those states. Hence tables made once, from the 128 states with
one bit set, give the words that follow any state.
See Haramoto et al., "Efficient jump ahead for F2-linear random number generators", 2008.

A *state* is a pair of words (older, newer); bit ``j`` of a state is bit ``j`` of the older word for
``j < 64``, else bit ``j - 64`` of the newer one.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.numerics.rng_words import State, next_word

Words = NDArray[np.uint64]

STATE_BITS = 128
NIBBLES = STATE_BITS // 4
SCALAR_LIMIT = 24  # up to it, stepping in Python beats the fixed cost of a look-up
PREFIX = 1024  # words that one look-up yields
GROUP_LANES = 500  # lanes placed by one look-up
PRODUCT_COLUMNS = 256  # computed at a time, so that the tables stay in the cache

SHIFT_23, SHIFT_17, SHIFT_26 = (np.array(s, dtype=np.uint64) for s in (23, 17, 26))


def nibble_table(rows: Words) -> Words:
    """Return, for each nibble of a state, the exclusive-or of every subset of its four rows.

    Entry ``[n, v]`` combines the rows of those bits of nibble ``n`` that are set in the value
    ``v``. Looking up four bits at a time is the method of the Four Russians.
    """
    width = rows.shape[1]
    by_nibble = rows.reshape(NIBBLES, 4, width)
    table = np.empty((NIBBLES, 16, width), dtype=np.uint64)
    table[:, 0] = 0
    for bit in range(4):
        low, high = 1 << bit, 2 << bit
        np.bitwise_xor(table[:, :low], by_nibble[:, bit : bit + 1], out=table[:, low:high])
    return table


def gf2_product(selectors: Words, rows: Words) -> Words:
    """Return, for each selector, the exclusive-or of the `rows` that its set bits select."""
    words, shifts = np.divmod(4 * np.arange(NIBBLES), 64)
    chosen = (selectors[:, words] >> shifts.astype(np.uint64)) & np.uint64(15)
    chosen_of_nibble = chosen.T.astype(np.intp)
    product = np.zeros((len(selectors), rows.shape[1]), dtype=np.uint64)
    for first in range(0, rows.shape[1], PRODUCT_COLUMNS):
        columns = product[:, first : first + PRODUCT_COLUMNS]
        table = nibble_table(rows[:, first : first + PRODUCT_COLUMNS])
        chosen_rows = np.empty(columns.shape, dtype=np.uint64)
        for combinations, chosen_values in zip(table, chosen_of_nibble, strict=True):
            # mode="clip" spares numpy a buffered copy; four bits are never out of range.
            combinations.take(chosen_values, axis=0, out=chosen_rows, mode="clip")
            np.bitwise_xor(columns, chosen_rows, columns)
    return product


def basis_states() -> Words:
    """Return the 128 states of the generator in which only one bit is set, shape (128, 2)."""
    basis = np.zeros((STATE_BITS, 2), dtype=np.uint64)
    powers = np.uint64(1) << np.arange(64, dtype=np.uint64)
    basis[:64, 0] = powers
    basis[64:, 1] = powers
    return basis


def basis_words(count: int) -> Words:
    """Return the states with only one bit set, and the `count` words that follow each of them."""
    words = np.empty((count + 2, STATE_BITS), dtype=np.uint64)
    words[:2] = basis_states().T
    step_through(words)
    return words


def step_through(words: Words) -> None:
    """Compute the words of several streams, one stream per column, in place.

    The first two rows of `words` are the streams' states; the following rows are filled. Two rows
    are computed at a time, because only the last term of a word depends on the word before it.
    """
    steps = len(words) - 2
    spares = np.empty_like(words[:2])
    spare = spares[0]
    for k in range(0, steps - 1, 2):
        two, newest = words[k : k + 2], words[k + 2 : k + 4]
        np.left_shift(two, SHIFT_23, newest)
        np.bitwise_xor(newest, two, newest)
        np.right_shift(newest, SHIFT_17, spares)
        np.bitwise_xor(newest, spares, newest)
        first, second = newest
        np.right_shift(two[1], SHIFT_26, spare)
        np.bitwise_xor(first, spare, first)
        np.right_shift(first, SHIFT_26, spare)
        np.bitwise_xor(second, spare, second)
    if steps % 2:
        older, newer, newest = words[-3:]
        np.left_shift(older, SHIFT_23, newest)
        np.bitwise_xor(newest, older, newest)
        np.right_shift(newest, SHIFT_17, spare)
        np.bitwise_xor(newest, spare, newest)
        np.right_shift(newer, SHIFT_26, spare)
        np.bitwise_xor(newest, spare, newest)


def look_up(table: Words, state: State, columns: int) -> Words:
    """Combine, by exclusive-or, the rows that the set bits of a state select."""
    older, newer = state
    both = older | (newer << 64)
    rows = [16 * nibble + ((both >> (4 * nibble)) & 15) for nibble in range(NIBBLES)]
    row: Words = np.bitwise_xor.reduce(table[rows, :columns], axis=0)
    return row


@functools.cache
def prefix_table() -> Words:
    """Return the table for `look_up` that yields a state and the `PREFIX` words that follow it."""
    return nibble_table(basis_words(PREFIX).T).reshape(NIBBLES * 16, PREFIX + 2)


def words_after(state: State, count: int) -> Words:
    """Return the state and the `count` words after it, shape (count + 2,); count <= PREFIX."""
    if count > SCALAR_LIMIT:
        return look_up(prefix_table(), state, count + 2)
    words = list(state)
    for _ in range(count):
        words.append(next_word(words[-2], words[-1]))
    return np.array(words, dtype=np.uint64)


@functools.cache
def lane_table(stride: int) -> Words:
    """Return the table in which `look_up` finds states after 0, stride, 2 * stride ... steps."""
    starts = np.empty((STATE_BITS, GROUP_LANES + 1, 2), dtype=np.uint64)
    starts[:, 0] = basis_states()
    starts[:, 1] = basis_words(stride)[stride:].T
    known = 1
    while known < GROUP_LANES:
        # The states at the start of a lane are also the matrix that advances any state that far.
        more = min(known, GROUP_LANES - known)
        jump, lanes = starts[:, known], starts[:, 1 : more + 1]
        ahead = gf2_product(jump, lanes.reshape(STATE_BITS, 2 * more))
        starts[:, known + 1 : known + more + 1] = ahead.reshape(lanes.shape)
        known += more
    return nibble_table(starts.reshape(STATE_BITS, -1)).reshape(NIBBLES * 16, -1)


def place_lanes(stride: int, state: State, out: Words) -> None:
    """Write into each column of `out` a state that follows `state` in the stream.

    Column ``l`` gets the state after ``l * stride`` steps. `out` has shape (2, number of lanes).
    """
    table = lane_table(stride)
    lanes = out.shape[1]
    for first in range(0, lanes, GROUP_LANES):
        width = min(GROUP_LANES, lanes - first)
        starts = look_up(table, state, 2 * (width + 1)).reshape(width + 1, 2)
        out[:, first : first + width] = starts[:width].T
        state = int(starts[width, 0]), int(starts[width, 1])
