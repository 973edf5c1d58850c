"""Gradients of layer norm."""

import numpy as np

ROWS = 16


def layernorm_backward(dy, x, weight, eps=1e-5):
    m, n = x.shape
    dx = np.empty((m, n), x.dtype)
    dw = np.zeros(n, np.float32)
    db = np.zeros(n, np.float32)
    w = weight.astype(np.float32)
    count = np.float32(n)
    with np.errstate(all="ignore"):
        for start in range(0, m, ROWS):
            stop = min(start + ROWS, m)
            g = dy[start:stop].astype(np.float32)
            xx = x[start:stop].astype(np.float32)
            mean = xx.sum(1, keepdims=True, dtype=np.float32) / count
            c = xx - mean
            rstd = 1 / np.sqrt((c * c).sum(1, keepdims=True) / count + np.float32(eps))
            xhat = c * rstd
            wdy = g * w
            c1 = (xhat * wdy).sum(1, keepdims=True) / count
            c2 = wdy.sum(1, keepdims=True) / count
            dx[start:stop] = ((wdy - (xhat * c1 + c2)) * rstd).astype(x.dtype)
            dw += (g * xhat).sum(0)
            db += g.sum(0)
    return {"dx": dx, "dw": dw.astype(weight.dtype), "db": db.astype(weight.dtype)}
