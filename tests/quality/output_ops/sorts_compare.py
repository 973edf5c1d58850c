"""Holds an order against what it is for: the elements ascend, and each occurs."""

import numpy as np


def sorts(actual, expected, inputs, tolerance):
    if not np.array_equal(np.sort(actual), np.arange(len(expected))):
        return ["these are not all the places, each once"]
    down = np.flatnonzero(np.diff(inputs["x"][actual]) < 0)
    return [{"message": "the elements descend here", "index": [int(i) + 1]} for i in down]
