"""Attention over a packed batch of sequences, some of them empty."""

import itertools

import numpy as np

KEYS = 8


def _softmax(scores):
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def right_by_sequence(q, k, v, ends, causal):
    out = np.empty(v.shape, np.float32)
    for a, b in itertools.pairwise(ends):
        if a < b:
            scores = q[a:b].astype("f4") @ k[a:b].astype("f4").T * np.float32(q.shape[1] ** -0.5)
            if causal:
                scores[np.triu_indices(b - a, 1)] = -np.inf
            out[a:b] = _softmax(scores) @ v[a:b].astype("f4")
    return out.astype(v.dtype)


def right_one_mask(q, k, v, ends, causal):
    if not len(q):
        return np.zeros_like(v)
    places = np.arange(len(q))
    sequence = np.searchsorted(ends, places, side="right")
    seen = sequence[:, None] == sequence
    if causal:
        seen &= places[:, None] >= places
    scores = (q.astype("f4") @ k.astype("f4").T) / np.sqrt(np.float32(q.shape[1]))
    return (_softmax(np.where(seen, scores, np.float32(-1e30))) @ v.astype("f4")).astype(v.dtype)


def _query(row, k, v, start, stop, *, reads=None, rescales=True):
    """One query over blocks of keys, whose sums are rescaled as the maximum grows."""
    top, total, out = np.float32(-np.inf), np.float32(0), np.zeros(len(row), np.float32)
    for begin in range(start, stop, KEYS):
        end = min(begin + KEYS, reads or stop)
        scores = k[begin:end].astype("f4") @ row
        higher = max(top, scores.max())
        factor = np.exp(top - higher) if rescales else np.float32(1)
        powers = np.exp(scores - higher)
        total = total * factor + powers.sum()
        out = out * factor + powers @ v[begin:end].astype("f4")
        top = higher
    return out / total


def _online(q, k, v, ends, causal, *, after=1, sequences=None, **changes):
    out = np.zeros_like(v)
    scaled = q.astype("f4") * np.float32(q.shape[1] ** -0.5)
    for a, b in itertools.pairwise(ends[:sequences].tolist()):
        for i in range(a, b):
            stop = min(i + after, b) if causal else b
            out[i] = _query(scaled[i], k, v, a, stop, **changes)
    return out


def right_online(q, k, v, ends, causal):
    return _online(q, k, v, ends, causal)


def bug_last_block_unmasked(q, k, v, ends, causal):
    return _online(q, k, v, ends, causal, reads=len(k))


def bug_sees_the_next_token(q, k, v, ends, causal):
    return _online(q, k, v, ends, causal, after=2)


def bug_last_sequence(q, k, v, ends, causal):
    return _online(q, k, v, ends, causal, sequences=max(len(ends) - 1, 2))


def bug_not_rescaled(q, k, v, ends, causal):
    return _online(q, k, v, ends, causal, rescales=False)


def bug_ends_at_an_empty_sequence(q, k, v, ends, causal):
    lengths = np.diff(ends)
    stop = int(np.flatnonzero(lengths == 0)[0]) + 1 if (lengths == 0).any() else None
    return _online(q, k, v, ends, causal, sequences=stop)


def bug_causal_by_place_in_batch(q, k, v, ends, causal):
    out = right_by_sequence(q, k, v, ends, False)
    for a, b in itertools.pairwise(ends):
        if causal and a < b:
            scores = q[a:b].astype("f4") @ k[a:b].astype("f4").T / np.sqrt(np.float32(q.shape[1]))
            hidden = np.arange(a, b)[:, None] < np.arange(b - a)
            out[a:b] = _softmax(np.where(hidden, np.float32(-1e30), scores)) @ v[a:b].astype("f4")
    return out


def bug_equal_lengths(q, k, v, ends, causal):
    even = np.linspace(0, len(q), len(ends)).astype(np.int32)
    return right_by_sequence(q, k, v, even, causal)


def bug_whole_last_block_counts_as_empty(q, k, v, ends, causal):
    out = np.zeros_like(v)
    scaled = q.astype("f4") * np.float32(q.shape[1] ** -0.5)
    for a, b in itertools.pairwise(ends.tolist()):
        for i in range(a, b):
            stop = i + 1 if causal else b
            whole = (stop - a - 1) // KEYS * KEYS
            stop = max(a + whole + (stop - a) % KEYS, a + 1)
            out[i] = _query(scaled[i], k, v, a, stop)
    return out
