"""The reference of layernorm_backward: the plain formula."""

import numpy as np


def layernorm_backward(dy, x, weight, eps=1e-5):
    mean = x.mean(1, keepdims=True)
    rstd = 1 / np.sqrt(x.var(1, keepdims=True) + eps)
    xhat = (x - mean) * rstd
    g = dy * weight
    dx = rstd * (g - g.mean(1, keepdims=True) - xhat * (g * xhat).mean(1, keepdims=True))
    return {"dx": dx, "dw": (dy * xhat).sum(0), "db": dy.sum(0)}
