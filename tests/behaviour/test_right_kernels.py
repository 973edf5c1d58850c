"""Right kernels of kinds that were once rejected pass, or are told the one key that they need."""

from __future__ import annotations

from dataclasses import replace

import pytest
from many_ops import Op, Ran, run_once

UP = """
f4 = np.float32
np.seterr(all="ignore")

def up(x):
    return x.astype(f4)
"""
BLOCK = (
    'dims = { M = [1, 4, 9], N = [5, 33, 257] }\ninputs = { x = ["M", "N"] }\noutput = ["M", "N"]'
)


def finite(*names: str, dims: str, output: str, more: str = "") -> str:
    """A schema whose inputs of one shape are finite."""
    axes = ", ".join(f'"{part.split("=")[0].strip()}"' for part in dims.split(";"))
    said = [f"dims = {{ {dims.replace(';', ',')} }}", f"output = {output}", more]
    said += [f"inputs.{name} = {{ dims = [{axes}], nonfinite = false }}" for name in names]
    return "\n".join(said)


WINDOW = """
h, s, d = q.shape
p = q.astype({f}) @ k.astype({f}).swapaxes(1, 2) * {f}(d**-0.5)
i, j = np.arange(s)[:, None], np.arange(s)[None]
p = np.where((j <= i) & (i - j < window), p, -np.inf)
e = np.exp(p - p.max(-1, keepdims=True))
return (e / e.sum(-1, keepdims=True) @ v.astype({f})).astype(q.dtype)
"""
EXACT = {
    "window_of_one_listed_first": Op(
        "q, k, v, window",
        WINDOW.format(f="np.float32"),
        WINDOW.format(f="np.float64"),
        finite(
            "q", "k", "v", dims="H=[1, 2];S={ min = 1, max = 40 };D=[16]",
            output='["H", "S", "D"]', more="scalars = { window = [1, 4, 16, 33] }",
        ),
    ),
    "power_of_one_listed_first": Op(
        "x, p", "return np.abs(x) ** np.float32(p)", "return np.abs(x) ** p",
        finite("x", dims="M=[4];N=[33]", output='["M", "N"]',
               more="scalars = { p = [1.0, 1.7, 2.0] }"),
    ),
    "no_step_listed_first": Op(
        "x, steps", "for _ in range(steps):\n    x = x * np.float32(0.7) + 1\nreturn x",
        "for _ in range(steps):\n    x = x * 0.7 + 1\nreturn x",
        finite("x", dims="M=[4];N=[33]", output='["M", "N"]',
               more="scalars = { steps = [0, 1, 3] }"),
    ),
    "mode_that_copies_listed_first": Op(
        "x, mode", "return x if mode == 'none' else np.tanh(x * np.float32(0.3))",
        "return x if mode == 'none' else np.tanh(x * 0.3)",
        finite("x", dims="M=[4];N=[33]", output='["M", "N"]',
               more='scalars = { mode = ["none", "tanh"] }'),
    ),
}  # fmt: skip
FAR = {
    "softmax_exp2_fma": Op(
        "x",
        "m = x.max(-1, keepdims=True)\n"
        "wide = x.astype(np.float64) * f4(1.442695041) - (m * f4(1.442695041)).astype(np.float64)\n"
        "e = np.exp2(wide.astype(f4))\nreturn (e / e.sum(-1, keepdims=True)).astype(f4)",
        "e = np.exp(x - x.max(-1, keepdims=True))\nreturn e / e.sum(-1, keepdims=True)",
        BLOCK, head=UP, wrong=1,
    ),
    "rms_norm_backward": Op(
        "dy, x",
        "r = f4(1) / np.sqrt((x * x).mean(-1, keepdims=True) + f4(1e-5))\n"
        "return dy * r - x * (r * r * r) * (dy * x).mean(-1, keepdims=True)",
        "r = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)\n"
        "return dy * r - x * r**3 * (dy * x).mean(-1, keepdims=True)",
        finite("dy", "x", dims="M=[1, 4, 9];N=[5, 33]", output='["M", "N"]'), head=UP,
    ),
    "layernorm_welford_in_tiles": Op(
        "x",
        "mean = m2 = np.zeros((len(x), 1), f4)\nn = 0\n"
        "for s in range(0, x.shape[1], 16):\n"
        "    t = x[:, s : s + 16]\n    k = t.shape[1]\n    tm = t.mean(1, keepdims=True)\n"
        "    d = tm - mean\n    new = n + k\n"
        "    m2 = m2 + ((t - tm) ** 2).sum(1, keepdims=True) + d * d * f4(n * k / new)\n"
        "    mean = mean + d * f4(k / new)\n    n = new\n"
        "return ((x - mean) / np.sqrt(m2 / f4(n) + f4(1e-5))).astype(f4)",
        "mean, var = x.mean(1, keepdims=True), x.var(1, keepdims=True)\n"
        "return (x - mean) / np.sqrt(var + 1e-5)",
        BLOCK, head=UP, wrong=1,
    ),
    "attention": Op(
        "q, k, v", WINDOW.format(f="np.float32").replace("i - j < window", "j <= i"),
        WINDOW.format(f="np.float64").replace("i - j < window", "j <= i"),
        'dims = { H = [1, 2], S = [5, 33], D = [16] }\noutput = ["H", "S", "D"]\n'
        'inputs = { q = ["H", "S", "D"], k = ["H", "S", "D"], v = ["H", "S", "D"] }',
    ),
    "cumulative_sum_finite": Op(
        "x", "return np.cumsum(x, 1, dtype=f4)", "return np.cumsum(x, 1)",
        finite("x", dims="M=[1, 4];N=[5, 33]", output='["M", "N"]'), head=UP,
    ),
}  # fmt: skip

