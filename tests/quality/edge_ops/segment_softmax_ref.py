"""The reference: a softmax over the edges of each node, plus the node's value."""

import numpy as np


def reference(scores, node, values):
    out = np.zeros_like(scores)
    for n in set(node.tolist()):
        own = node == n
        powers = np.exp(scores[own] - scores[own].max())
        out[own] = powers / powers.sum() + values[n]
    return out
