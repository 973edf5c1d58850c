"""What is declared of outputs decides: a right and a wrong op for each kind of contract."""

from __future__ import annotations

import pytest
from many_ops import Op, Ran, run_once

ONE = 'dims = {{ N = [1, 6, 40] }}\ninputs = {{ x = ["N"] }}\noutput = {{ dims = ["N"], {} }}'
ROWS = 'dims = {{ M = [2, 5], N = [3, 9] }}\ninputs = {{ x = ["M", "N"] }}\noutput = {{ {} }}'
INTEGERS = (
    "dims = {{ N = [6, 40] }}\n"
    'inputs = {{ x = {{ dims = ["N"], dtype = "int32", range = [-3, 12] }} }}\noutput = {{ {} }}'
)
MASKED = (
    "dims = { B = [1, 4], T = [5, 17] }\n"
    'inputs = { x = ["B", "T"], lengths = { dims = ["B"], dtype = "int32", range = [1, 5] } }\n'
    'output = { dims = ["B", "T"], only = "T < lengths" }'
)
SAME = "return x * 1"


def one(declared: str, op: str, reference: str = SAME, **more: object) -> Op:
    return Op("x", op, reference, ONE.format(declared), **more)  # type: ignore[arg-type]


def rows(declared: str, op: str, reference: str, **more: object) -> Op:
    return Op("x", op, reference, ROWS.format(declared), **more)  # type: ignore[arg-type]


def ints(declared: str, op: str, reference: str, **more: object) -> Op:
    keys = 'dtypes = ["int32"]\n'
    return Op("x", op, reference, INTEGERS.format(declared), keys, **more)  # type: ignore[arg-type]


def lengths(op: str, **more: object) -> Op:
    right = "return np.where(np.arange(x.shape[1]) < lengths[:, None], x * 2, 0)"
    return Op("x, lengths", op, right, MASKED, **more)  # type: ignore[arg-type]


FAILED = {"verdict": "failed"}
ARGMAX = 'dims = ["M"], dtype = "int64", ties = "any", axis = 1'
LAST = "return x.shape[1] - 1 - x[:, ::-1].argmax(1)"
FIRST = "return x.argmax(1)"
TIED = 'strategies = ["ties"]'
SET = 'dims = ["?"], order = "any"'
LABELS = 'dims = ["N"], up_to = "permutation"'
NUMBERED = "return np.unique(x, return_inverse=True)[1].reshape(x.shape).astype(np.int32)"
EIGH = "return np.linalg.eigh(x + x.T)[1]"
VECTORS = (
    'dims = { N = [1, 2, 5] }\ninputs = { x = ["N", "N"] }\n'
    'output = { dims = ["N", "N"], up_to = "sign", axis = 0 }'
)
FFT = (
    'dims = {{ N = [1, 6, 16] }}\ninputs = {{ x = ["N"] }}\n'
    'output = {{ dims = ["N"], dtype = "{}" }}'
)
DFT = "k = np.arange(len(x))\nreturn np.exp(-2j * np.pi * np.outer(k, k) / len(x)) @ x"
CORE = 'strategies = ["core"]'
DROPOUT = (
    'dims = {{ M = [64], N = [96] }}\ninputs = {{ x = ["M", "N"] }}\n'
    'outputs.y = {{ dims = ["M", "N"], '
    'dtype = "same as x", statistics = {{ mean = "x", zeros = 0.25, {} }} }}'
)


def dropout(op: str, more: str = "samples = 1000", **expected: object) -> Op:
    keys = 'strategies = ["normal"]\ncases = 2'
    return Op("x", op, SAME, DROPOUT.format(more), keys, **expected)  # type: ignore[arg-type]


