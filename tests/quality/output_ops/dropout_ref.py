"""The reference: what it is on average."""


def reference(x):
    return x
