"""Tolerances and policies: what is judged by which numbers, and what stays without a verdict."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

if __name__ == "__main__":  # writes the record anew, where the tolerance is to change
    sys.path.insert(0, str(Path(__file__).parents[1]))

from many_ops import Op, Ran, run_once, run_ops
from mini_workspace import make_one_op

CORE = 'strategies = ["core"]'
SUMS = 'dims = { M = [3], N = [257] }\ninputs = { x = ["M", "N"] }\noutput = ["M"]'
SUM = "return x.sum(1)"
PRODUCT = (
    'dims = { M = [5], K = [64], N = [7] }\ninputs = { a = ["M", "K"], b = ["K", "N"] }\n'
    'output = ["M", "N"]'
)
LATER = "y = x + 0\ny[:1] = np.{}\nreturn y"
WIDE = 'dims = { N = [40] }\ninputs = { x = ["N"] }\noutput = ["N"]'
TWO = 'dims = { N = [40] }\ninputs = { x = ["N"], y = ["N"] }\noutput = ["N"]'
SPECIAL = 'strategies = ["special"]'
SAME = "return x + 0"
FAILED = {"verdict": "failed"}


def given(tolerances: str, op: str, **more: object) -> Op:
    keys = f"tolerances = {tolerances}\n{CORE}"
    return Op("x", op, SAME, keys=keys, **more)  # type: ignore[arg-type]


def special(op: str, keys: str = "", reference: str = SAME, **more: object) -> Op:
    return Op("x", op, reference, keys=f"{SPECIAL}\n{keys}", **more)  # type: ignore[arg-type]


def kept(invariant: str, op: str, reference: str, **more: object) -> Op:
    keys = f"invariants = {invariant}\n{CORE}"
    return Op("x", op, reference, keys=keys, **more)  # type: ignore[arg-type]


SOFTMAX = "e = np.exp(x - x.max(1, keepdims=True))\nreturn e / e.sum(1, keepdims=True)"
ROWS = 'dims = { M = [3], N = [17] }\ninputs = { x = ["M", "N"] }\noutput = ["M", "N"]'
OPS = {
    # Derived from the reference
    "sum": Op("x", "return x[:, ::-1].cumsum(1)[:, -1]", SUM, SUMS),
    "sum_in_half": Op(
        "x",
        "return x.astype(np.float16).sum(1).astype(x.dtype)",
        SUM,
        SUMS,
        **FAILED,
        kind="ToleranceExceeded",
        says=("(auto)",),
    ),
    "sum_but_one": Op("x", "return x[:, :-1].sum(1)", SUM, SUMS, CORE, **FAILED),
    "softmax": Op("x", SOFTMAX, SOFTMAX, ROWS, CORE),
    "softmax_naive": Op(
        "x",
        "e = np.exp(x)\nreturn e / e.sum(1, keepdims=True)",
        SOFTMAX,
        ROWS,
        'strategies = ["wide"]',
        **FAILED,
    ),
    "matmul": Op("a, b", "return np.einsum('ik,kj->ij', a, b)", "return a @ b", PRODUCT),
    "matmul_but_one": Op(
        "a, b", "return a[:, 1:] @ b[1:]", "return a @ b", PRODUCT, CORE, **FAILED
    ),
    "half": Op(
        "x",
        "return x.astype(np.float32).sum(1).astype(x.dtype)",
        SUM,
        SUMS,
        'dtypes = ["float16"]\n' + CORE,
    ),
    "half_in_half": Op(
        "x",
        "s = x[:, 0] * 0\nfor j in range(x.shape[1]): s = s + x[:, j]\nreturn s",
        SUM,
        SUMS,
        'dtypes = ["float16"]\ncases = 12',
        **FAILED,
    ),
    "exact": Op("x", "return x[::-1]", "return x[::-1]"),
    "exact_moved": Op(
        "x",
        "return np.nextafter(np.nextafter(np.nextafter(x[::-1], np.inf), np.inf), "
        "np.inf).astype(x.dtype)",
        "return x[::-1]",
        keys='strategies = ["normal"]',
        **FAILED,
        says=("(auto (exact))",),
    ),
    # Exact in float64, on small quotients, but not in float32
    "back": Op("x, y", "return x + y - x", "return x + y - x", TWO, CORE),
    "on_a_grid": Op(
        "x, y",
        "return np.round(x / y) * y * x.dtype.type(1.01)",
        "return np.round(x / y) * y",
        'dims = { N = [40] }\ninputs.x = { dims = ["N"] }\n'
        'inputs.y = { dims = ["N"], range = [4, 5] }\noutput = { dims = ["N"] }',
        CORE,
        **FAILED,
        says=("(auto)",),
    ),
    "integers": Op(
        "x", "return x * 2", "return x + x", keys='dtypes = ["int32", "uint8", "int64"]'
    ),
    "integers_off": Op(
        "x", "return x * 2 + 1", "return x + x", keys='dtypes = ["int32"]', **FAILED
    ),
    "booleans": Op("x", "return ~x", "return np.logical_not(x)", keys='dtypes = ["bool"]'),
    "booleans_off": Op(
        "x", "return x", "return np.logical_not(x)", keys='dtypes = ["bool"]', **FAILED
    ),
    # Given
    "absolute": given("{ float32 = 0.25 }", "return x + np.float32(0.2)"),
    "absolute_left": given("{ float32 = 0.25 }", "return x + np.float32(0.3)", **FAILED),
    "both": given(
        "{ float32 = { atol = 0.125, rtol = 0.5 } }", "return x * 1.45 + np.float32(0.1)"
    ),
    "both_left": given("{ float32 = { atol = 0.0, rtol = 0.25 } }", "return x * 1.3", **FAILED),
    "of_another_dtype": given("{ float16 = 0.25 }", "return x + np.float32(0.2)", **FAILED),
    "loose": given("{ float32 = 1e9 }", "return x * 0", verdict="inconclusive"),
    "table": Op("x", "return x * np.float32(1 + 8e-6)", SAME, keys=f'tolerance = "table"\n{CORE}'),
    "table_left": Op(
        "x",
        "return x * np.float32(1 + 3e-5)",
        SAME,
        keys='tolerance = "table"\nstrategies = ["wide"]',
        **FAILED,
    ),
    # NaN and Inf
    "nan_kept": special(SAME),
    "nan_lost": special("return np.nan_to_num(x, posinf=np.inf, neginf=-np.inf)", **FAILED),
    "inf_lost": special("return np.clip(x, -3e38, 3e38)", **FAILED),
    "inf_sign": special("return np.where(np.isinf(x), np.inf, x).astype(x.dtype)", **FAILED),
    "nan_ignored": Op("x", SAME, LATER.format("nan"), WIDE, 'nan_policy = "ignore"\n' + CORE),
    "nan_not_ignored": Op("x", SAME, LATER.format("nan"), WIDE, CORE, **FAILED),
    "inf_ignored": Op("x", SAME, LATER.format("inf"), WIDE, 'inf_policy = "ignore"\n' + CORE),
    "inf_not_ignored": Op("x", SAME, LATER.format("inf"), WIDE, CORE, **FAILED),
    "nan_made": Op("x", "y = x + 0\ny[0] = np.nan\nreturn y", SAME, keys=CORE, **FAILED),
    "nan_strict": Op(
        "x",
        "return x - x + np.nan",
        "return x - x + np.nan",
        keys='nan_policy = "strict"\n' + CORE,
        **FAILED,
    ),
    "inf_strict": Op(
        "x",
        "return x - x + np.inf",
        "return x - x + np.inf",
        keys="check_inf = true\n" + CORE,
        **FAILED,
    ),
    # Invariants
    "non_negative": kept('["non_negative"]', "return np.abs(x)", "return np.abs(x)"),
    "negative": kept('["non_negative"]', SAME, SAME, **FAILED, kind="InvariantViolation"),
    "finite": kept('["finite"]', "return x / np.float32(0)", "return x / 0", **FAILED),
    "no_nan": kept("{ no_nan = true }", "return x * 0 / 0", "return x * 0 / 0", **FAILED),
    "no_inf": kept(
        "{ no_inf = true }", "return np.abs(x) + np.inf", "return abs(x) + np.inf", **FAILED
    ),
    "off": kept("{ non_negative = false }", SAME, SAME),
    "normalized": Op("x", SOFTMAX, SOFTMAX, ROWS, 'invariants = ["normalized"]\n' + CORE),
    "not_normalized": Op(
        "x",
        "return np.abs(x)",
        "return np.abs(x)",
        ROWS,
        'invariants = ["normalized"]\n' + CORE,
        **FAILED,
        kind="InvariantViolation",
    ),
    "symmetric": Op(
        "x",
        "return x + x.T",
        "return x + x.T",
        'dims = { N = [5] }\ninputs = { x = ["N", "N"] }\noutput = ["N", "N"]',
        'invariants = ["symmetric"]\n' + CORE,
    ),
    "asymmetric": Op(
        "x",
        SAME,
        SAME,
        'dims = { N = [5] }\ninputs = { x = ["N", "N"] }\noutput = ["N", "N"]',
        'invariants = ["symmetric"]\nstrategies = ["normal"]',
        **FAILED,
    ),
    # References
    "reference_raises": Op(
        "x",
        SAME,
        "raise ValueError('of the reference')",
        verdict="error",
        kind="ReferenceError",
        says=("the reference: ", "of the reference"),
    ),
    "reference_in_float32": Op("x", SAME, "assert x.dtype == np.float32\nreturn x + 0"),
    "reference_drifts": Op(
        "x", SAME, "return x + np.random.SeedSequence().entropy % 999983", verdict="error"
    ),
    "reference_changes_input": Op("x", SAME, "y = x + 0\nx[:] = 0\nreturn y"),
    "wider_reference": Op("x", SAME, SAME, keys='reference_dtype = "float64"\n' + CORE),
}
RECORD = Path(__file__).with_name("tolerances.json")
NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]\d+)?")
COUNTS = ("passed", "failed", "inconclusive", "errors")
VALIDATION = "cases = 7\nseed = 3"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_once(tmp_path_factory, "tolerance", OPS, VALIDATION)


def test_each_tolerance_decides(ran: Ran) -> None:
    ran.check_all(OPS)


def test_figures_are_the_recorded_ones(ran: Ran) -> None:
    """How much of its tolerance a right op uses is what people tune kernels by."""
    record = json.loads(RECORD.read_text())
    for name in OPS:
        recorded = record[name]["results"]
        for result, (dtype, counts, used, unjudged) in zip(
            ran.results[name], recorded, strict=True
        ):
            assert (result["dtype"], [result[key] for key in COUNTS]) == (dtype, counts), name
            found = float(result["tolerance_used"]), result["unjudged"]
            assert found[0] == pytest.approx(float(used), rel=0.05, abs=1e-9), name
            assert found[1] == pytest.approx(unjudged, abs=1e-6), name


def test_failures_read_as_recorded(ran: Ran) -> None:
    """Which case, which element, how far off: word by word, but for the last digits."""
    record = json.loads(RECORD.read_text())
    for name in OPS:
        if name == "reference_drifts":
            continue  # by another number in each run
        recorded = record[name]["failures"]
        told = [brief(failure) for failure in ran.failures.get(name, [])]
        assert len(told) == len(recorded), name
        for (where, message), (place, words) in zip(told, recorded, strict=True):
            assert where == place, name
            assert NUMBER.sub("#", message) == NUMBER.sub("#", words), name
            numbers = [float(number.replace(",", "")) for number in NUMBER.findall(message)]
            wanted = [float(n.replace(",", "")) for n in NUMBER.findall(words)]
            assert numbers == pytest.approx(wanted, rel=0.02), name


def brief(failure: dict[str, Any]) -> tuple[list[Any], str]:
    return [failure[key] for key in ("kind", "dtype", "shape", "index")], failure["message"]


def test_figures_are_those_of_the_worst_element(ran: Ran) -> None:
    (result,) = ran.results["absolute"]
    assert result["max_abs"] == pytest.approx(0.2, rel=1e-2)
    assert result["tolerance_used"] == pytest.approx(0.8, rel=1e-2)
    (result,) = ran.results["exact"]
    assert (result["max_abs"], result["max_rel"], result["max_ulp"]) == (0, 0, 0)
    for failure in ran.failures["sum_but_one"]:
        worst = abs(failure["actual"] - failure["expected"])
        assert failure["max_abs"] >= worst > 0
        counted = re.match(r"(\d+) of 3 elements of 'output' exceed", failure["message"])
        assert counted and 1 <= int(counted[1]) <= 3
        assert failure["shapes"] == {"x": [3, 257]}
        assert len(failure["index"]) == 1 and 0 <= failure["index"][0] < 3


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        told = run_ops(Path(folder) / "w", OPS, VALIDATION)
    record = {}
    for name, results in told.results.items():
        rows = [
            [r["dtype"], [r[key] for key in COUNTS], r["tolerance_used"], r["unjudged"]]
            for r in results
        ]
        failures = [brief(failure) for failure in told.failures.get(name, [])]
        record[name] = {"results": rows, "failures": failures}
    lines = [f"{json.dumps(name)}: {json.dumps(about)}" for name, about in record.items()]
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")


@pytest.mark.ci
@pytest.mark.parametrize(
    ("op", "atol", "dtype", "told"),
    [
        ("np.tanh(x)", "1e-12", "float32", True),
        ("np.tanh(x)", "1e-7", "float16", True),
        ("np.tanh(x) + np.float32(0.1)", "1e-6", "float32", False),
    ],
)
def test_a_tolerance_finer_than_the_dtype_is_told(
    tmp_path: Path, op: str, atol: str, dtype: str, told: bool
) -> None:
    schema, keys = 'dims = { N = [33] }\ninputs.x = ["N"]', f"tolerances = {{ {dtype} = {atol} }}"
    mini = make_one_op(
        tmp_path, takes="x", op=f"return {op}", reference="return np.tanh(x)", schema=schema,
        keys=f'{keys}\ndtypes = ["{dtype}"]',
    )  # fmt: skip
    shown = mini.command("run", code=1).stdout
    assert (f"the tolerance is finer than {dtype}" in shown) is told, shown