OPS = {
    # Bounds and tolerances of one output
    "range_kept": one("range = [-1, 1]", "return np.tanh(x)", "return np.tanh(x)"),
    "range_left": one(
        "range = [0, 1]",
        "return np.tanh(x)",
        "return np.tanh(x)",
        **FAILED,
        says=("lie outside of the declared range [0, 1]",),
    ),
    "range_above": one(
        "range = [-1, 0]",
        "return np.tanh(x)",
        "return np.tanh(x)",
        **FAILED,
        says=("lie outside of the declared range [-1, 0]",),
    ),
    "own_tolerance": one("tolerance = { atol = 0.5 }", "return x + np.float32(0.4)", keys=CORE),
    "own_too_small": one(
        "tolerance = { atol = 0.5 }",
        "return x + np.float32(0.6)",
        keys=CORE,
        **FAILED,
        kind="ToleranceExceeded",
    ),
    "own_number": one("tolerance = 0.5", "return x - np.float32(0.4)", keys=CORE),
    "own_relative": one("tolerance = { rtol = 0.1 }", "return x * np.float32(1.09)", keys=CORE),
    "own_relative_left": one(
        "tolerance = { rtol = 0.1 }", "return x * np.float32(1.11)", keys=CORE, **FAILED
    ),
    # Dtypes
    "dtype": one('dtype = "float64"', "return x.astype(np.float64) * 2", "return x * 2.0"),
    "dtype_wrong": one(
        'dtype = "float64"',
        "return x * 2",
        "return x * 2.0",
        verdict="error",
        kind="DTypeMismatch",
        says=("float32, expected float64",),
    ),
    "same_as": one('dtype = "same as x"', SAME),
    "promote": Op(
        "x, i",
        "return x + i",
        "return x + i",
        'dims = { N = [5] }\ninputs.x = ["N"]\n'
        'inputs.i = { dims = ["N"], dtype = "int16" }\n'
        'output = { dims = ["N"], dtype = "promote" }',
        'dtypes = ["float32", "int32"]',
    ),
    # Ties
    "ties_first": rows(ARGMAX, FIRST, FIRST, keys=TIED),
    "ties_last": rows(ARGMAX, LAST, FIRST, keys=TIED),
    "ties_wrong": rows(ARGMAX, "return x.argmin(1)", FIRST, keys=TIED, **FAILED),
    "ties_outside": rows(ARGMAX, "return x.argmax(1) + x.shape[1]", FIRST, keys=TIED, **FAILED),
    "no_ties": rows('dims = ["M"], dtype = "int64"', LAST, FIRST, keys=TIED, **FAILED),
    "topk": rows(
        'dims = ["M", "N"], dtype = "int64", ties = "any", axis = 1',
        "return np.argsort(-x, axis=1)",
        "return np.argsort(-x, 1, kind='stable')",
        keys=TIED,
    ),
    "topk_twice": rows(
        'dims = ["M", "N"], dtype = "int64", ties = "any", axis = 1',
        "return np.repeat(x.argmax(1)[:, None], x.shape[1], 1)",
        "return np.argsort(-x, 1, kind='stable')",
        keys=TIED,
        **FAILED,
    ),
    # Order
    "any_order": ints(
        SET, "return np.array(list(dict.fromkeys(x.tolist())), x.dtype)", "return np.unique(x)"
    ),
    "order_counts": ints(
        SET, "u = np.unique(x)\nu[-1] = u[0]\nreturn u", "return np.unique(x)", **FAILED
    ),
    "order_one_less": ints(
        SET,
        "return np.unique(x)[:-1]",
        "return np.unique(x)",
        verdict="error",
        kind="ShapeMismatch",
    ),
    "sorted_order": ints(
        'dims = ["?"]', "return np.unique(x)[::-1]", "return np.unique(x)", **FAILED
    ),
    # Up to something
    "labels": ints(LABELS, "return np.array([(x == v).argmax() for v in x], np.int32)", NUMBERED),
    "labels_merged": ints(LABELS, "return np.minimum(x, 3)", NUMBERED, **FAILED),
    "labels_split": ints(LABELS, "return np.arange(len(x), dtype=np.int32)", NUMBERED, **FAILED),
    "sign": Op(
        "x",
        "v = np.linalg.eigh(x + x.T)[1]\nreturn v * np.where(v[:1] < 0, -1, 1).astype(x.dtype)",
        EIGH,
        VECTORS,
        'strategies = ["normal"]',
    ),
    "sign_within": Op(
        "x",
        "v = np.linalg.eigh(x + x.T)[1]\nv[-1] *= -1\nreturn v",
        EIGH,
        VECTORS.replace("[1, 2, 5]", "[5]"),
        'strategies = ["normal"]',
        **FAILED,
    ),
    # Complex numbers
    "fft": Op(
        "x",
        "return np.fft.fft(x).astype(np.complex64)",
        DFT,
        FFT.format("complex64"),
        CORE,
        wrong=1,
    ),
    "fft_inverse": Op(
        "x",
        "return np.fft.ifft(x).astype(np.complex64)",
        DFT,
        FFT.format("complex64").replace("[1, 6, 16]", "[6, 16]"),
        CORE,
        **FAILED,
    ),
    "fft_real": Op(
        "x",
        "return np.fft.fft(x).real.astype(np.float32)",
        DFT,
        FFT.format("complex64"),
        CORE,
        verdict="error",
        kind="DTypeMismatch",
    ),
    # Elements that count
    "only": lengths(
        "y = np.full_like(x, 7)\nfor r, v, n in zip(y, x, lengths): r[:n] = v[:n] * 2\nreturn y"
    ),
    "only_short": lengths(
        "y = np.zeros_like(x)\n"
        "for r, v, n in zip(y, x, lengths): r[:n - 1] = v[:n - 1] * 2\nreturn y",
        **FAILED,
    ),
    "only_mask": Op(
        "x, m",
        "return np.where(m, x, 9)",
        "return x",
        'dims = { N = [40] }\ninputs = { x = ["N"], m = { dims = ["N"], '
        'dtype = "bool", kind = "mask" } }\noutput = { dims = ["N"], only = "m" }',
    ),
    "only_not": Op(
        "x, m",
        "return np.where(m, x, 9)",
        "return x",
        'dims = { N = [40] }\ninputs = { x = ["N"], m = { dims = ["N"], '
        'dtype = "bool", kind = "mask" } }\noutput = { dims = ["N"], only = "not m" }',
        **FAILED,
    ),
    # Changed inputs
    "in_place": Op(
        "w, g",
        "w -= np.float32(0.125) * g",
        "return w - 0.125 * g",
        'dims = { N = [7] }\ninputs = { w = ["N"], g = ["N"] }\n'
        'outputs = { w = { dims = ["N"], dtype = "same as w" } }',
        'mutates = ["w"]',
    ),
    "in_place_wrong": Op(
        "w, g",
        "w += np.float32(0.125) * g",
        "return w - 0.125 * g",
        'dims = { N = [7] }\ninputs = { w = ["N"], g = ["N"] }\n'
        'outputs = { w = { dims = ["N"], dtype = "same as w" } }',
        'mutates = ["w"]',
        **FAILED,
    ),
    # Distributions
    "dropout": dropout(
        "return np.where(np.random.random(x.shape) < 0.25, 0, x / np.float32(0.75)).astype(x.dtype)"
    ),
    "dropout_unscaled": dropout(
        "return np.where(np.random.random(x.shape) < 0.25, 0, x).astype(x.dtype)", **FAILED
    ),
    "dropout_rate": dropout(
        "return np.where(np.random.random(x.shape) < 0.4, 0, x / np.float32(0.6)).astype(x.dtype)",
        **FAILED,
    ),
    "dropout_tail": dropout(
        "m = np.random.random(x.shape) < 0.25\nm[-16:] = False\n"
        "return np.where(m, 0, x / np.float32(0.75)).astype(x.dtype)",
        **FAILED,
    ),
    "dropout_few": dropout(
        "return np.where(np.random.random(x.shape) < 0.25, 0, x / "
        "np.float32(0.75)).astype(x.dtype)",
        "samples = 10000",
        verdict="inconclusive",
    ),
    # A function that compares
    "own": Op(
        "x",
        "return np.argsort(x)",
        "return np.argsort(x, kind='stable')",
        'dims = { N = [6, 30] }\ninputs = { x = ["N"] }\n'
        'output = { dims = ["N"], dtype = "int64", compare = "compare.py:sorts" }',
        CORE,
    ),
    "own_wrong": Op(
        "x",
        "return np.argsort(-x)",
        "return np.argsort(x, kind='stable')",
        'dims = { N = [6, 30] }\ninputs = { x = ["N"] }\n'
        'output = { dims = ["N"], dtype = "int64", compare = "compare.py:sorts" }',
        'strategies = ["normal"]',
        **FAILED,
        says=("descends here",),
    ),
    "own_nothing": Op(
        "x", SAME, SAME, ONE.format('compare = "compare.py:nothing"'), verdict="inconclusive"
    ),
    "own_silent": Op(
        "x", SAME, SAME, ONE.format('compare = "compare.py:silent"'), verdict="inconclusive"
    ),
    "own_raises": Op("x", SAME, SAME, ONE.format('compare = "compare.py:raises"'), verdict="error"),
}
COMPARE = """
import numpy as np
def sorts(actual, expected, inputs, tolerance):
    down = np.flatnonzero(np.diff(inputs["x"][actual]) < 0)
    return [{"message": "descends here", "index": [int(i) + 1]} for i in down]
def nothing(actual, expected, inputs, tolerance):
    return {"failures": [], "compared": 0}
def silent(actual, expected, inputs, tolerance):
    pass
def raises(actual, expected, inputs, tolerance):
    raise ValueError("of the comparison")
"""
VALIDATION = "cases = 5\nseed = 3"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_once(tmp_path_factory, "outputs", OPS, VALIDATION, files=FILES)


FILES = {"compare.py": COMPARE}


def test_each_contract_decides(ran: Ran) -> None:
    ran.check_all(OPS)
    assert [result["unjudged"] for result in ran.results["dropout"]] == [0]
