"""Inputs keep what the schema says of them: each op fails where one of its rules is broken."""

from __future__ import annotations

import json

import pytest
from many_ops import Op, Ran, run_once


def rule(inputs: str, holds: str, *, dims: str = "N = { min = 1, max = 40 }", keys: str = "",
         takes: str = "x", output: str = '["N"]', constraints: str = "") -> Op:  # fmt: skip
    """An op that raises where its inputs are not as declared."""
    schema = f"dims = {{ {dims} }}\n{inputs}\noutput = {output}\n{constraints}"
    first = takes.split(",", maxsplit=1)[0]
    plain = f"return np.zeros({first}.shape, np.int32)"
    body = f"{holds} or no(repr(({takes})))\n{plain}"
    schema = schema.replace(
        f"output = {output}", f'output = {{ dims = {output}, dtype = "int32" }}'
    )
    return Op(takes, body, plain, schema, keys, head="def no(said): raise AssertionError(said)\n")


def one(declared: str, holds: str, dtype: str = "int64", **more: str) -> Op:
    text = f'inputs.x = {{ dims = ["N"], dtype = "{dtype}", {declared} }}'
    return rule(text, holds, **more)


def floats(declared: str, holds: str, **more: str) -> Op:
    return rule(f'inputs.x = {{ dims = ["N"], {declared} }}', holds, **more)


def square(declared: str, holds: str) -> Op:
    return rule(f'inputs.x = {{ dims = ["N", "N"], {declared} }}', holds,
                dims="N = { min = 1, max = 20 }", output='["N", "N"]')  # fmt: skip