TAKEN = (
    'dims = { N = [4, 9], V = [1, 40] }\noutput = ["N"]\n'
    'inputs.x = { dims = ["N", "V"], nonfinite = false }\n'
    'inputs.t = { dims = ["N"], dtype = "int64", range = [0, "V-1"] }'
)
TWOS = "z = x * f4(1.442695041)\nm = z.max(1, keepdims=True)\ns = np.exp2(z - m).sum(1, dtype=f4)\n"
LOGS = "lse = (np.log2(s) + m[:, 0]) * f4(0.6931471806)\n"
LSE = "m = x.max(1, keepdims=True)\nlse = np.log(np.exp(x - m).sum(1)) + m[:, 0]\n"
ONE = finite("x", dims="M=[1, 9];N=[1, 2]", output='["M", "N"]')
CANCELLED = {
    "cross_entropy_of_one_word": Op(
        "x, t", f"{TWOS}{LOGS}return lse - x[np.arange(len(t)), t]",
        f"{LSE}return lse - x[np.arange(len(t)), t]", TAKEN,
        'strategies = ["normal", "uniform", "small"]', head=UP,
    ),
    "log_softmax_of_one": Op(
        "x", f"{TWOS}{LOGS}return x - lse[:, None]", f"{LSE}return x - lse[:, None]", ONE, head=UP
    ),
    "mean_by_a_third": Op(
        "x", "t = f4(1) / f4(3)\nm = (x * t).sum(1, keepdims=True, dtype=f4) * f4(3) / x.shape[1]\n"
        "return (x - m) * t", "return (x - x.mean(1, keepdims=True)) / 3", ONE, head=UP,
    ),
    "wrong_for_one_word": Op(
        "x, t", f"{TWOS}{LOGS}return lse - x[np.arange(len(t)), t] + f4(1e-4) * (x.shape[1] == 1)",
        f"{LSE}return lse - x[np.arange(len(t)), t]", TAKEN, head=UP, verdict="failed",
    ),
}  # fmt: skip

