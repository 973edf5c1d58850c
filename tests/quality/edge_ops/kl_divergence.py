"""Divergence of probabilities from a softmax, some of them exactly 0."""

import numpy as np

BLOCK = 16


def _logs(logits):
    shifted = logits.astype("f4") - logits.max(axis=1, keepdims=True).astype("f4")
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def _losses(p, logits, *, stop=None, wide=np.float32):
    q, logs = p.astype(wide), _logs(logits)
    own = np.log(np.where(q > 0, q, 1))
    return (q * (own - logs))[:, :stop].sum(axis=1, dtype=np.float32)


def right_vectors(p, logits):
    return _losses(p, logits).sum() / np.float32(len(p))


def right_loop(p, logits):
    total = 0.0
    for row, scores in zip(p.astype("f8"), logits.astype("f8"), strict=True):
        top = scores.max()
        normal = np.log(np.exp(scores - top).sum()) + top
        for share, score in zip(row.tolist(), scores.tolist(), strict=True):
            if share > 0:
                total += share * (np.log(share) + normal - score)
    return np.float32(total / len(p))


def right_parts(p, logits):
    """Entropy, cross entropy and the normaliser apart, block by block."""
    means = np.zeros(len(p), np.float64)
    top = logits.max(axis=1).astype("f8")
    sums = np.zeros(len(p), np.float64)
    for start in range(0, p.shape[1], BLOCK):
        part = p[:, start : start + BLOCK].astype("f8")
        scores = logits[:, start : start + BLOCK].astype("f8") - top[:, None]
        sums += np.exp(scores).sum(axis=1)
        means += (part * (np.log(np.maximum(part, 1e-300)) - scores)).sum(axis=1)
    return np.float32((means + np.log(sums) * p.astype("f8").sum(axis=1)).mean())


def bug_zero_times_log_of_zero(p, logits):
    with np.errstate(all="ignore"):
        return (p.astype("f4") * (np.log(p.astype("f4")) - _logs(logits))).sum() / np.float32(
            len(p)
        )


def bug_mean_of_elements(p, logits):
    return _losses(p, logits).sum() / np.float32(p.size)


def bug_no_maximum(p, logits):
    with np.errstate(all="ignore"):
        x = logits.astype("f2").astype("f4") * np.float32(4) / np.float32(4)
        powers = np.exp(x).astype("f2").astype("f4")
        logs = x - np.log(powers.sum(axis=1, keepdims=True))
        q = p.astype("f4")
        return (q * (np.log(np.where(q > 0, q, 1)) - logs)).sum() / np.float32(len(p))


def bug_last_block_unread(p, logits):
    return _losses(p, logits, stop=p.shape[1] // BLOCK * BLOCK or None).sum() / np.float32(len(p))


def bug_log_of_p_plus_epsilon(p, logits):
    q = p.astype("f4")
    return (q * (np.log(q + np.float32(1e-3)) - _logs(logits))).sum() / np.float32(len(p))


def bug_reversed(p, logits):
    logs = _logs(logits)
    q = np.maximum(p.astype("f4"), np.float32(1e-20))
    return (np.exp(logs) * (logs - np.log(q))).sum() / np.float32(len(p))


def bug_narrow_loss(p, logits):
    return np.asarray(right_vectors(p, logits)).astype(np.float16)