EVERY_CASE = {
    # Ranges and values
    "range": one("range = [-3, 9]", "x.min() >= -3 and x.max() <= 9"),
    "range_of_dims": one('range = [0, "N-1"]', "x.min() >= 0 and x.max() < len(x)"),
    "range_below": one('range = ["-(N//2)", "N//2"]', "abs(x).max() <= len(x) // 2"),
    "float_range": floats("range = [-0.5, 0.25]", "x.min() >= -0.5 and x.max() <= 0.25"),
    "open_range": floats("range = [0, inf]", "not (x < 0).any()"),
    "finite": floats("nonfinite = false", "np.isfinite(x).all()"),
    "values": one("values = [-100, 7]", "np.isin(x, [-100, 7]).all()"),
    "values_beside": one(
        "values = [-100], range = [0, 5]", "((x == -100) | ((x >= 0) & (x <= 5))).all()"
    ),
    "values_mixed": one(
        "values = [-100], range = [0, 5], share = 0.1",
        "len(x) < 2 or 0 < (x == -100).sum() < len(x)",
    ),
    # Dims
    "listed": floats("nonfinite = false", "len(x) in (1, 7, 32)", dims="N = [1, 7, 32]"),
    "bounded": floats("nonfinite = false", "3 <= len(x) <= 9", dims="N = { min = 3, max = 9 }"),
    "multiple": floats(
        "nonfinite = false", "len(x) % 8 == 0", dims="N = { min = 8, max = 64, multiple_of = 8 }"
    ),
    "computed": rule(
        'inputs.x = ["N"]\ninputs.y = ["2*N+1"]', "len(y) == 2 * len(x) + 1", takes="x, y"
    ),
    "divided": rule(
        'inputs.x = ["N"]\ninputs.y = ["cdiv(N, 4)"]', "len(y) == -(-len(x) // 4)", takes="x, y"
    ),
    "named": rule(
        'inputs.x = ["N"]\ninputs.y = ["H"]',
        "len(y) == 3 * len(x)",
        takes="x, y",
        dims='N = { min = 1, max = 9 }, H = "3*N"',
    ),
    # Kinds
    "permutation": one('kind = "permutation"', "(np.sort(x) == np.arange(len(x))).all()"),
    "sorted": floats(
        'kind = "sorted", range = [-8.0, 8.0]', "(np.diff(x) >= 0).all() and abs(x).max() <= 8"
    ),
    "descending": floats('kind = "sorted", descending = true', "(np.diff(x) <= 0).all()"),
    "offsets": rule(
        'inputs.x = { dims = ["N"], dtype = "int32", kind = "offsets", to = "T" }\n'
        'inputs.t = ["T"]',
        "x[0] == 0 and x[-1] == len(t) and (np.diff(x) >= 0).all()",
        dims="N = { min = 2, max = 20 }, T = { min = 0, max = 200 }",
        takes="x, t",
    ),
    "lengths": rule(
        'inputs.x = { dims = ["N"], dtype = "int32", kind = "lengths", to = "T" }\n'
        'inputs.t = ["T"]',
        "x.min() >= 0 and x.max() <= len(t) "
        "and (len(x) == 1 or (x.min() == 0 and x.max() == len(t)))",
        dims="N = { min = 1, max = 6 }, T = { min = 1, max = 70 }",
        takes="x, t",
    ),
    "mask": one('kind = "mask"', "x.any()", "bool"),
    "one_hot": rule(
        'inputs.x = { dims = ["B", "N"], kind = "one_hot" }',
        "(x.sum(1) == 1).all() and np.isin(x, [0, 1]).all()",
        dims="B = [1, 6], N = { min = 1, max = 40 }",
        output='["B", "N"]',
    ),
    "positive": floats('kind = "positive"', "(x > 0).all() and np.isfinite(x).all()"),
    "positive_range": floats(
        'kind = "positive", range = [0.5, 4]', "x.min() >= 0.5 and x.max() <= 4"
    ),
    "probabilities": floats('kind = "probabilities"', "(x >= 0).all() and abs(x.sum() - 1) < 1e-5"),
    "symmetric": square('kind = "symmetric"', "(x == x.T).all()"),
    "positive_definite": square(
        'kind = "positive_definite"',
        "(x == x.T).all() and np.linalg.eigvalsh(x.astype(float)).min() > 0",
    ),
    "unique": one(
        'kind = "unique", range = [0, "2*N-1"]',
        "len(np.unique(x)) == len(x) and x.min() >= 0 and x.max() < 2 * len(x)",
    ),
    "indices": rule(
        'inputs.t = ["V", 8]\n'
        'inputs.x = { dims = ["N"], dtype = "int64", kind = "indices", of = "t" }',
        "x.min() >= 0 and x.max() < len(t)",
        dims="V = [1, 257], N = { min = 1, max = 70 }",
        takes="x, t",
    ),
    "quantized": one(
        'kind = "quantized"', "not x.any() or abs(x.astype(int)).max() in (127, 128)", "int8"
    ),
    "quantized_bits": one('kind = "quantized", bits = 4', "-8 <= x.min() and x.max() <= 7", "int8"),
    "packed": one('kind = "packed"', "x.dtype == np.uint8", "uint8"),
    "generated": one('generate = "gen.py:evens"', "(x % 2 == 0).all() and (x < 2 * len(x)).all()"),
    # Constraints
    "total": rule(
        'inputs.x = { dims = ["N"], dtype = "int32", kind = "lengths", to = "T" }\n'
        'inputs.t = ["T"]',
        "x.sum() == len(t)",
        takes="x, t",
        dims="N = [1, 4], T = { min = 4, max = 60 }",
        constraints='constraints = ["x.sum() == T"]',
    ),
    "below": rule(
        'inputs.x = { dims = ["N"], dtype = "int32", range = [0, 20] }\n'
        'inputs.y = { dims = ["N"], dtype = "int32", range = [0, 20] }',
        "(x <= y).all()",
        takes="x, y",
        constraints='constraints = ["x <= y"]',
    ),
    "strictly": rule(
        'inputs.x = { dims = ["N"], dtype = "int32", range = [0, 20] }\n'
        'inputs.y = { dims = ["N"], dtype = "int32", range = [1, 20] }',
        "(x < y).all()",
        takes="x, y",
        constraints='constraints = ["x < y"]',
    ),
    "relation": rule(
        'inputs.x = ["N"]\ninputs.y = ["K"]',
        "len(y) <= len(x)",
        takes="x, y",
        dims="N = { min = 1, max = 40 }, K = { min = 1, max = 40 }",
        constraints='constraints = ["K <= N"]',
    ),
    # Scalars, optional inputs, groups
    "scalars": rule(
        'inputs.x = ["N"]\nscalars = { eps = [0.5, 2.0], on = [false, true], '
        'k = { range = [1, "N"] }, mode = ["sum", "mean"] }',
        "eps in (0.5, 2.0) and on in (False, True) and 1 <= k <= len(x) "
        "and mode in ('sum', 'mean')",
        takes="x, eps, on, k, mode",
    ),
    "optional": rule(
        'inputs.x = ["N"]\ninputs.w = { dims = ["N"], optional = true }',
        "w is None or len(w) == len(x)",
        takes="x, w",
    ),
    "list": rule(
        'inputs.x = ["N"]\ninputs.xs = { dims = ["N"], list = [1, 4] }',
        "1 <= len(xs) <= 4 and all(len(y) == len(x) for y in xs)",
        takes="x, xs",
    ),
    "complex": rule('inputs.x = { dims = ["N"], dtype = "complex64" }', "x.dtype == np.complex64"),
}


