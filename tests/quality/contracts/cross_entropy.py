"""Mean cross entropy of the labels that are not ignored."""

import numpy as np

IGNORED = -100


def _losses(logits, labels):
    top = logits.max(axis=1, keepdims=True)
    total = np.log(np.exp(logits - top).sum(axis=1)) + top[:, 0]
    return total - logits[np.arange(labels.size), labels]


def reference(logits, labels):
    kept = labels != IGNORED
    losses = _losses(logits, np.where(kept, labels, 0))
    return (losses * kept).sum() / max(kept.sum(), 1)


def right_selected(logits, labels):
    kept = labels != IGNORED
    if not kept.any():
        return logits.dtype.type(0)
    return _losses(logits[kept], labels[kept]).mean().astype(logits.dtype)


def right_loop(logits, labels):
    total, count = 0.0, 0
    for row, label in zip(logits.astype(np.float64), labels, strict=True):
        if label == IGNORED:
            continue
        top = row.max()
        total += np.log(np.exp(row - top).sum()) + top - row[label]
        count += 1
    return np.asarray(total / max(count, 1), logits.dtype)


def right_softmax(logits, labels):
    kept = labels != IGNORED
    wide = logits.astype(np.float64)
    powers = np.exp(wide - wide.max(axis=1, keepdims=True))
    chosen = powers[np.arange(labels.size), np.where(kept, labels, 0)] / powers.sum(axis=1)
    return np.asarray(-(np.log(chosen) * kept).sum() / max(kept.sum(), 1), logits.dtype)


def wrong_mean_of_all(logits, labels):
    kept = labels != IGNORED
    return ((_losses(logits, np.where(kept, labels, 0)) * kept).sum() / labels.size).astype(
        logits.dtype
    )


def wrong_ignored_counts(logits, labels):
    return _losses(logits, np.where(labels == IGNORED, 0, labels)).mean().astype(logits.dtype)


def wrong_wrapped(logits, labels):
    return _losses(logits, labels % logits.shape[1]).mean().astype(logits.dtype)


def wrong_last_class(logits, labels):
    clamped = np.where(labels == IGNORED, labels, np.minimum(labels, logits.shape[1] - 2))
    return np.asarray(reference(logits, clamped), logits.dtype)


def wrong_class_zero_ignored(logits, labels):
    return np.asarray(reference(logits, np.where(labels == 0, IGNORED, labels)), logits.dtype)