HALF = 'dims = { M = [4], N = [33] }\ninputs = { x = ["M", "N"] }\noutput = ["M", "N"]'
PRODUCT = (
    "dims = { M = [4, 16], K = [32, 64], N = [4, 8] }\n"
    'inputs = { a = ["M", "K"], b = ["K", "N"] }\noutput = ["M", "N"]'
)
SPLIT = "h = a.shape[1] // 2\nx, y = up(a[:, :h]) @ up(b[:h]), up(a[:, h:]) @ up(b[h:])\n"
STRASSEN = """
m, k, n = a.shape[0] // 2, a.shape[1] // 2, b.shape[1] // 2
A, B, C, D = a[:m, :k], a[:m, k:], a[m:, :k], a[m:, k:]
E, F, G, H = b[:k, :n], b[:k, n:], b[k:, :n], b[k:, n:]
p, q, r, s = (A + D) @ (E + H), (C + D) @ E, A @ (F - H), D @ (G - E)
t, u, v = (A + B) @ H, (C - A) @ (E + F), (B - D) @ (G + H)
return np.block([[p + s - t + v, r + t], [q + s, p - q + r + u]])
"""
FFT = """
n = x.shape[1]
f = [np.fft.rfft(i, 2 * n).astype(np.complex64) for i in (x, h)]
return np.fft.irfft(f[0] * f[1], 2 * n)[:, :n].astype(f4)
"""
ANY_ORDER = """
out = np.zeros(len(x), f4)
for i in np.random.default_rng(time.time_ns()).permutation(x.shape[1]):
    out = out + x[:, i]
return out
"""
ATOMICS = """
out = t.copy()
for j in np.random.default_rng(time.time_ns()).permutation(len(x)):
    out[i[j]] += x[j]
return out
"""
SLICES = """
out = np.zeros((len(a), b.shape[1]), f4)
for s in np.random.default_rng(time.time_ns()).permutation(4):
    out = out + a[:, s::4] @ b[s::4]
return out
"""
SCATTER = (
    'dims = { V = [5, 9], N = [33, 257] }\ninputs.x = ["N"]\ninputs.t = ["V"]\n'
    'inputs.i = { dims = ["N"], dtype = "int64", kind = "indices", of = "t" }\noutput = ["V"]'
)
DISTANCES = (
    'dims = { M = [4, 9], N = [5], K = [16] }\ninputs = { a = ["M", "K"], b = ["N", "K"] }\n'
    'output = ["M", "N"]'
)
LINES = (
    'dims = { B = [1, 3], N = [16, 33] }\ninputs = { x = ["B", "N"], h = ["N"] }\n'
    'output = ["B", "N"]'
)
SUMS = 'dims = { M = [4, 9], N = [33, 257] }\ninputs = { x = ["M", "N"] }\noutput = ["M"]'
TANH = "i = np.tanh(z).astype(f4).view(np.int32)\nt = (i + 2048 & ~4095).view(f4)\n"
NARROW = 'dtypes = ["bfloat16", "float16"]'
NEEDING = {
    "gelu_tanh_approx": ('precision = "input"', Op(
        "x", f"y = up(x)\nz = f4(0.79788456) * (y + f4(0.044715) * y**3)\n{TANH}"
        "return (f4(0.5) * y * (1 + t)).astype(x.dtype)",
        "return 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3)))",
        HALF, NARROW, UP,
    )),
    "silu_tanh_approx": ('precision = "input"', Op(
        "x", f"y = up(x)\nz = f4(0.5) * y\n{TANH}return (z * (1 + t)).astype(x.dtype)",
        "return x * 0.5 * (1 + np.tanh(0.5 * x))", HALF, NARROW, UP,
    )),
    "split_k_half_partials": ('precision = "input"', Op(
        "a, b", f"{SPLIT}return (up(x.astype(a.dtype)) + up(y.astype(a.dtype))).astype(a.dtype)",
        "return a @ b", PRODUCT, 'dtypes = ["bfloat16"]', UP,
    )),
    "strassen": ('accuracy = "norm"', Op("a, b", STRASSEN, "return a @ b", PRODUCT)),
    "fft_convolution": ('accuracy = "norm"', Op(
        "x, h", FFT, "return np.stack([np.convolve(r, h)[: len(r)] for r in x])", LINES, head=UP,
    )),
    "distance_expanded": ('accuracy = "norm"', Op(
        "a, b", "return (a * a).sum(1)[:, None] + (b * b).sum(1)[None] - 2 * (a @ b.T)",
        "return ((a[:, None] - b[None]) ** 2).sum(-1)", DISTANCES, head=UP,
    )),
    "any_order": ("deterministic = false", Op(
        "x", ANY_ORDER, "return x.sum(1)", SUMS, head=f"import time\n{UP}",
    )),
    "atomics": ("deterministic = false", Op(
        "x, t, i", ATOMICS, "out = t.copy()\nnp.add.at(out, i, x)\nreturn out", SCATTER,
        head=f"import time\n{UP}",
    )),
    "split_k_any_order": ("deterministic = false", Op(
        "a, b", SLICES, "return a @ b", PRODUCT, head=f"import time\n{UP}",
    )),
    "argmax_int32": ('dtype = "int32"', Op(
        "x", "return np.argmax(x, 1).astype(np.int32)", "return np.argmax(x, 1)", SUMS,
    )),
}  # fmt: skip


