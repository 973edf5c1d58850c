"""Rows added to the slots of a cache in place; a slot occurs often or never, and -1 is none."""

import numpy as np

BLOCK = 16


def right_unbuffered(cache, slot, rows):
    kept = slot >= 0
    np.add.at(cache, slot[kept], rows[kept])


def right_loop(cache, slot, rows):
    for place, row in zip(slot.tolist(), rows, strict=True):
        if place != -1:
            cache[place] += row


def right_one_hot(cache, slot, rows):
    hot = slot == np.arange(len(cache))[:, None]
    cache[...] = (cache + hot.astype("f8") @ rows.astype("f8")).astype(cache.dtype)
    return cache


def bug_none_is_the_last(cache, slot, rows):
    np.add.at(cache, slot, rows)


def bug_slot_once_in_a_block(cache, slot, rows):
    for start in range(0, len(slot), BLOCK):
        part = slice(start, start + BLOCK)
        kept = slot[part] >= 0
        cache[slot[part][kept]] += rows[part][kept]


def bug_slot_zero_is_none(cache, slot, rows):
    np.add.at(cache, slot[slot > 0], rows[slot > 0])


def bug_none_ends_it(cache, slot, rows):
    for place, row in zip(slot.tolist(), rows, strict=True):
        if place == -1:
            break
        cache[place] += row


def bug_replaced(cache, slot, rows):
    cache[slot[slot >= 0]] = rows[slot >= 0]


def bug_result_only_returned(cache, slot, rows):
    out = cache.copy()
    np.add.at(out, slot[slot >= 0], rows[slot >= 0])


def bug_rows_are_cleared(cache, slot, rows):
    right_unbuffered(cache, slot, rows)
    rows[slot < 0] = 0


def bug_none_is_the_first(cache, slot, rows):
    np.add.at(cache, np.maximum(slot, 0), rows)
