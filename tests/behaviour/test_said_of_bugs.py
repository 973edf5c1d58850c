"""What is said below a failure is true of the bug, or absent."""

from __future__ import annotations

import re

import pytest
from many_ops import Op, Ran, run_once

HEAD = "f4 = np.float32\nnp.seterr(all='ignore')\n"
X = (
    "dims = { M = { min = 1, max = 40 }, N = { min = 1, max = 300 } }\n"
    'inputs.x = { dims = ["M", "N"], nonfinite = false }\noutput = ["M", "N"]'
)
ROWS = X.replace('output = ["M", "N"]', 'output = ["M"]')
NORM = X.replace("output", 'inputs.w = ["N"]\ninputs.b = ["N"]\noutput')
NORMED = "m, v = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)\n"
FULL = f"{NORMED}return (x - m) / np.sqrt(v + 1e-5) * w + b"
TABLE = (
    "dims = { V = [5, 100], D = { min = 1, max = 70 }, N = { min = 1, max = 50 } }\n"
    'inputs.t = ["V", "D"]\noutput = ["N", "D"]\n'
    'inputs.i = { dims = ["N"], dtype = "int64", kind = "indices", of = "t" }'
)
HEADS = (
    'dims = { H = [2], S = { min = 4, max = 70 }, D = [16] }\noutput = ["H", "S", "D"]\n'
    + "\n".join(f'inputs.{n} = {{ dims = ["H", "S", "D"], nonfinite = false }}' for n in "qkv")
)
ATTEND = """p = q @ k.swapaxes(1, 2) / 4
e = np.exp(p - p.max(-1, keepdims=True))
return e / e.sum(-1, keepdims=True) @ v"""
MATMUL = (
    "dims = { M = { min = 1, max = 70 }, K = { min = 1, max = 90 }, N = [5, 33] }\n"
    'inputs = { a = ["M", "K"], b = ["K", "N"] }\noutput = ["M", "N"]'
)
SHIFTED = r"stale or shifted|repeats"
KEYS = r"accuracy = |_policy = "
# Each bug: what takes what, the wrong body, the right one, the schema, what is said, what never is.
BUGS = {
    "tail_of_memory_left_0": (
        "x", "o = np.maximum(x, 0)\no.reshape(-1)[o.size // 128 * 128 :] = 0\nreturn o",
        "return np.maximum(x, 0)", X, "the wrong elements are 0", f"{SHIFTED}|only elements",
    ),
    "saturated": (
        "x", "return np.clip(x, f4(-1000), f4(1000))", "return x * 1", X,
        r"clipped to ±1000|\|x\| ≥ .* \(right up to", SHIFTED,
    ),
    "first_64_weights_again": (
        "x, w, b", f"{NORMED}w = w[np.arange(len(w)) % 64]\n"
        "return (x - m) / np.sqrt(v + f4(1e-5)) * w + b", FULL, NORM,
        r"columns 64 to \d+ of \d+ \(from a multiple of 64 on\)", "memory order|partial",
    ),
    "bias_forgotten": (
        "x, w, b", f"{NORMED}return (x - m) / np.sqrt(v + f4(1e-5)) * w", FULL, NORM, "minus b",
        "float8|expected. ≤",
    ),
    "larger_epsilon": (
        "x, w, b", f"{NORMED}return (x - m) / np.sqrt(v + f4(1e-4)) * w + b", FULL, NORM, "",
        f"{KEYS}|float8",
    ),
    "carry_lost": (
        "x", "o = x.copy()\nfor s in range(0, x.shape[1], 64):\n"
        "    o[:, s : s + 64] = np.cumsum(x[:, s : s + 64], 1, dtype=f4)\nreturn o",
        "return np.cumsum(x, 1)", X, "from a multiple of 64 on", f"memory order|partial|{KEYS}",
    ),
    "exponent_overflows": (
        "x", "return np.log(1 + np.exp(x)).astype(f4)", "return np.logaddexp(x, 0)", X,
        r"Inf where the reference is finite", KEYS,
    ),
    "slope_of_the_wrong_sign": (
        "x", "return np.where(x > 0, x, x * f4(-0.01))", "return np.where(x > 0, x, x * 0.01)", X,
        "sign flipped", f"float8|{SHIFTED}",
    ),
    "last_column_lost": (
        "x", "return x[:, : max(1, x.shape[1] - 1)].sum(1)", "return x.sum(1)", ROWS, "",
        f"{SHIFTED}|only elements with .expected|float8",
    ),
    "mean_over_the_padding": (
        "x", "return x.sum(1) / f4(-(-x.shape[1] // 32) * 32)", "return x.mean(1)", ROWS,
        r"\d/32\) × expected", "all but the last",
    ),
    "largest_of_none_is_0": (
        "x", "return np.maximum(x.max(1), 0)", "return x.max(1)", ROWS, "the wrong elements are 0",
        "constant",
    ),
    "sums_in_half": (
        "x", "return x.astype(np.float16).sum(1, dtype=np.float16).astype(f4)", "return x.sum(1)",
        ROWS, "rounded to float16", "float8",
    ),
    "other_row_of_a_table": (
        "t, i", "return t[np.where(i == len(t) - 1, i - 1, i)]", "return t[i]", TABLE, "",
        f"{SHIFTED}|rank 1",
    ),
    "keys_of_the_first_head": (
        "q, k, v", f"k = np.broadcast_to(k[:1], k.shape)\n{ATTEND}", ATTEND, HEADS,
        r"index 1 of 2 along axis 0", f"{SHIFTED}|only elements",
    ),
    "rows_beyond_tiles_0": (
        "a, b", "o = a @ b\no[len(o) // 16 * 16 :] = 0\nreturn o", "return a @ b", MATMUL,
        r"the wrong elements are 0", f"only elements with|partial|{KEYS}|NaN or finite",
    ),
    "a_term_twice": (
        "a, b", "return a @ b + a[:, :1] @ b[:1]", "return a @ b", MATMUL,
        r"a number of each row times a number of each column", f"1\\.9\\d\\d ×|{KEYS}",
    ),
    "bias_of_the_row": (
        "a, b, bias", "return a @ b + bias[np.arange(len(a)) % b.shape[1]][:, None]",
        "return a @ b + bias", MATMUL.replace('"N"] }', '"N"], bias = ["N"] }'), "",
        "rank|terms|partial",
    ),
    "largest_skipped": (
        "x", "return np.pad(-np.sort(-x[:, :-1], 1), ((0, 0), (0, 1)), constant_values=-9e9)",
        "return -np.sort(-x, 1)", X, "", SHIFTED,
    ),
    "nan_ignored": (
        "x", "return np.fmax.reduce(x, 1)", "return np.maximum.reduce(x, 1)",
        ROWS.replace("nonfinite = false", "nonfinite = true"), "where the reference is NaN",
        f"{KEYS}|this passes",
    ),
    "memory_not_written": (
        "x", "o = np.empty_like(x)\no[:, : x.shape[1] // 4 * 4] = x[:, : x.shape[1] // 4 * 4]\n"
        "return o", "return x * 1", X, "before anyone writes it", "overflow",
    ),
}  # fmt: skip
OPS = {
    name: Op(takes, wrong, right, schema, "cases = 24", HEAD, verdict="failed")
    for name, (takes, wrong, right, schema, _, _) in BUGS.items()
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_once(tmp_path_factory, "said-of-bugs", OPS, "cases = 24")


@pytest.mark.ci
@pytest.mark.parametrize("name", BUGS)
def test_sentences_are_true_of_the_bug(name: str, ran: Ran) -> None:
    ran.check(name, OPS[name])
    *_, wanted, never = BUGS[name]
    failed = [failure for failure in ran.failures[name] if failure["verdict"] == "failed"]
    said = [note for failure in failed for note in failure["notes"]]
    assert not wanted or any(re.search(wanted, note) for note in said), said
    assert not [note for note in said if re.search(never, note)]