def with_word(word: str, op: Op) -> Op:
    """The op with the key that it needs."""
    if word.startswith("dtype"):
        schema = op.schema.replace('output = ["M"]', f'output = {{ dims = ["M"], {word} }}')
        return replace(op, schema=schema)
    return replace(op, keys=f"{op.keys}\n{word}")


BY_LAYOUT = """
rows = x if x.flags.c_contiguous else x[:, ::-1]
y = np.zeros(len(x), np.float32)
for column in rows.T:
    y = y + column.astype(np.float32) * np.float32(1000)
return y - y.astype(np.float16).astype(np.float32)
"""
ORDERED = Op(
    "x", "return x.sum(1) * 0 - 1", BY_LAYOUT, SUMS,
    'layouts = ["transposed", "strided"]\nstrategies = ["normal"]', head=UP,
)  # fmt: skip
TOLD = {f"{name}_without": op for name, (_, op) in NEEDING.items()}
GIVEN = {f"{name}_with": with_word(*needing) for name, needing in NEEDING.items()}
OPS = {**EXACT, **FAR, **CANCELLED, **GIVEN, **TOLD, "ordered": ORDERED}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_once(tmp_path_factory, "right-kernels", OPS, "cases = 24")


@pytest.mark.ci
@pytest.mark.parametrize("name", [*EXACT, *FAR, *CANCELLED, *GIVEN])
def test_right_kernels_pass(name: str, ran: Ran) -> None:
    results, said = ran.results[name], ran.failures.get(name, [])
    verdict = "failed" if name.startswith("wrong") else "passed"
    assert {r["verdict"] for r in results} == {verdict}, (results, said)


@pytest.mark.ci
@pytest.mark.parametrize("name", NEEDING)
def test_the_failure_names_the_one_key(name: str, ran: Ran) -> None:
    word = NEEDING[name][0]
    failures = ran.failures[f"{name}_without"]
    said = [" ".join([f["message"], *f["notes"]]) for f in failures]
    assert any(word in text for text in said), said
    other = {w for w, _ in NEEDING.values()} - {word}
    assert not any(w in text for text in said for w in other if w != 'dtype = "int32"'), said


@pytest.mark.ci
def test_a_reference_that_adds_as_its_input_lies_is_not_random(ran: Ran) -> None:
    kinds = {failure["kind"] for failure in ran.failures["ordered"]}
    assert "ToleranceExceeded" in kinds
    assert "ReferenceError" not in kinds
