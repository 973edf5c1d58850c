"""A module that the configuration tests name; it is never imported."""


def gelu(x):
    return x
