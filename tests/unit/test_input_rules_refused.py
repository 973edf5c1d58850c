"""Rules of inputs that are wrong, or that nothing can keep, are reported where they stand."""

from __future__ import annotations

import math
import re
from typing import Any

from input_tables import Table, faults
from msgspec import to_builtins

from gpuemu_flow.cases.schema import parse_schema
from gpuemu_flow.model.types import KINDS

DIMS = {"N": [1, 2, 30], "T": [4, 90], "Z": [0, 2], "L": {"min": 1, "max": 300}}
SAID = r"""
kind="sorteed" -> schema-kind inputs.x.kind
kind="offsets", dtype=I -> schema-rule-key inputs.x
kind="mask", dtype="bool", to="N" -> schema-rule-key inputs.x.to
range=[0, "V-1"] -> schema-unknown-dim inputs.x.range
dims=["2*"] -> schema-expression inputs.x.dims.0
dims=["2*Q"] -> schema-unknown-dim inputs.x.dims.0
dims=["N-50"] -> schema-unsatisfiable dims
range=[3, "N"] -> schema-unsatisfiable inputs.x.range
kind="lengths", dtype=I, to="N", range=[2, 9] -> schema-unsatisfiable inputs.x.range
kind="lengths", dtype=I | | x.sum() == N*Z -> kind=lengths total=N*Z
kind="lengths", dtype=I, to=2 | | x.sum() == 3*N -> schema-unsatisfiable inputs.x
kind="unique", dtype=I, range=[1, "N-1"] -> schema-unsatisfiable inputs.x.range
kind="unique", dtype=I, range=[1, "N"] -> kind=unique low=1 high=N
kind="permutation", dtype="int8", dims=["L"] -> schema-unsatisfiable inputs.x.dtype
kind="lengths", dtype="int8", to="L" -> schema-unsatisfiable inputs.x.dtype
optional=True, dims=["N*L"] -> optional=True
optional=True, dims=["N+L"] -> optional=True
optional=True, dims=["max(N,Z)"] -> optional=True
optional=True, dims=["cdiv(L,7)"] -> optional=True
optional=True, dims=["Z", "N*L"] -> optional=True
optional=True, dims=["N*Z"] -> schema-unsatisfiable inputs.x.optional
optional=True, dims=["N-1"] -> schema-unsatisfiable inputs.x.optional
optional=True, dims=["L%3"] -> schema-unsatisfiable inputs.x.optional
optional=True, dims=["30-N"] -> schema-unsatisfiable inputs.x.optional
dtype=I | None | nonsense -> schema-constraint constraints.0
dtype=I | None | x.sum() <= N -> schema-constraint constraints.0
dtype=I | None | y.sum() == N -> schema-constraint constraints.0
| | | {"k": {"range": [1, "Q"]}} -> schema-unknown-dim scalars.k.range; schema-range scalars.k.range
| | | {"k": {"range": [9, "N"]}} -> schema-unsatisfiable scalars.k.range
range=[0, 9] -> 0..9
range=[5, 5] -> 5..5
range=[5, 4] -> schema-range inputs.x.range
range=[5] -> schema-range inputs.x.range
range=[1, 2, 3] -> schema-range inputs.x.range
range=7 -> schema-range inputs.x.range
range=["N", 4] -> schema-unsatisfiable inputs.x.range
range=[0, "N-1"] -> low=0 high=N-1
range=[-inf, 4] -> None..4
range=[4, inf] -> 4..None
range=[inf, inf] -> schema-range inputs.x.range
range=[-inf, -inf] -> schema-range inputs.x.range
range=[nan, 4] -> schema-range inputs.x.range
range=[True, 4] -> schema-range inputs.x.range
range=[0, "Q"] -> schema-unknown-dim inputs.x.range
range=[0, "N+"] -> schema-expression inputs.x.range
values=[1] -> values=(1,)
values=[3, 3, 1] -> values=(3, 1)
values=[*range(65)] -> schema-values inputs.x.values
values=[] -> schema-values inputs.x.values
values=3 -> schema-values inputs.x.values
values=[True] -> schema-values inputs.x.values
values=["a"] -> schema-values inputs.x.values
values=[inf, nan] -> values=('inf', 'nan')
values=[inf], dtype=I -> schema-values inputs.x.values
values=[1], share=0 -> values=(1,) share=0.0
values=[1], share=1 -> values=(1,) share=1.0
values=[1], share=1.01 -> schema-values inputs.x.share
values=[1], share=-0.01 -> schema-values inputs.x.share
values=[1], share=True -> schema-values inputs.x.share
share=0.5 -> schema-rule-key inputs.x.share
nonfinite=True -> nonfinite=True
nonfinite=False -> nonfinite=False
nonfinite=1 -> schema-type inputs.x.nonfinite
optional="yes" -> schema-type inputs.x.optional
kind="sorted", descending=True -> kind=sorted descending=True
kind="sorted", descending=0 -> schema-type inputs.x.descending
kind="quantized", dtype="int8", bits=1 -> kind=quantized bits=1
kind="quantized", dtype="int64", bits=64 -> kind=quantized bits=64
kind="quantized", dtype="int8", bits=65 -> schema-type inputs.x.bits
kind="quantized", dtype="int8", bits=True -> schema-type inputs.x.bits
kind="quantized", dtype="int8", bits=0 -> schema-type inputs.x.bits
kind="quantized", dtype="int8", scale="t" -> kind=quantized of=t
kind="quantized", dtype="int8", scale="q" -> schema-rule-key inputs.x.scale
kind="quantized", dtype="int8", scale=3 -> schema-type inputs.x.scale
kind="indices", of="t", dtype=I, axis=-3 -> kind=indices of=t axis=-3
kind="indices", of="t", dtype=I, axis=2 -> kind=indices of=t axis=2
kind="indices", of="t", dtype=I, axis=3 -> schema-rule-key inputs.x.axis
kind="indices", of="t", dtype=I, axis=-4 -> schema-rule-key inputs.x.axis
kind="indices", of="t", dtype=I, axis=32 -> schema-type inputs.x.axis
kind="indices", of="x", dtype=I -> schema-rule-key inputs.x.of
kind="indices", of="t", dtype=I, axis=1 -> schema-unsatisfiable inputs.x.of
kind="indices", dtype=I -> schema-rule-key inputs.x
kind="lengths", dtype=I, to=0 -> kind=lengths to=0
kind="lengths", dtype=I, to=-1 -> schema-type inputs.x.to
kind="lengths", dtype=I, to=True -> schema-type inputs.x.to
kind="lengths", dtype=I, to="N*T" -> kind=lengths to=N*T
kind="lengths", dtype=I, to="q" -> schema-unknown-dim inputs.x.to
kind="lengths", dtype="int8", to=127 -> kind=lengths to=127
kind="lengths", dtype="int8", to=128 -> schema-unsatisfiable inputs.x.dtype
kind="lengths", dtype="uint8", to=255 -> kind=lengths to=255
kind="lengths", dtype="uint8", to=256 -> schema-unsatisfiable inputs.x.dtype
kind="lengths", dtype=I, to=3, range=[4, 9] -> schema-unsatisfiable inputs.x.range
kind="lengths", dtype=I, range=[4, 9] -> 4..9 kind=lengths
kind="offsets", dtype=I, to="T" -> schema-unsatisfiable inputs.x.dims
kind="offsets", dtype=I, to="T", dims=["N+1"] -> kind=offsets to=T
kind="offsets", dtype=I, to=0 -> kind=offsets to=0
kind="offsets", dtype=I, to="T", dims=["Z"] -> schema-unsatisfiable inputs.x.dims
kind="offsets", dtype=I, to="T", dims=[] -> schema-unsatisfiable inputs.x.dims
kind="offsets", to="T", dims=["N+1"] -> kind=offsets to=T
kind="permutation", dtype="int8", dims=[128] -> kind=permutation
kind="permutation", dtype="int8", dims=[129] -> schema-unsatisfiable inputs.x.dtype
kind="permutation", dtype="bool" -> schema-dtype inputs.x.dtype
kind="mask", dtype="bool", share=0.5 -> kind=mask share=0.5
kind="mask", dtype="bool", allow_empty_rows=True -> kind=mask allow_empty_rows=True
kind="one_hot" -> kind=one_hot
kind="one_hot", dims=[] -> schema-unsatisfiable inputs.x.dims
kind="unique", dtype=I, range=[1, 30] -> 1..30 kind=unique
kind="unique", dtype=I, range=[2, 30] -> schema-unsatisfiable inputs.x.range
kind="unique", range=[2, 30] -> 2..30 kind=unique
kind="unique", dtype=I, range=[1, inf] -> 1..None kind=unique
kind="packed", dtype="uint8" -> kind=packed
kind="packed", dtype="int8" -> schema-dtype inputs.x.dtype
kind="positive", dtype="bool" -> schema-dtype inputs.x.dtype
kind="probabilities", dtype="int8" -> schema-dtype inputs.x.dtype
kind="positive_definite", dims=["N", "N"], dtype="int8" -> schema-dtype inputs.x.dtype
kind="symmetric", dims=["N", "T"] -> schema-unsatisfiable inputs.x.dims
kind="symmetric", dims=["N", "N"] -> kind=symmetric
kind="symmetric", dims=["N"] -> schema-unsatisfiable inputs.x.dims
kind="positive", dims=[] -> kind=positive
kind="scalar" -> schema-kind inputs.x.kind
kind=3 -> schema-kind inputs.x.kind
bits=4 -> schema-rule-key inputs.x.bits
to=3 -> schema-rule-key inputs.x.to
generate="g.py:f" -> generate=g.py:f
generate="g.py" -> schema-type inputs.x.generate
generate=3 -> schema-type inputs.x.generate
generate="g.py:f", range=[0, 1] -> schema-rule-key inputs.x.range
generate="g.py:f", optional=True -> optional=True generate=g.py:f
optional=True -> optional=True
optional=True, dims=["Z"] -> schema-unsatisfiable inputs.x.optional
optional=True, dims=[] -> schema-unsatisfiable inputs.x.optional
dtype="bool", range=[0, 1] -> 0..1
dtype="bool", range=[0, 0] -> schema-rule-key inputs.x.range
range=["N", "T"] -> schema-unsatisfiable inputs.x.range
range=["Z", "T"] -> low=Z high=T
range=[True, "N"] -> schema-range inputs.x.range
range=[nan, "N"] -> schema-range inputs.x.range
range=["Q", "P"] -> schema-unknown-dim inputs.x.range; schema-unknown-dim inputs.x.range
generate="g.py:f", kind="sorted" -> schema-rule-key inputs.x.kind
kind="lengths", dtype=I | None | x.sum() == T -> kind=lengths total=T
kind="lengths", dtype=I | None | T == x.sum() -> kind=lengths total=T
kind="lengths", dtype=I | None | x.sum() <= T -> schema-constraint constraints.0
kind="lengths", dtype=I | None | x.sum() == Q -> schema-constraint constraints.0
kind="lengths", dtype=I | None | q.sum() == T -> schema-constraint constraints.0
kind="sorted", dtype=I | None | x.sum() == T -> schema-constraint constraints.0
values=[1], dtype=I | None | x.sum() == T -> schema-constraint constraints.0
dtype=I | None | x.sum() == T -> kind=lengths total=T
range=[0, "T"], dtype=I | None | x.sum() == T -> kind=lengths low=0 high=T total=T
range=[1, 3], dtype=I | None | x.sum() == 3*N -> 1..3 kind=lengths low=1 high=3 total=3*N
range=[1, 3], dtype=I | None | x.sum() == 3*N+1 -> schema-unsatisfiable inputs.x
range=[1, 3], dtype=I | None | x.sum() == N-1 -> schema-unsatisfiable inputs.x
kind="lengths", dtype=I, dims=["Z"] | None | x.sum() == T -> schema-unsatisfiable inputs.x
kind="lengths", dtype=I, dims=["Z"] | None | x.sum() == Z -> kind=lengths total=Z
dtype=I, dims=["N+1"] | kind="lengths", to=3, dtype=I | x == cumsum(y) -> relation=cumsum other=y
dtype=I, dims=["N+1"] | kind="lengths", to=3, dtype=I | cumsum(y) == x -> relation=cumsum other=y
dims=["N+1"] | kind="lengths", to=3, dtype=I | x <= cumsum(y) -> schema-constraint constraints.0
dtype=I | dtype=I | x == cumsum(y) -> schema-constraint constraints.0
dtype=I | dtype=I | x == cumsum(x) -> schema-constraint constraints.0
dtype=I | dtype=I | x == cumsum(q) -> schema-constraint constraints.0
dims=["N", 4] | None | x[..., 0] <= x[..., 2] -> columns=((0, '<=', 2),)
dims=["N", 4] | None | x[..., 0] < x[..., -1] -> columns=((0, '<', -1),)
dims=["N", 4] | None | x[..., 3] > x[..., 1] -> columns=((3, '>', 1),)
dims=["N", 4] | None | x[..., 3] >= x[..., -4] -> columns=((3, '>=', -4),)
dims=["N", 4] | None | x[..., 0] == x[..., 1] -> schema-constraint constraints.0
dims=["N", 4] | None | x[..., 0] != x[..., 1] -> schema-constraint constraints.0
dims=["N", 4] | None | x[..., 0] <= x[..., 4] -> schema-constraint constraints.0
dims=["N", 4] | None | x[..., -5] <= x[..., 1] -> schema-constraint constraints.0
dims=["N", 4] | None | x[..., 1] <= x[..., -3] -> schema-constraint constraints.0
dims=["N", 4] | None | x[..., 1] <= x[..., 1] -> schema-constraint constraints.0
dims=["N", 4] | dims=["N", 4] | x[..., 0] <= y[..., 1] -> schema-constraint constraints.0
dims=[4, "N"] | None | x[..., 0] <= x[..., 1] -> schema-constraint constraints.0
dims=[] | None | x[..., 0] <= x[..., 1] -> schema-constraint constraints.0
dims=["N", 4], values=[1] | None | x[..., 0] <= x[..., 1] -> schema-constraint constraints.0
dims=["N", 4], kind="sorted" | None | x[..., 0] <= x[..., 1] -> schema-constraint constraints.0
dims=["N", 4] | None | q[..., 0] <= q[..., 1] -> schema-constraint constraints.0
dims=["N", 4] | | x[...,0]<x[...,1] & x[...,2]>x[...,3] -> columns=((0, '<', 1), (2, '>', 3))
| | x < y -> relation=< other=y
| | x <= y -> relation=<= other=y
| | x > y -> relation=> other=y
| | x >= y -> relation=>= other=y
| | x == y -> relation=== other=y
| | x != y -> relation=!= other=y
| | x <= x -> schema-constraint constraints.0
| | x <= q -> schema-constraint constraints.0
| | x <= t -> schema-constraint constraints.0
| | x <= y & x >= y -> schema-constraint constraints.1
| | x <= y & y <= x -> schema-constraint constraints.1
kind="sorted" | | x <= y -> schema-constraint constraints.0
| kind="sorted" | x <= y -> relation=<= other=y
generate="g.py:f" | | x <= y -> schema-constraint constraints.0
| generate="g.py:f" | x <= y -> relation=<= other=y
range=[3, 8], dtype=I | range=[3, 5], dtype=I | x <= y -> 3..8 relation=<= other=y
range=[3, 8], dtype=I | range=[2, 5], dtype=I | x <= y -> schema-unsatisfiable constraints.0
range=[3, 8], dtype=I | range=[4, 5], dtype=I | x < y -> 3..8 relation=< other=y
range=[3, 8], dtype=I | range=[3, 5], dtype=I | x < y -> schema-unsatisfiable constraints.0
range=[3, 8], dtype=I | range=[3, 8], dtype=I | x >= y -> 3..8 relation=>= other=y
range=[3, 8], dtype=I | range=[3, 9], dtype=I | x >= y -> schema-unsatisfiable constraints.0
range=[3, 8], dtype=I | range=[3, 7], dtype=I | x > y -> 3..8 relation=> other=y
range=[3, 8], dtype=I | range=[3, 8], dtype=I | x > y -> schema-unsatisfiable constraints.0
range=[3, 8], dtype=I | range=[3, 8], dtype=I | x == y -> 3..8 relation=== other=y
range=[3, 8], dtype=I | range=[3, 7], dtype=I | x == y -> schema-unsatisfiable constraints.0
range=[3, 8], dtype=I | range=[3, 8], dtype=I | x != y -> 3..8 relation=!= other=y
range=[3, 8] | range=[3, 5] | x < y -> 3..8 relation=< other=y
range=[3, 8] | range=[2, 5] | x < y -> schema-unsatisfiable constraints.0
range=[3, 8] | range=[3, 8] | x > y -> 3..8 relation=> other=y
range=[3, 8] | range=[3, 9] | x > y -> schema-unsatisfiable constraints.0
range=[3, 3], dtype=I | | x != y -> schema-unsatisfiable constraints.0
range=[3, 8] | | x <= y -> schema-unsatisfiable constraints.0
range=[3, 8] | | x >= y -> schema-unsatisfiable constraints.0
range=[3, 8] | | x == y -> schema-unsatisfiable constraints.0
range=[-inf, 8] | | x <= y -> None..8 relation=<= other=y
| None | N <= T -> N<=T
| None | N*2 < T -> N*2<T
| None | N > 30 -> schema-unsatisfiable constraints
| None | N > 29 -> N>29
| None | N <= Q -> schema-constraint constraints.0
| None | x <= N -> schema-constraint constraints.0
| None | N <= x -> schema-constraint constraints.0
| None | N -> schema-constraint constraints.0
| None | N <= (T -> schema-constraint constraints.0
| | | {"k": [1, 2]} -> kind=scalar values=(1, 2)
| | | {"k": [1.5]} -> kind=scalar values=(1.5,)
| | | {"k": [1, 2.5]} -> kind=scalar values=(0, 1) choices=(1, 2.5)
| | | {"k": [True, False]} -> kind=scalar values=(True, False)
| | | {"k": [True, 1]} -> kind=scalar values=(0, 1) choices=(True, 1)
| | | {"k": ["a", None]} -> kind=scalar values=(0, 1) choices=('a', None)
| | | {"k": []} -> schema-values scalars.k
| | | {"k": [*range(65)]} -> schema-values scalars.k
| | | {"k": [inf]} -> schema-values scalars.k
| | | {"k": [2**63]} -> schema-values scalars.k
| | | {"k": [2**63-1]} -> kind=scalar values=(9223372036854775807,)
| | | {"k": [[1]]} -> schema-values scalars.k
| | | {"k": {"range": [1, "N"]}} -> kind=scalar low=1 high=N
| | | {"k": {"range": [1, 2.0]}} -> kind=scalar low=1 high=2.0
| | | {"k": {"range": [1, inf]}} -> schema-range scalars.k.range
| | | {"k": {"range": [1, 2], "type": "float"}} -> kind=scalar low=1 high=2
| | | {"k": {"range": [1, 2], "type": "word"}} -> schema-type scalars.k.type
| | | {"k": {"range": [1, 2], "of": 3}} -> config-unknown-key scalars.k.of
| | | {"k": {"generate": "g.py:f"}} -> kind=scalar generate=g.py:f
| | | {"k": {"generate": "g.py:f", "type": "int"}} -> kind=scalar generate=g.py:f
| | | {"k": {"type": "int"}} -> schema-type scalars.k
| | | {"k": 3} -> schema-type scalars.k
| | | {"x": [1]} -> schema-duplicate scalars.x
| | | [1] -> schema-type scalars
| | | {str(n): [1] for n in range(65)} -> schema-type scalars
"""
"""What is said of inputs `x` | and `y`, by default of N elements, | constraints | and scalars."""
READS = {
    "permutation": "", "sorted": "range descending", "offsets": "to", "lengths": "to range",
    "mask": "share allow_empty_rows", "one_hot": "", "positive": "range values share",
    "probabilities": "", "symmetric": "", "positive_definite": "", "unique": "range values share",
    "indices": "of axis range values share", "quantized": "bits range scale", "packed": "",
}  # fmt: skip
KEYS = {
    "range": [0, 40], "values": [1], "share": 0.5, "to": 7, "of": "t", "axis": 0, "bits": 4,
    "descending": True, "allow_empty_rows": True, "scale": "t", "nonfinite": True,
}  # fmt: skip


