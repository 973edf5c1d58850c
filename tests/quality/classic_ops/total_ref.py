"""The reference: the sum and the largest element of a matrix."""


def reference(x):
    return x.sum(), x.max()
