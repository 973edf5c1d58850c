"""Right kernels of kinds that were once rejected pass, or are told the one key that they need."""

from __future__ import annotations

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
OPS = {**EXACT, **FAR}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_once(tmp_path_factory, "right-kernels", OPS, "cases = 24")


@pytest.mark.ci
@pytest.mark.parametrize("name", OPS)
def test_right_kernels_pass(name: str, ran: Ran) -> None:
    results, said = ran.results[name], ran.failures.get(name, [])
    assert {r["verdict"] for r in results} == {"passed"}, (results, said)
