"""Tokens laid out by expert, in their order, each expert's up to its capacity."""

import itertools

import numpy as np

BLOCK = 16


def _laid_out(x, places, counts):
    rows = np.zeros(x.shape, x.dtype)
    rows[: len(places)] = x[places]
    return rows, np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def right_sorted(x, expert, capacity):
    order = np.argsort(expert, kind="stable")
    by = expert[order]
    rank = np.arange(len(by)) - np.searchsorted(by, by)
    counts = np.minimum(np.bincount(expert, minlength=len(capacity)), capacity)
    return _laid_out(x, order[rank < capacity[by]], counts)


def right_queues(x, expert, capacity):
    queues = [[] for _ in capacity]
    for token, e in enumerate(expert.tolist()):
        if len(queues[e]) < capacity[e]:
            queues[e].append(token)
    return _laid_out(
        x,
        np.array([token for queue in queues for token in queue], np.int64),
        [len(q) for q in queues],
    )


def _two_passes(x, expert, capacity, *, clips=True, inclusive=False):
    """Count in blocks first, then put each token to the place that its expert's counter has."""
    counts = np.zeros(len(capacity), np.int64)
    for start in range(0, len(x), BLOCK):
        np.add.at(counts, expert[start : start + BLOCK], 1)
    kept = np.minimum(counts, capacity)
    starts = np.concatenate([[0], np.cumsum(kept)])
    nexts = starts[:-1].copy()
    rows = np.zeros(x.shape, x.dtype)
    for token, e in enumerate(expert.tolist()):
        below = nexts[e] <= starts[e + 1] if inclusive else nexts[e] < starts[e + 1]
        if (below or not clips) and nexts[e] < len(x):
            rows[nexts[e]] = x[token]
            nexts[e] += 1
    return rows, starts.astype(np.int32)


def right_two_passes(x, expert, capacity):
    return _two_passes(x, expert, capacity)


def bug_one_more_than_the_capacity(x, expert, capacity):
    return _two_passes(x, expert, capacity, inclusive=True)


def bug_capacity_ignored_in_rows(x, expert, capacity):
    return _two_passes(x, expert, capacity, clips=False)


def bug_last_tokens_are_kept(x, expert, capacity):
    rows, starts = _two_passes(x[::-1], expert[::-1], capacity)
    for a, b in itertools.pairwise(starts):
        rows[a:b] = rows[a:b][::-1].copy()
    return rows, starts


def bug_starts_of_all_tokens(x, expert, capacity):
    rows, _ = _two_passes(x, expert, capacity)
    counts = np.bincount(expert, minlength=len(capacity))
    return rows, np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def bug_experts_without_tokens_have_no_start(x, expert, capacity):
    rows, starts = _two_passes(x, expert, capacity)
    used = np.unique(starts)
    return rows, np.concatenate([used, np.full(len(starts) - len(used), used[-1])]).astype("i4")


def bug_rest_unwritten(x, expert, capacity):
    rows, starts = _two_passes(x, expert, capacity)
    out = np.empty_like(rows)
    out[: starts[-1]] = rows[: starts[-1]]
    return out, starts


def bug_last_expert_unbounded(x, expert, capacity):
    wide = capacity.copy()
    wide[-1] = len(x)
    return _two_passes(x, expert, wide)


def bug_no_capacity_is_no_limit(x, expert, capacity):
    return _two_passes(x, expert, np.where(capacity == 0, len(x), capacity))
