"""Routing of a mixture of experts: of equal gates any expert is as good."""

import numpy as np


def _weights(gates, best):
    chosen = np.take_along_axis(gates, best.astype(np.int64), 1).astype(np.float32)
    powers = np.exp(chosen - chosen[:, :1])
    return (powers / powers.sum(axis=1, keepdims=True)).astype(gates.dtype)


def right_sorted(gates):
    best = np.argsort(gates, axis=1, kind="stable")[:, :-3:-1].astype(np.int32)
    return np.ascontiguousarray(best), _weights(gates, best)


def right_two_maxima(gates):
    left = gates.copy()
    rows = np.arange(len(gates))
    first = left.argmax(axis=1)
    left[rows, first] = -np.inf
    best = np.stack([first, left.argmax(axis=1)], axis=1).astype(np.int32)
    return best, _weights(gates, best)


def _scan(gates, *, lowest=-np.inf, columns=None, reset=True):
    """Keep the best two of what was read."""
    best = np.zeros((len(gates), 2), np.int32)
    for token, row in enumerate(gates.tolist()):
        first = second = lowest
        at = [0, 0 if lowest == 0 else 1]
        for expert, gate in enumerate(row[:columns]):
            if gate > first:
                if reset:
                    second, at[1] = first, at[0]
                first, at[0] = gate, expert
            elif gate > second:
                second, at[1] = gate, expert
        best[token] = at
    return best


def right_scan(gates):
    best = _scan(gates)
    apart = np.diff(np.take_along_axis(gates, best.astype(int), 1), axis=1)
    powers = np.exp(apart)
    return best, np.concatenate([1 / (1 + powers), powers / (1 + powers)], axis=1)


def bug_one_expert_twice_in_a_tie(gates):
    values = np.sort(gates, axis=1)[:, :-3:-1]
    best = np.stack([(gates == v[:, None]).argmax(axis=1) for v in values.T], axis=1)
    return best.astype(np.int32), _weights(gates, best)


def bug_softmax_over_all(gates):
    best = _scan(gates)
    powers = np.exp(gates - gates.max(axis=1, keepdims=True))
    return best, np.take_along_axis(powers / powers.sum(axis=1, keepdims=True), best.astype(int), 1)


def bug_last_expert_unread(gates):
    best = _scan(gates, columns=max(gates.shape[1] - 1, 2))
    return best, _weights(gates, best)


def bug_begins_at_zero(gates):
    best = _scan(gates, lowest=0)
    return best, _weights(gates, best)


def bug_second_lost_to_a_new_first(gates):
    best = _scan(gates, reset=False)
    return best, _weights(gates, best)


def bug_wide_indices(gates):
    best = _scan(gates)
    return best.astype(np.int64), _weights(gates, best)


def bug_weights_in_order_of_experts(gates):
    best = _scan(gates)
    return best, _weights(gates, np.sort(best, axis=1))
