"""Rows of a table by index."""

import numpy as np


def reference(table, index):
    return np.take(table, index, axis=0)


def right_indexed(table, index):
    return table[index]


def right_loop(table, index):
    return np.stack([table[int(i)] for i in index])


def right_one_hot(table, index):
    out = np.empty((index.size, table.shape[1]), table.dtype)
    for row in range(table.shape[0]):
        out[index == row] = table[row]
    return out


def wrong_last_row_clamped(table, index):
    return table[np.minimum(index, max(table.shape[0] - 2, 0))]


def wrong_eight_bits(table, index):
    return table[index & 0xFF]


def wrong_duplicates_dropped(table, index):
    out = np.zeros((index.size, table.shape[1]), table.dtype)
    _, first = np.unique(index, return_index=True)
    out[first] = table[index[first]]
    return out


def wrong_first_row_is_padding(table, index):
    return np.where((index == 0)[:, None], table.dtype.type(0), table[index])


def wrong_sorted(table, index):
    return table[np.sort(index)]
