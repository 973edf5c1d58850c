"""The reference of adamw: the plain formula."""

import numpy as np


def adamw(p, g, m, v, lr, beta1, beta2, eps, decay, step):
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    mhat = m / (1 - beta1**step)
    vhat = v / (1 - beta2**step)
    p = p - lr * decay * p
    return {"p": p - lr * mhat / (np.sqrt(vhat) + eps), "m": m, "v": v}
