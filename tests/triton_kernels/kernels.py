"""Twenty Triton kernels with their host functions; tests plant a bug into each by its text."""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x, out, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    v = tl.load(x + row * n + cols, mask=cols < n, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(out + row * n + cols, e / tl.sum(e, 0), mask=cols < n)


def softmax(x):
    out = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out


@triton.jit
def layernorm_kernel(x, w, b, out, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    v = tl.load(x + row * n + cols, mask=mask, other=0.0)
    mean = tl.sum(v, 0) / n
    centred = tl.where(mask, v - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / n + eps)
    scaled = centred * scale * tl.load(w + cols, mask=mask)
    tl.store(out + row * n + cols, scaled + tl.load(b + cols, mask=mask), mask=mask)


def layernorm(x, w, b):
    out = torch.empty_like(x)
    block = triton.next_power_of_2(x.shape[1])
    layernorm_kernel[(x.shape[0],)](x, w, b, out, x.shape[1], 1e-5, BLOCK=block)
    return out


@triton.jit
def rmsnorm_kernel(x, w, out, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        v = tl.load(x + row * n + cols, mask=cols < n, other=0.0)
        total += v * v
    scale = tl.rsqrt(tl.sum(total, 0) / n + eps)
    for start in range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        v = tl.load(x + row * n + cols, mask=cols < n)
        tl.store(out + row * n + cols, v * scale * tl.load(w + cols, mask=cols < n), mask=cols < n)


def rmsnorm(x, w):
    out = torch.empty_like(x)
    rmsnorm_kernel[(x.shape[0],)](x, w, out, x.shape[1], 1e-6, BLOCK=32)
    return out


@triton.jit
def matmul_kernel(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros([BM, BN], tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        left = tl.load(
            a + rows[:, None] * K + k[None, :],
            mask=(rows[:, None] < M) & (k[None, :] < K),
            other=0.0,
        )
        right = tl.load(
            b + k[:, None] * N + cols[None, :],
            mask=(k[:, None] < K) & (cols[None, :] < N),
            other=0.0,
        )
        total = tl.dot(left, right, total)
    tl.store(
        c + rows[:, None] * N + cols[None, :],
        total.to(tl.float16),
        mask=(rows[:, None] < M) & (cols[None, :] < N),
    )


@triton.autotune(
    [
        triton.Config({"BM": 128, "BN": 128, "BK": 128}, num_stages=4),
        triton.Config({"BM": 32, "BN": 32, "BK": 16}),
    ],
    key=["M", "N", "K"],
)
@triton.jit
def tuned_kernel(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    matmul_kernel(a, b, c, M, N, K, BM, BN, BK)


def matmul(a, b):
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty(m, n, dtype=a.dtype)
    grid = (triton.cdiv(m, 32), triton.cdiv(n, 32))
    matmul_kernel[grid](a, b, c, m, n, k, BM=32, BN=32, BK=16)
    return c


@triton.jit
def attention_kernel(q, k, v, out, n, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    head = tl.program_id(1) * n * D
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    query = tl.load(q + head + rows[:, None] * D + d[None, :], mask=rows[:, None] < n, other=0.0)
    top = tl.full([BM], -float("inf"), tl.float32)
    norm = tl.zeros([BM], tl.float32)
    total = tl.zeros([BM, D], tl.float32)
    for start in range(0, n, BN):
        cols = start + tl.arange(0, BN)
        key = tl.load(k + head + cols[None, :] * D + d[:, None], mask=cols[None, :] < n, other=0.0)
        score = tl.dot(query, key) * scale
        score = tl.where(cols[None, :] < n, score, -float("inf"))
        above = tl.maximum(top, tl.max(score, 1))
        p = tl.exp(score - above[:, None])
        shrink = tl.exp(top - above)
        norm = norm * shrink + tl.sum(p, 1)
        value = tl.load(
            v + head + cols[:, None] * D + d[None, :], mask=cols[:, None] < n, other=0.0
        )
        total = tl.dot(p.to(tl.float16), value, total * shrink[:, None])
        top = above
    tl.store(
        out + head + rows[:, None] * D + d[None, :],
        (total / norm[:, None]).to(tl.float16),
        mask=rows[:, None] < n,
    )


def attention(q, k, v):
    h, n, d = q.shape
    out = torch.empty_like(q)
    attention_kernel[(triton.cdiv(n, 16), h)](q, k, v, out, n, d**-0.5, D=d, BM=16, BN=16)
    return out


@triton.jit
def sum_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + tl.program_id(0), tl.sum(tl.load(x + at, mask=at < n, other=0.0), 0))


def total(x):
    """Sum in two launches of one kernel."""
    parts = torch.empty(triton.cdiv(x.numel(), 64))
    sum_kernel[(parts.numel(),)](x, parts, x.numel(), BLOCK=64)
    out = torch.empty(1)
    block = triton.next_power_of_2(parts.numel())
    sum_kernel[(1,)](parts, out, parts.numel(), BLOCK=block)
    return out


@triton.jit
def argmax_kernel(x, out, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    v = tl.load(x + row * n + cols, mask=cols < n, other=-float("inf"))
    tl.store(out + row, tl.argmax(v, 0))


def argmax(x):
    out = torch.empty(x.shape[0], dtype=torch.int32)
    argmax_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out


@triton.jit
def cumsum_kernel(x, out, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    v = tl.load(x + row * n + cols, mask=cols < n, other=0.0)
    tl.store(out + row * n + cols, tl.cumsum(v, 0), mask=cols < n)


def cumsum(x):
    out = torch.empty_like(x)
    cumsum_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out


@triton.jit
def dropout_kernel(x, out, n, p, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n)
    keep = tl.rand(seed, at) > p
    tl.store(out + at, tl.where(keep, v / (1 - p), 0.0), mask=at < n)


def dropout(x):
    out = torch.empty_like(x)
    dropout_kernel[(triton.cdiv(x.numel(), 128),)](x, out, x.numel(), 0.25, 123, BLOCK=128)
    return out


@triton.jit
def gelu_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n)
    tl.store(out + at, 0.5 * v * (1 + tl.erf(v * 0.7071067811865476)), mask=at < n)


def gelu(x):
    out = torch.empty_like(x)
    gelu_kernel[(triton.cdiv(x.numel(), 128),)](x, out, x.numel(), BLOCK=128)
    return out


@triton.jit
def copy_kernel(x, out, rows, cols, stride, BR: tl.constexpr, BC: tl.constexpr):
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    c = tl.arange(0, BC)
    mask = (r[:, None] < rows) & (c[None, :] < cols)
    v = tl.load(x + r[:, None] * stride + c[None, :], mask=mask, other=0)
    tl.store(out + r[:, None] * cols + c[None, :], v, mask=mask)


def masked_copy(x):
    """Copy the left half of each row, through a view with an offset."""
    half = x[:, x.shape[1] // 2 :]
    out = torch.empty(half.shape, dtype=x.dtype)
    rows, cols = half.shape
    block = triton.next_power_of_2(cols)
    copy_kernel[(triton.cdiv(rows, 4),)](half, out, rows, cols, half.stride(0), BR=4, BC=block)
    return out


@triton.jit
def atomic_kernel(x, index, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.atomic_add(
        out + tl.load(index + at, mask=mask, other=0), tl.load(x + at, mask=mask), mask=mask
    )


def scatter_add(x, index):
    out = torch.zeros(8)
    atomic_kernel[(triton.cdiv(x.numel(), 64),)](x, index, out, x.numel(), BLOCK=64)
    return out


@triton.jit
def histogram_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n, other=15)
    counts = tl.histogram(value, 16)
    tl.atomic_add(out + tl.arange(0, 16), counts)


def histogram(x):
    out = torch.zeros(16, dtype=torch.int32)
    blocks = triton.cdiv(x.numel(), 128)
    histogram_kernel[(blocks,)](x, out, x.numel(), BLOCK=128)
    out[15] -= blocks * 128 - x.numel()
    return out


@triton.jit
def transpose_kernel(x, out, rows, cols, BLOCK: tl.constexpr):
    r = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = (r[:, None] < rows) & (c[None, :] < cols)
    tile = tl.load(x + r[:, None] * cols + c[None, :], mask=mask)
    mask = (c[:, None] < cols) & (r[None, :] < rows)
    tl.store(out + c[:, None] * rows + r[None, :], tl.trans(tile), mask=mask)


def transpose(x):
    rows, cols = x.shape
    out = torch.empty(cols, rows)
    grid = (triton.cdiv(rows, 16), triton.cdiv(cols, 16))
    transpose_kernel[grid](x, out, rows, cols, BLOCK=16)
    return out


@triton.jit
def gather_kernel(x, index, out, n, m, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    place = tl.load(index + row * m + at, mask=at < m, other=0)
    v = tl.load(x + row * n + place, mask=at < m)
    tl.store(out + row * m + at, v, mask=at < m)


def gather(x, index):
    out = torch.empty(index.shape, dtype=x.dtype)
    m = index.shape[1]
    block = triton.next_power_of_2(m)
    gather_kernel[(x.shape[0],)](x, index, out, x.shape[1], m, BLOCK=block)
    return out


@triton.jit
def embedding_kernel(table, index, out, D: tl.constexpr):
    place = tl.program_id(0)
    d = tl.arange(0, D)
    row = tl.load(index + place).to(tl.int64)
    tl.store(out + place * D + d, tl.load(table + row * D + d))


def embedding(table, index):
    out = torch.empty(index.numel(), table.shape[1])
    embedding_kernel[(index.numel(),)](table, index, out, D=table.shape[1])
    return out


@triton.jit
def cross_entropy_kernel(x, target, out, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    v = tl.load(x + row * n + cols, mask=cols < n, other=-float("inf"))
    top = tl.max(v, 0)
    norm = tl.log(tl.sum(tl.exp(v - top), 0)) + top
    tl.store(out + row, norm - tl.load(x + row * n + tl.load(target + row)))


def cross_entropy(x, target):
    out = torch.empty(x.shape[0])
    block = triton.next_power_of_2(x.shape[1])
    cross_entropy_kernel[(x.shape[0],)](x, target, out, x.shape[1], BLOCK=block)
    return out


@triton.jit
def rope_kernel(x, out, D: tl.constexpr):
    place = tl.program_id(0)
    half = tl.arange(0, D // 2)
    angle = place * tl.exp2(-half * (13.287712379549449 * 2 / D))
    a = tl.load(x + place * D + half)
    b = tl.load(x + place * D + D // 2 + half)
    tl.store(out + place * D + half, a * tl.cos(angle) - b * tl.sin(angle))
    tl.store(out + place * D + D // 2 + half, a * tl.sin(angle) + b * tl.cos(angle))


def rope(x):
    out = torch.empty_like(x)
    rope_kernel[(x.shape[0],)](x, out, D=x.shape[1])
    return out


@triton.jit
def quantise_kernel(x, out, scales, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    v = tl.load(x + row * n + cols, mask=cols < n, other=0.0)
    scale = tl.max(tl.abs(v), 0) / 127.0
    q = tl.floor(v / scale + 0.5)
    tl.store(out + row * n + cols, q.to(tl.int8), mask=cols < n)
    tl.store(scales + row, scale)


def quantise(x):
    out = torch.empty(x.shape, dtype=torch.int8)
    scales = torch.empty(x.shape[0])
    block = triton.next_power_of_2(x.shape[1])
    quantise_kernel[(x.shape[0],)](x, out, scales, x.shape[1], BLOCK=block)
    return out.to(torch.float32) * scales[:, None]


@triton.jit
def bmm_kernel(a, b, c, M, N, K, BLOCK: tl.constexpr):
    batch = tl.program_id(2)
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK, BLOCK], tl.float32)
    for start in range(0, K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        left = tl.load(
            a + batch * M * K + rows[:, None] * K + k[None, :],
            mask=(rows[:, None] < M) & (k[None, :] < K),
            other=0.0,
        )
        right = tl.load(
            b + batch * K * N + k[:, None] * N + cols[None, :],
            mask=(k[:, None] < K) & (cols[None, :] < N),
            other=0.0,
        )
        total += tl.dot(left, right, input_precision="ieee")
    tl.store(
        c + batch * M * N + rows[:, None] * N + cols[None, :],
        total,
        mask=(rows[:, None] < M) & (cols[None, :] < N),
    )


def bmm(a, b):
    (z, m, k), n = a.shape, b.shape[2]
    c = torch.empty(z, m, n)
    bmm_kernel[(triton.cdiv(m, 16), triton.cdiv(n, 16), z)](a, b, c, m, n, k, BLOCK=16)
    return c


@triton.jit
def conv_kernel(x, w, out, H, W, KH: tl.constexpr, KW: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    width = W - KW + 1
    total = tl.zeros([BLOCK], tl.float32)
    for i in tl.static_range(KH):
        for j in tl.static_range(KW):
            v = tl.load(x + (row + i) * W + cols + j, mask=cols < width, other=0.0)
            total += v * tl.load(w + i * KW + j)
    tl.store(out + row * width + cols, total, mask=cols < width)


def conv(x, w):
    (height, width), (kh, kw) = x.shape, w.shape
    out = torch.empty(height - kh + 1, width - kw + 1)
    block = triton.next_power_of_2(width - kw + 1)
    conv_kernel[(height - kh + 1,)](x, w, out, height, width, KH=kh, KW=kw, BLOCK=block)
    return out


def tuned(a, b):
    """Multiply with an autotuned kernel whose first configuration fits no GPU."""
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty(m, n, dtype=a.dtype)
    tuned_kernel[lambda c: (triton.cdiv(m, c["BM"]), triton.cdiv(n, c["BN"]))](a, b, c, m, n, k)
    return c
