"""The reference: in place, and nothing is returned."""


def reference(w, g):
    w -= 0.125 * g
