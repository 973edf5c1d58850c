"""The reference: all rows of a list of tensors, plus a bias where there is one."""

import numpy as np


def reference(xs, bias):
    rows = np.concatenate(xs)
    return rows if bias is None else rows + bias
