"""Suppression of boxes that overlap a better one by more than half."""

import numpy as np

BLOCK = 16


def _overlaps(corner, size):
    high = corner + size
    sides = np.minimum(high[:, None], high) - np.maximum(corner[:, None], corner)
    shared = np.maximum(sides, 0).prod(axis=2)
    area = size.prod(axis=1)
    return shared > np.float32(0.5) * (area[:, None] + area - shared)


def _in_turn(over, order, *, by_kept=True, last=None, block=0):
    kept = np.ones(len(order), bool)
    for rank, i in enumerate(order):
        for before, j in enumerate(order[:rank]):
            if block and before // block != rank // block:
                continue
            if over[i, j] and (kept[j] or not by_kept):
                kept[i] = False
    if last is not None:
        kept[order[last]] = True
    return kept


def right_in_turn(corner, size, score):
    return _in_turn(_overlaps(corner, size), np.argsort(-score))


def right_remaining(corner, size, score):
    left = np.argsort(score).tolist()
    kept = np.zeros(len(score), bool)
    while left:
        best = left.pop()
        kept[best] = True
        if left:
            ends = corner[left] + size[left]
            sides = np.minimum(ends, corner[best] + size[best])
            sides = np.maximum(sides - np.maximum(corner[left], corner[best]), 0)
            shared = sides[:, 0] * sides[:, 1]
            share = shared / (size[left].prod(axis=1) + size[best].prod() - shared)
            left = [i for i, s in zip(left, share, strict=True) if not s > 0.5]
    return kept


def right_until_nothing_changes(corner, size, score):
    better = score[:, None] < score
    over = _overlaps(corner, size) & better
    kept = np.ones(len(score), bool)
    for _ in range(len(score)):
        kept = ~(over & kept).any(axis=1)
    return kept


def bug_suppressed_ones_suppress(corner, size, score):
    return _in_turn(_overlaps(corner, size), np.argsort(-score), by_kept=False)


def bug_worst_box_stays(corner, size, score):
    return _in_turn(_overlaps(corner, size), np.argsort(-score), last=-1)


def bug_blocks_apart(corner, size, score):
    return _in_turn(_overlaps(corner, size), np.argsort(-score), block=BLOCK)


def bug_in_order_of_scores(corner, size, score):
    order = np.argsort(-score)
    return _in_turn(_overlaps(corner, size), order)[order]


def bug_ascending_scores(corner, size, score):
    return _in_turn(_overlaps(corner, size), np.argsort(score))


def bug_of_the_smaller_area(corner, size, score):
    high = corner + size
    sides = np.minimum(high[:, None], high) - np.maximum(corner[:, None], corner)
    shared = np.maximum(sides, 0).prod(axis=2)
    area = size.prod(axis=1)
    over = shared > np.float32(0.5) * np.minimum(area[:, None], area)
    return _in_turn(over, np.argsort(-score))


def bug_sides_not_clamped(corner, size, score):
    high = corner + size
    sides = np.minimum(high[:, None], high) - np.maximum(corner[:, None], corner)
    shared = sides.prod(axis=2)
    area = size.prod(axis=1)
    over = shared > np.float32(0.5) * (area[:, None] + area - shared)
    return _in_turn(over, np.argsort(-score))


def bug_half_is_too_much(corner, size, score):
    high = corner + size
    sides = np.minimum(high[:, None], high) - np.maximum(corner[:, None], corner)
    shared = np.maximum(sides, 0).prod(axis=2)
    area = size.prod(axis=1)
    over = shared >= np.float32(0.5) * (area[:, None] + area - shared)
    return _in_turn(over, np.argsort(-score))
