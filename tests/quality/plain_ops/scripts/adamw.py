"""One step of AdamW."""

import numpy as np

BLOCK = 1024


def adamw(p, g, m, v, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, decay=0.01, step=3):
    n = p.size
    po, mo, vo = np.empty(n, np.float32), np.empty(n, np.float32), np.empty(n, np.float32)
    c1 = np.float32(1 - beta1**step)
    c2 = np.float32(1 - beta2**step)
    f = np.float32
    with np.errstate(all="ignore"):
        for start in range(0, n, BLOCK):
            stop = min(start + BLOCK, n)
            gg = g[start:stop].astype(np.float32)
            mm = f(beta1) * m[start:stop] + f(1 - beta1) * gg
            vv = f(beta2) * v[start:stop] + f(1 - beta2) * gg * gg
            pp = p[start:stop] - f(lr * decay) * p[start:stop]
            denom = np.sqrt(vv / c2) + f(eps)
            po[start:stop] = pp - f(lr) * (mm / c1) / denom
            mo[start:stop] = mm
            vo[start:stop] = vv
    return {"p": po, "m": mo, "v": vo}