def said_of(text: str) -> str:
    """Return the faults of a schema, or the rule of its input in short."""
    x, y, constraints, scalars, *_ = [*text.split("|"), "", "", ""]
    names = {"I": "int32", "inf": math.inf, "nan": math.nan}
    inputs = {"x": {"dims": ["N"], **eval(f"dict({x})", names)}, "t": {"dims": ["T", "Z", "L"]}}
    if y.strip() not in ("", "None"):
        inputs["y"] = {"dims": ["N"], **eval(f"dict({y})", names)}
    elif y.strip() == "" and constraints.strip():
        inputs["y"] = {"dims": ["N"]}
    said = [each.strip() for each in constraints.split("&") if each.strip()]
    table: Table = {"dims": DIMS, "inputs": inputs, "constraints": said}
    if scalars:
        table["scalars"] = eval(scalars, names)
    found: list[str] = []

    def report(path: tuple[str | int, ...], slug: str, message: str, hint: str) -> None:
        found.append(f"{slug} {'.'.join(map(str, path))}")
        named = re.search(r"""'[^']*'|"[^"]*'[^"]*"|scalars is|no sizes of""", message)
        assert named and message != hint, (message, hint)

    schema = parse_schema(table, (), report)
    found = [each for each in found if "unused-dim" not in each]
    if found or schema is None:
        return "; ".join(found)
    tensor = schema.inputs[-1 if scalars else 0]
    ends = [] if tensor.low is tensor.high is None else [f"{tensor.low}..{tensor.high}"]
    rule = to_builtins(tensor.rule).items() if tensor.rule else ()
    return " ".join([*ends, *(f"{k}={v}" for k, v in rule), *map("".join, schema.limits)])