def met(op: Op, **some: str) -> tuple[Op, dict[str, str]]:
    """An op that tells by its output what occurs that some case must have, a bit for each."""
    bits = " + ".join(f"{1 << n} * bool({once})" for n, once in enumerate(some.values()))
    body = f"return np.full({op.takes.split(',')[0]}.shape, {bits}, np.int32)"
    return Op(op.takes, body, op.reference, op.schema, 'cases = 24\nlayouts = ["contiguous"]'), some


SOME_CASE = {
    "range": met(EVERY_CASE["range"], lowest="x[0:1].size and x.min() == -3",
                 highest="x.max() == 9"),
    "range_of_dims": met(EVERY_CASE["range_of_dims"], last="len(x) > 1 and x.max() == len(x) - 1"),
    "nonfinite": met(
        floats("nonfinite = true", "True"), nan="np.isnan(x).any()", inf="np.isposinf(x).any()",
        minus_inf="np.isneginf(x).any()", minus_zero="((x == 0) & np.signbit(x)).any()",
        zero_row="len(x) > 2 and not x.any()", constant="len(x) > 2 and len(set(x.tolist())) == 1",
    ),
    "finite": met(
        floats("nonfinite = false", "True"), large="(abs(x) > 1e9).any()", largest="len(x) == 40",
        smallest="len(x) == 1", power_of_two="len(x) in (16, 32)", tail="len(x) in range(3, 16, 2)",
    ),
    "listed": met(EVERY_CASE["listed"], last="len(x) == 32"),
    "permutation": met(
        EVERY_CASE["permutation"], identity="len(x) > 3 and (x == np.arange(len(x))).all()",
        reversed="len(x) > 3 and (x[::-1] == np.arange(len(x))).all()",
    ),
    "sorted": met(EVERY_CASE["sorted"], equal_ends="len(x) > 3 and x[0] == x[-1]"),
    "offsets": met(EVERY_CASE["offsets"], empty_first="len(x) > 2 and x[-1] and x[1] == 0",
                   all_in_one="len(x) > 3 and (np.diff(x) > 0).sum() == 1"),
    "mask": met(EVERY_CASE["mask"], full="len(x) > 3 and x.all()",
                one="len(x) > 3 and x.sum() == 1"),
    "probabilities": met(EVERY_CASE["probabilities"], certain="len(x) > 3 and x.max() == 1"),
    "optional": met(EVERY_CASE["optional"], absent="w is None", present="w is not None"),
    "list": met(EVERY_CASE["list"], four="len(xs) == 4"),
    "scalars": met(EVERY_CASE["scalars"], last="on and eps == 2.0", most="k == len(x) > 1",
                   least="k == 1 < len(x)"),
    "below": met(EVERY_CASE["below"], equal="(x == y).any()"),
    "indices": met(EVERY_CASE["indices"], twice="len(set(x.tolist())) < len(x)"),
}  # fmt: skip
OPS = {**EVERY_CASE, **{f"some_{name}": op for name, (op, _) in SOME_CASE.items()}}
FILES = {
    "gen.py": "import numpy as np\ndef evens(rng, shape, dtype):\n"
    "    return (2 * rng.integers(0, shape[0], shape)).astype(dtype)\n"
}
VALIDATION = 'cases = 10\nseed = 3\ntolerance = "table"'


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_once(tmp_path_factory, "inputs", OPS, VALIDATION, files=FILES)


@pytest.mark.parametrize("name", EVERY_CASE)
def test_every_case_keeps_the_rule(ran: Ran, name: str) -> None:
    ran.check(name, OPS[name])


@pytest.mark.parametrize("name", SOME_CASE)
def test_some_case_shows_what_is_special(ran: Ran, name: str) -> None:
    told = {int(failure["actual"]) for failure in ran.failures[f"some_{name}"]}
    for n, special in enumerate(SOME_CASE[name][1]):
        assert any(bits >> n & 1 for bits in told), special


def test_cases_are_the_same_in_every_run_and_others_for_another_seed(ran: Ran) -> None:
    def cases(*more: str) -> list[dict[str, object]]:
        said = ran.mini.command("ci", "range", "--format", "json", *more, code=None).stdout
        return [dict(case, duration_s=0) for case in json.loads(said)["cases"]]

    assert cases() == cases()
    assert [c["seed"] for c in cases("--seed", "4")] != [c["seed"] for c in cases()]
