"""Cases are the same ones for ever, keep what the schema says, and meet what is special about it.

Each op raises where an input is not as declared. Its output is a checksum of its inputs, and so is
always wrong: the failures tell the sizes, layouts, strategies and values of all cases, which are
compared with a record. The last bits of the output say which special things a case shows.

Where cases are to change on purpose: ``python tests/behaviour/test_cases.py`` writes the record
anew, and CHANGELOG.md says that seeds of earlier failures mean other cases.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from many_ops import Op, Ran, run_ops
from once import once

RECORD = Path(__file__).with_name("same_cases.json")
HEAD = """
import struct, zlib

def no(said):
    raise AssertionError(said)

def told(value):
    if isinstance(value, (list, tuple)):
        return b"".join(map(told, value))
    if isinstance(value, np.ndarray):
        steps = [value.shape, [s // value.itemsize for s in value.strides], value.dtype.name]
        return repr(steps).encode() + np.ascontiguousarray(value).tobytes()
    return repr(value).encode()
"""
BITS = 6


@dataclass(frozen=True)
class Row:
    """A schema, what holds of its inputs in every case, and what some case must show."""

    schema: str
    holds: str = "True"
    some: dict[str, str] = field(default_factory=dict)
    takes: str = "x"
    cases: int = 8
    keys: str = ""

    def op(self) -> Op:
        shown = " + ".join(f"{1 << n} * bool({once})" for n, once in enumerate(self.some.values()))
        body = (
            f"({self.holds}) or no(repr([{self.takes}]))\n"
            f"return np.int64(zlib.crc32(told([{self.takes}])) << {BITS} | ({shown or 0}))"
        )
        cases = 24 if self.some else self.cases
        keys = f"{self.keys}\ncases = {cases}"
        schema = f'{self.schema}\noutput = {{ dims = [], dtype = "int64" }}'
        return Op(self.takes, body, "return np.int64(-1)", schema, keys, head=HEAD)


def one(
    declared: str,
    holds: str = "True",
    dims: str = "N = { min = 1, max = 40 }",
    **more: Any,
) -> Row:
    """One input ``x`` of one dim."""
    inputs = f'inputs.x = {{ dims = ["N"], {declared} }}'
    return Row(f"dims = {{ {dims} }}\n{inputs}", holds, **more)


def two(dims: str, x: str, y: str, holds: str, more: str = "", takes: str = "x, y") -> Row:
    """Two inputs, the first of them ``x``."""
    second = takes.split(", ")[1]
    return Row(
        f"dims = {{ {dims} }}\ninputs.x = {x}\ninputs.{second} = {y}\n{more}", holds, takes=takes
    )


PLAIN = 'dims = { M = { min = 1, max = 9 }, N = { min = 1, max = 70 } }\ninputs.x = ["M", "N"]'
ROW = "N = { min = 1, max = 40 }"
PACKS = "N = [1, 4], T = { min = 4, max = 60 }"
TO_T = '{ dims = ["N"], dtype = "int32", kind = "%s", to = "T" }'
SMALL = '{ dims = ["N"], dtype = "int32", range = [0, 20] }'
REAL = '{ dims = ["N"], range = [0, 20] }'
SOME_T = 'dims = { V = [1, 257], N = { min = 1, max = 70 } }\ninputs.t = ["V", 8]\n'
OF_T = 'inputs.x = { dims = ["N"], dtype = "int64", kind = "indices", of = "t"%s }'
SQUARE = "dims = { N = { min = 1, max = 20 } }\ninputs.x = { dims = ['N', 'N'], kind = '%s' }"
ROWS = {
    # Plain inputs, sizes and layouts
    "matrix": Row(PLAIN, cases=30, keys='dtypes = ["float32"]'),
    "dtypes": Row(PLAIN, keys='dtypes = ["float64", "float16", "bfloat16", "float8_e4m3fn", '
                  '"float8_e5m2", "int8", "int32", "int64", "uint8", "uint64", "bool"]'),
    "two": Row("dims = { M = { min = 1, max = 300 }, K = [1, 16, 33], N = [5] }\n"
               'inputs = { a = ["M", "K"], b = ["K", "N"] }', takes="a, b", cases=20),
    "cube": Row("dims = { B = [1, 3], S = { min = 1, max = 40 }, D = [8] }\n"
                'inputs = { x = ["B", "S", "D", 2] }', cases=16),
    "scalar": Row("inputs.x = []"),
    "empty": Row('dims = { N = [0, 3] }\ninputs.x = ["N"]', cases=6),
    "expanded": Row(PLAIN, cases=6, keys='layouts = ["expanded"]'),
    "multiple": one("nonfinite = false", "len(x) % 8 == 0",
                    "N = { min = 8, max = 640, multiple_of = 8 }"),
    "listed": one("nonfinite = false", "len(x) in (1, 7, 32)", "N = [1, 7, 32]",
                  some={"last": "len(x) == 32"}),
    "bounded": one("nonfinite = false", "3 <= len(x) <= 9", "N = { min = 3, max = 9 }"),
    "computed": two(f'{ROW}, H = "(N-1)//2+1"', '["N"]', '["H"]', "len(y) == (len(x) + 1) // 2"),
    "divided": two(ROW, '["N"]', '["cdiv(N, 4)"]', "len(y) == -(-len(x) // 4)"),
    "relation": two(f"{ROW}, K = {{ min = 1, max = 40 }}", '["N"]', '["K"]', "len(y) <= len(x)",
                    'constraints = ["K <= N"]'),
    # Ranges and values
    "range": one('dtype = "int64", range = [-3, 9]', "x.min() >= -3 and x.max() <= 9",
                 some={"lowest": "x.min() == -3", "highest": "x.max() == 9"}),
    "range_of_dims": one('dtype = "int64", range = [0, "N-1"]', "x.min() >= 0 and x.max() < len(x)",
                         some={"last": "len(x) > 1 and x.max() == len(x) - 1"}),
    "range_below": one('dtype = "int64", range = ["-(N//2)", "N//2"]', "abs(x).max() <= len(x)//2"),
    "float_range": one("range = [-0.5, 0.25]", "x.min() >= -0.5 and x.max() <= 0.25", cases=24),
    "open_range": one("range = [0, inf]", "not (x < 0).any()", cases=24),
    "nonfinite": one("range = [-1, 1], nonfinite = true",
                     "not (abs(x[np.isfinite(x)]) > 1).any()",
                     some={"nan": "np.isnan(x).any()", "inf": "np.isinf(x).any()"}),
    "special": one("nonfinite = true", some={
        "nan": "np.isnan(x).any()", "inf": "np.isposinf(x).any()",
        "minus_inf": "np.isneginf(x).any()", "minus_zero": "((x == 0) & np.signbit(x)).any()",
        "zero_row": "len(x) > 2 and not x.any()",
        "constant": "len(x) > 2 and len(set(x.tolist())) == 1"}),
    "finite": one("nonfinite = false", "np.isfinite(x).all()", some={
        "large": "(abs(x) > 1e9).any()", "largest": "len(x) == 40", "smallest": "len(x) == 1",
        "power_of_two": "len(x) in (16, 32)", "tail": "len(x) in range(3, 16, 2)"}),
    "values": one('dtype = "int64", values = [-100, 7]', "np.isin(x, [-100, 7]).all()"),
    "values_beside": one('dtype = "int64", values = [-100], range = [0, 5]',
                         "np.isin(x, [-100, *range(6)]).all()"),
    "values_mixed": one('dtype = "int64", values = [-100], range = [0, 5], share = 0.1',
                        "np.isin(x, [-100, *range(6)]).all()",
                        some={"both": "0 < (x == -100).sum() < len(x)"}),
    # Kinds
    "permutation": one('dtype = "int64", kind = "permutation"',
                       "(np.sort(x) == np.arange(len(x))).all()", some={
        "identity": "len(x) > 3 and (x == np.arange(len(x))).all()",
        "reversed": "len(x) > 3 and (x[::-1] == np.arange(len(x))).all()"}),
    "sorted": one('kind = "sorted", range = [-8.0, 8.0]',
                  "(np.diff(x) >= 0).all() and abs(x).max() <= 8",
                  some={"equal_ends": "len(x) > 3 and x[0] == x[-1]"}),
    "descending": one('dtype = "int32", kind = "sorted", descending = true',
                      "(x[1:] <= x[:-1]).all()"),
    "offsets": Row(
        "dims = { N = { min = 2, max = 20 }, T = { min = 0, max = 99 } }\n"
        f'inputs.x = {TO_T % "offsets"}\ninputs.t = ["T"]',
        "x[0] == 0 and x[-1] == len(t) and (np.diff(x) >= 0).all()", takes="x, t",
        some={"empty_first": "len(x) > 2 and x[-1] and x[1] == 0",
              "all_in_one": "len(x) > 3 and (np.diff(x) > 0).sum() == 1"}),
    "lengths": two("N = { min = 1, max = 6 }, T = { min = 1, max = 70 }", TO_T % "lengths", '["T"]',
                   "x.min() >= 0 and x.max() <= len(t) and "
                   "(len(x) == 1 or (x.min() == 0 and x.max() == len(t)))", takes="x, t"),
    "mask": one('dtype = "bool", kind = "mask"', "x.any()", some={
        "full": "len(x) > 3 and x.all()", "one": "len(x) > 3 and x.sum() == 1"}),
    "mask_of_a_share": one('dtype = "bool", kind = "mask", share = 0.3', "x.any()", cases=20),
    "one_hot": Row('dims = { B = [1, 6], N = { min = 1, max = 40 } }\n'
                   'inputs.x = { dims = ["B", "N"], kind = "one_hot" }',
                   "(x.sum(1) == 1).all() and np.isin(x, [0, 1]).all()"),
    "positive": one('kind = "positive"', "(x > 0).all() and np.isfinite(x).all()"),
    "positive_range": one('kind = "positive", range = [0.5, 4]', "x.min() >= 0.5 and x.max() <= 4"),
    "probabilities": one('kind = "probabilities"', "(x >= 0).all() and abs(x.sum() - 1) < 1e-5",
                         some={"certain": "len(x) > 3 and x.max() == 1"}),
    "symmetric": Row(SQUARE % "symmetric", "(x == x.T).all()"),
    "positive_definite": Row(SQUARE % "positive_definite", "(x == x.T).all() and "
                             "np.linalg.eigvalsh(x.astype(float)).min() > 0"),
    "unique": one('dtype = "int64", kind = "unique", range = [0, "2*N-1"]',
                  "len(np.unique(x)) == len(x) and x.min() >= 0 and x.max() < 2 * len(x)"),
    "indices": Row(SOME_T + OF_T % "", "x.min() >= 0 and x.max() < len(t)", takes="t, x",
                   some={"twice": "len(set(x.tolist())) < len(x)"}),
    "indices_padded": Row(SOME_T + OF_T % ", values = [-1], share = 0.1",
                          "x.min() >= -1 and x.max() < len(t)", takes="t, x", cases=16),
    "quantized": one('dtype = "int8", kind = "quantized"',
                     "not x.any() or abs(x.astype(int)).max() in (127, 128)"),
    "quantized_bits": one('dtype = "int8", kind = "quantized", bits = 4',
                          "-8 <= x.min() and x.max() <= 7"),
    "quantized_scale": Row("dims = { B = [1, 6], N = { min = 1, max = 70 } }\ninputs.x = { dims = "
                           '["B", "N"], dtype = "int8", kind = "quantized", scale = "s" }\n'
                           'inputs.s = { dims = ["B"], kind = "positive" }', takes="x, s"),
    "packed": one('dtype = "uint8", kind = "packed"', "x.dtype == np.uint8"),
    "generated": one('dtype = "int64", generate = "gen.py:evens"',
                     "(x % 2 == 0).all() and (x < 2 * len(x)).all()"),
    # Constraints
    "total": two(PACKS, TO_T % "lengths", '["T"]', "x.sum() == len(t)",
                 'constraints = ["x.sum() == T"]', "x, t"),
    "offsets_of": two(PACKS, TO_T % "lengths", (TO_T % "offsets").replace('"N"', '"N+1"'),
                      "(np.diff(y) == x).all()", 'constraints = ["x.sum() == T", "y == cumsum(x)"]'
                      ),
    "below": Row(f"dims = {{ {ROW} }}\ninputs.x = {SMALL}\ninputs.y = {SMALL}\n"
                 'constraints = ["x <= y"]', "(x <= y).all()", {"equal": "(x == y).any()"}, "x, y"),
    "strictly": two(ROW, SMALL, SMALL.replace("[0", "[1"), "(x < y).all()",
                    'constraints = ["x < y"]'),
    "at_least": two(ROW, REAL, REAL, "(x >= y).all()", 'constraints = ["x >= y"]'),
    "above": two(ROW, REAL, REAL.replace("20", "19"), "(x > y).all()", 'constraints = ["x > y"]'),
    "equal": two(ROW, SMALL, SMALL, "(x == y).all()", 'constraints = ["x == y"]'),
    "unequal": two(ROW, SMALL, SMALL, "(x != y).all()", 'constraints = ["x != y"]'),
    "difference": two(f"{ROW}, R = {{ min = 1, max = 9 }}", '["R"]', '["N-R"]', "len(y) >= 0"),
    "bounded_parts": two("N = [4], T = [5]", TO_T.replace('"T" }', '"T", range = [1, "T"] }')
                         % "lengths", '["T"]', "x.sum() == 11 and x.min() >= 1 and x.max() <= 5",
                         'constraints = ["x.sum() == 2*N+3"]', "x, t"),
    # Scalars, optional inputs, groups
    "scalars": Row(f"dims = {{ {ROW} }}\n"
                   'inputs.x = ["N"]\nscalars = { eps = [0.5, 2.0], on = [false, true], '
                   'k = { range = [1, "N"] }, mode = ["sum", "mean"] }',
                   "eps in (0.5, 2.0) and on in (False, True) and 1 <= k <= len(x) "
                   "and mode in ('sum', 'mean')", takes="x, eps, on, k, mode",
                   some={"last": "on and eps == 2.0", "most": "k == len(x) > 1",
                         "least": "k == 1 < len(x)"}),
    "optional": Row(f"dims = {{ {ROW} }}\n"
                    'inputs.x = ["N"]\ninputs.w = { dims = ["N"], optional = true }',
                    "w is None or len(w) == len(x)", takes="x, w",
                    some={"absent": "w is None", "present": "w is not None"}),
    "list": Row(f'dims = {{ {ROW} }}\ninputs.xs = {{ dims = ["N"], list = [1, 4] }}',
                "1 <= len(xs) <= 4 and len({len(x) for x in xs}) == 1", takes="xs",
                some={"four": "len(xs) == 4"}),
    "complex": one('dtype = "complex64"', "x.dtype == np.complex64"),
}  # fmt: skip
FILES = {
    "gen.py": "import numpy as np\ndef evens(rng, shape, dtype):\n"
    "    return (2 * rng.integers(0, shape[0], shape)).astype(dtype)\n"
}


def run_rows(folder: Path) -> Ran:
    ops = {name: row.op() for name, row in ROWS.items()}
    return run_ops(folder, ops, 'seed = 42\ntolerance = "table"', files=FILES)


def cases_of(ran: Ran, name: str) -> list[str]:
    """The op's cases in their order: what `reproduce` calls them, and the output."""
    told = []
    for failure in ran.failures[name]:
        words = failure["reproduce"].split()
        assert words[:3] == ["gpuemu-flow", "reproduce", failure["seed_str"]], failure
        assert failure["actual"] is not None, failure["message"]
        told.append(f"{words[-1]} {failure['seed'] % 65536:04x} {int(failure['actual']):08x}")
    return told


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return once(tmp_path_factory, "cases", run_rows)


def test_cases_are_the_recorded_ones_and_keep_the_rule(ran: Ran) -> None:
    record = json.loads(RECORD.read_text())
    for name in ROWS:
        assert cases_of(ran, name) == record[name], name


def test_some_case_shows_what_is_special(ran: Ran) -> None:
    for name, row in ROWS.items():
        told = {int(case.split()[-1], 16) for case in cases_of(ran, name)}
        for n, special in enumerate(row.some):
            assert any(bits >> n & 1 for bits in told), (name, special)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        all_ran = run_rows(Path(made) / "w")
        record = {name: cases_of(all_ran, name) for name in ROWS}
        RECORD.write_text(json.dumps(record, indent=0) + "\n")