def test_rules_are_read_or_refused_where_they_stand() -> None:
    rows = [line.partition(" -> ") for line in SAID.strip().splitlines()]
    wrong = {row: found for row, _, said in rows if (found := said_of(row)) != said}
    assert wrong == {}


def test_each_kind_reads_its_own_keys_only() -> None:
    assert set(READS) == set(KINDS)
    for kind, reads in READS.items():
        for key, value in KEYS.items():
            table = {"dims": {"N": [3], "T": [3]}, "inputs": {"t": ["N", "N"]}}
            table["inputs"]["x"] = {"dims": ["N", "N"], "kind": kind, key: value}  # type: ignore[index]
            refused = (("inputs", "x", key), "schema-rule-key") in faults(table)
            assert refused == (key not in reads.split()), (kind, key)


def test_an_index_without_a_range_gets_a_hint() -> None:
    def slugs(**said: Any) -> list[str]:
        table = {"dims": {"N": [3]}, "inputs": {"row_index": {"dims": ["N"], **said}}}
        return [slug for _, slug in faults(table)]

    assert slugs(dtype="int64") == ["schema-index-without-range"]
    assert slugs(dtype="int64", range=[0, "N-1"]) == []
    assert slugs(dtype="float32") == []
    named = {"dims": {"N": [3]}, "inputs": {"table": {"dims": ["N"], "dtype": "int32"}}}
    named["inputs"]["i"] = {"dims": ["N"], "dtype": "int64", "kind": "indices", "of": "table"}
    assert faults(named) == []


def test_expressions_are_no_python() -> None:
    for text in ("__import__('os')", "N**9", "N if N else 1", "[1]", "N.real", "9" * 600, "(" * 99):
        assert faults({"dims": {"N": [3]}, "inputs": {"x": [text]}}) != []
