"""The reference of maxpool: the plain formula."""

import numpy as np


def maxpool(x):
    """Window 3, stride 2, padding 1."""
    n, c, h, w = x.shape
    oh, ow = (h - 1) // 2 + 1, (w - 1) // 2 + 1
    values = np.empty((n, c, oh, ow), x.dtype)
    indices = np.empty((n, c, oh, ow), np.int64)
    for i in range(oh):
        for j in range(ow):
            y0, y1 = max(2 * i - 1, 0), min(2 * i + 2, h)
            x0, x1 = max(2 * j - 1, 0), min(2 * j + 2, w)
            win = x[:, :, y0:y1, x0:x1].reshape(n, c, -1)
            k = win.argmax(-1)
            values[:, :, i, j] = np.take_along_axis(win, k[..., None], -1)[..., 0]
            indices[:, :, i, j] = (y0 + k // (x1 - x0)) * w + x0 + k % (x1 - x0)
    return {"values": values, "indices": indices}
