"""Cross entropy with smoothed labels and an ignored one: float32 losses of half logits."""

import numpy as np

IGNORED, BLOCK = -100, 16


def right_vectors(logits, labels, smoothing):
    x = logits.astype(np.float32)
    kept = labels != IGNORED
    x = x - x.max(axis=1, keepdims=True)
    logs = x - np.log(np.exp(x).sum(axis=1, keepdims=True))
    own = logs[np.arange(labels.size), np.where(kept, labels, 0)]
    return -np.where(kept, (1 - smoothing) * own + smoothing * logs.mean(axis=1), 0).astype("f4")


def right_targets(logits, labels, smoothing):
    x = logits.astype(np.float64)
    width = x.shape[1]
    targets = np.full(x.shape, smoothing / width)
    rows = np.flatnonzero(labels != IGNORED)
    targets[rows, labels[rows]] += 1 - smoothing
    top = x.max(axis=1, keepdims=True)
    losses = (targets * (np.log(np.exp(x - top).sum(axis=1, keepdims=True)) + (top - x))).sum(
        axis=1
    )
    losses[labels == IGNORED] = 0
    return losses.astype(np.float32)


def _one_pass(row, label, smoothing, *, sums=np.float32, picks=None, rescales=True):
    """Read each block of a row once."""
    top, total, plain, own = np.float32(-np.inf), sums(0), np.float32(0), np.float32(0)
    for start in range(0, row.size, BLOCK):
        block = row[start : start + BLOCK].astype(np.float32)
        higher = max(top, block.max())
        factor = np.exp(top - higher) if rescales else np.float32(1)
        total = sums(total * sums(factor) + np.exp(block - higher).astype(sums).sum(dtype=sums))
        top = higher
        plain += block.sum(dtype=np.float32)
        if start <= label < min(start + BLOCK, picks or row.size):
            own = block[label - start]
    whole = top + np.log(np.float32(total))
    return (1 - smoothing) * (whole - own) + smoothing * (whole - plain / row.size)


def right_one_pass(logits, labels, smoothing):
    losses = np.zeros(labels.size, np.float32)
    for n, label in enumerate(labels):
        if label != IGNORED:
            losses[n] = _one_pass(logits[n], label, smoothing)
    return losses


def bug_label_in_the_last_block(logits, labels, smoothing):
    whole = logits.shape[1] // BLOCK * BLOCK
    losses = np.zeros(labels.size, np.float32)
    for n, label in enumerate(labels):
        if label != IGNORED:
            losses[n] = _one_pass(logits[n], label, smoothing, picks=whole or None)
    return losses


def bug_ignored_counts_from_the_end(logits, labels, smoothing):
    return right_one_pass(logits, labels % logits.shape[1], smoothing)


def bug_ignored_left_unwritten(logits, labels, smoothing):
    losses = np.empty(labels.size, np.float32)
    for n, label in enumerate(labels):
        if label == IGNORED:
            continue
        losses[n] = _one_pass(logits[n], label, smoothing)
    return losses


def bug_smoothed_over_the_others(logits, labels, smoothing):
    x = logits.astype(np.float32)
    kept = labels != IGNORED
    x = x - x.max(axis=1, keepdims=True)
    logs = x - np.log(np.exp(x).sum(axis=1, keepdims=True))
    own = logs[np.arange(labels.size), np.where(kept, labels, 0)]
    others = (logs.sum(axis=1) - own) / (x.shape[1] - 1)
    return -np.where(kept, (1 - smoothing) * own + smoothing * others, 0).astype("f4")


def bug_sums_in_half(logits, labels, smoothing):
    losses = np.zeros(labels.size, np.float32)
    for n, label in enumerate(labels):
        if label != IGNORED:
            losses[n] = _one_pass(logits[n], label, smoothing, sums=np.float16)
    return losses


def bug_not_rescaled(logits, labels, smoothing):
    losses = np.zeros(labels.size, np.float32)
    for n, label in enumerate(labels):
        if label != IGNORED:
            losses[n] = _one_pass(logits[n], label, smoothing, rescales=False)
    return losses
