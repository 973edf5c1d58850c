"""Softmax over the edges of each node of a graph; edges are sorted by node, nodes may have none."""

import numpy as np

BLOCK = 16


def right_reduced(scores, node, values):
    wide = scores.astype("f4")
    starts = np.flatnonzero(np.append(True, node[1:] != node[:-1]))
    counts = np.diff(np.append(starts, node.size))
    powers = np.exp(wide - np.repeat(np.maximum.reduceat(wide, starts), counts))
    sums = np.repeat(np.add.reduceat(powers, starts), counts)
    return (powers / sums + values[node].astype("f4")).astype(scores.dtype)


def right_dense(scores, node, values):
    own = node == np.arange(len(values))[:, None]
    spread = np.where(own, scores.astype("f8"), -np.inf)
    top = spread.max(axis=1, keepdims=True)
    powers = np.exp(spread - np.where(np.isfinite(top), top, 0))
    shares = powers / np.maximum(powers.sum(axis=1, keepdims=True), 1e-300)
    return (shares.sum(axis=0) + values.astype("f8")[node]).astype(scores.dtype)


def _blocks(scores, node, values, *, carries=True, rescales=True, nodes=None, tail=True):
    """A block adds what it has of each node to the node's maximum and sum."""
    top = np.full(len(values), -np.inf, np.float32)
    sums = np.zeros(len(values), np.float32)
    stop = scores.size if tail else scores.size // BLOCK * BLOCK or scores.size
    for start in range(0, stop, BLOCK):
        part = slice(start, start + BLOCK)
        for n in sorted(set(node[part].tolist())):
            own = scores[part][node[part] == n].astype("f4")
            higher = max(top[n], own.max()) if carries else own.max()
            factor = np.exp(top[n] - higher) if rescales and carries else np.float32(carries)
            sums[n] = sums[n] * factor + np.exp(own - higher).sum()
            top[n] = higher
    last = node if nodes is None else np.minimum(node, nodes)
    shares = np.exp(scores.astype("f4") - top[node]) / sums[node]
    return (shares + values[last].astype("f4")).astype(scores.dtype)


def right_blocks(scores, node, values):
    return _blocks(scores, node, values)


def bug_node_over_two_blocks(scores, node, values):
    with np.errstate(all="ignore"):
        return _blocks(scores, node, values, carries=False)


def bug_not_rescaled(scores, node, values):
    return _blocks(scores, node, values, rescales=False)


def bug_last_node_has_the_value_before(scores, node, values):
    return _blocks(scores, node, values, nodes=max(len(values) - 2, 0))


def bug_last_block_unread(scores, node, values):
    with np.errstate(all="ignore"):
        return _blocks(scores, node, values, tail=False)


def bug_nodes_without_edges_are_skipped(scores, node, values):
    dense = np.unique(node, return_inverse=True)[1].reshape(node.shape)
    return _blocks(scores, dense, values)


def bug_softmax_over_all(scores, node, values):
    powers = np.exp(scores.astype("f4") - scores.max())
    return (powers / powers.sum() + values[node]).astype(scores.dtype)


def bug_maximum_of_all(scores, node, values):
    powers = np.exp(scores.astype("f4") - scores.astype("f4").max()).astype(np.float16)
    sums = np.bincount(node, powers, len(values))[node]
    with np.errstate(all="ignore"):
        return (powers / sums + values[node]).astype(scores.dtype)


def bug_nodes_that_begin_a_block(scores, node, values):
    out = _blocks(scores, node, values)
    starts = np.flatnonzero(np.append(True, node[1:] != node[:-1]))
    at = starts[(starts % BLOCK == 0) & (starts > 0)]
    out[at] = values[node[at]]
    return out
