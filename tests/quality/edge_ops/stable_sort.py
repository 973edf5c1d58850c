"""A stable sort of rows of small integers, with the places that the keys came from."""

import numpy as np

LOWEST, HIGHEST = -3, 12


def _taken(keys, places):
    places = np.ascontiguousarray(places).astype(np.int64)
    return np.take_along_axis(keys, places, 1), places


def right_combined(keys, descending):
    """The place is the last digit of the key."""
    count = keys.shape[1]
    signed = -keys.astype(np.int64) if descending else keys.astype(np.int64)
    return _taken(keys, np.sort(signed * count + np.arange(count), axis=1) % count)


def right_counted(keys, descending):
    """A counting sort: each key knows how many come before it."""
    places = np.zeros(keys.shape, np.int64)
    for b, row in enumerate(keys.tolist()):
        digits = [HIGHEST - k if descending else k - LOWEST for k in row]
        nexts = np.concatenate([[0], np.cumsum(np.bincount(digits, minlength=HIGHEST + 4))])
        for place, digit in enumerate(digits):
            places[b, nexts[digit]] = place
            nexts[digit] += 1
    return _taken(keys, places)


def right_python(keys, descending):
    rows = []
    for row in keys.tolist():
        rows.append(sorted(range(len(row)), key=row.__getitem__, reverse=descending))
    return _taken(keys, np.array(rows))


def bug_reversed_ties(keys, descending):
    places = np.argsort(keys, axis=1, kind="stable")
    return _taken(keys, places[:, ::-1] if descending else places)


def bug_unstable(keys, descending):
    places = np.empty(keys.shape, np.int64)
    for b, row in enumerate(keys):
        order = list(range(row.size))
        for end in range(row.size - 1, 0, -1):  # a selection sort moves equal keys past each other
            largest = max(range(end + 1), key=lambda i: row[order[i]])
            order[largest], order[end] = order[end], order[largest]
        places[b] = order
    if descending:
        return right_python(keys, True)
    return _taken(keys, places)


def bug_last_place_left(keys, descending):
    values, places = right_python(keys[:, :-1], descending)
    last = np.full((len(keys), 1), keys.shape[1] - 1)
    return np.concatenate([values, keys[:, -1:]], 1), np.concatenate([places, last], 1)


def bug_by_bits(keys, descending):
    bits = keys.view(np.uint32).astype(np.int64)
    return _taken(keys, np.argsort(-bits if descending else bits, axis=1, kind="stable"))


def bug_highest_key_as_the_one_below(keys, descending):
    low = np.minimum(keys, HIGHEST - 1)
    return _taken(keys, np.argsort(-low if descending else low, axis=1, kind="stable"))


def bug_ranks(keys, descending):
    values, places = right_python(keys, descending)
    return values, np.argsort(places, axis=1)


def bug_narrow_places(keys, descending):
    values, places = right_python(keys, descending)
    return values, places.astype(np.int32)


def bug_halves_merged_from_the_right(keys, descending):
    half = (keys.shape[1] + 1) // 2
    order = np.concatenate([np.arange(half, keys.shape[1]), np.arange(half)])
    signed = -keys if descending else keys
    return _taken(keys, order[np.argsort(signed[:, order], axis=1, kind="stable")])
