"""Decoding attention over a cache in pages; a sequence may be empty or fill its last page."""

import numpy as np


def right_gathered(q, k, v, pages, lengths):
    keys = k[pages].reshape(len(q), -1, k.shape[2]).astype("f4")
    values = v[pages].reshape(keys.shape).astype("f4")
    scores = np.einsum("btd,bd->bt", keys, q.astype("f4")) / np.sqrt(np.float32(q.shape[1]))
    seen = np.arange(keys.shape[1]) < lengths[:, None]
    top = np.where(seen, scores, -np.inf).max(axis=1, keepdims=True, initial=-1e30)
    powers = np.where(seen, np.exp(np.minimum(scores - top, 0)), 0)
    sums = np.maximum(powers.sum(axis=1, keepdims=True), np.float32(1e-30))
    return np.einsum("bt,btd->bd", powers / sums, values).astype(q.dtype)


def right_by_token(q, k, v, pages, lengths):
    size = k.shape[1]
    out = np.zeros(q.shape, np.float64)
    for b, n in enumerate(lengths.tolist()):
        at = [(pages[b, t // size], t % size) for t in range(n)]
        if at:
            scores = np.array([q[b].astype("f8") @ k[p, s].astype("f8") for p, s in at])
            powers = np.exp((scores - scores.max()) * q.shape[1] ** -0.5)
            rows = np.array([v[p, s] for p, s in at], np.float64)
            out[b] = powers @ rows / powers.sum()
    return out.astype(q.dtype)


def _paged(q, k, v, pages, lengths, *, count=None, whole=False, skips=True):
    """Read page after page, with the maximum so far."""
    size = k.shape[1]
    out = np.zeros_like(q)
    for b, n in enumerate(lengths.tolist()):
        if n == 0 and skips:
            continue
        row = q[b].astype("f4") * np.float32(q.shape[1] ** -0.5)
        top, total, acc = np.float32(-1e30), np.float32(0), np.zeros(len(row), np.float32)
        for place in range(count(n, size) if count else -(-n // size)):
            page = pages[b, min(place, pages.shape[1] - 1)]
            stop = size if whole else min(max(n - place * size, 0), size)
            scores = k[page, :stop].astype("f4") @ row
            higher = max(top, scores.max(initial=np.float32(-1e30)))
            powers = np.exp(scores - higher)
            total = total * np.exp(top - higher) + powers.sum()
            acc = acc * np.exp(top - higher) + powers @ v[page, :stop].astype("f4")
            top = higher
        out[b] = acc / total
    return out


def right_paged(q, k, v, pages, lengths):
    return _paged(q, k, v, pages, lengths)


def bug_empty_sequence(q, k, v, pages, lengths):
    with np.errstate(all="ignore"):
        return _paged(q, k, v, pages, lengths, skips=False)


def bug_last_page_read_whole(q, k, v, pages, lengths):
    return _paged(q, k, v, pages, lengths, whole=True)


def bug_partial_page_unread(q, k, v, pages, lengths):
    return _paged(q, k, v, pages, lengths, count=lambda n, size: max(n // size, 1))


def bug_one_page_more_when_full(q, k, v, pages, lengths):
    return _paged(q, k, v, pages, lengths, count=lambda n, size: n // size + 1, whole=True)


def bug_page_number_of_one_byte(q, k, v, pages, lengths):
    return _paged(q, k, v, pages.astype(np.uint8), lengths)


def bug_pages_of_the_first(q, k, v, pages, lengths):
    return _paged(q, k, v, np.broadcast_to(pages[:1], pages.shape), lengths)


def bug_full_length_less_one(q, k, v, pages, lengths):
    return _paged(q, k, v, pages, np.minimum(lengths, pages.shape[1] * k.shape[1] - 1))
