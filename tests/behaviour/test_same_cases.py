"""Cases are the same ones for ever: sizes, layouts, strategies and values, compared with a record.

An op that returns a checksum of its inputs, and so is always wrong, tells them in its failures.
Where cases are to change on purpose: ``python tests/behaviour/test_same_cases.py`` writes the
record anew, and CHANGELOG.md says that seeds of earlier failures mean other cases.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from many_ops import Op, run_ops
from once import once

RECORD = Path(__file__).with_name("same_cases.json")
HEAD = """
import struct, zlib

def told(value):
    if isinstance(value, (list, tuple)):
        return b"".join(map(told, value))
    if isinstance(value, np.ndarray):
        steps = [value.shape, [s // value.itemsize for s in value.strides], value.dtype.name]
        return repr(steps).encode() + np.ascontiguousarray(value).tobytes()
    return repr(value).encode()
"""


def digests(takes: str, schema: str, keys: str = "") -> Op:
    body = f"return np.int64(zlib.crc32(told([{takes}])))"
    schema = f'{schema}\noutput = {{ dims = [], dtype = "int64" }}'
    return Op(takes, body, "return np.int64(-1)", schema, keys, head=HEAD)


def one(declared: str, dims: str = "N = { min = 1, max = 40 }", keys: str = "cases = 12") -> Op:
    return digests("x", f'dims = {{ {dims} }}\ninputs.x = {{ dims = ["N"], {declared} }}', keys)


PLAIN = 'dims = { M = { min = 1, max = 9 }, N = { min = 1, max = 70 } }\ninputs.x = ["M", "N"]'
OPS = {
    "matrix": digests("x", PLAIN, 'cases = 30\ndtypes = ["float32"]'),
    "dtypes": digests("x", PLAIN, 'cases = 12\ndtypes = ["float64", "float16", "bfloat16", '
                      '"float8_e4m3fn", "float8_e5m2", "int8", "int32", "int64", "uint8", '
                      '"uint64", "bool"]'),
    "two": digests("a, b", "dims = { M = { min = 1, max = 300 }, K = [1, 16, 33], N = [5] }\n"
                   'inputs = { a = ["M", "K"], b = ["K", "N"] }', "cases = 20"),
    "cube": digests("q", "dims = { B = [1, 3], S = { min = 1, max = 40 }, D = [8] }\n"
                    'inputs = { q = ["B", "S", "D", 2] }', "cases = 16"),
    "scalar": digests("x", "inputs.x = []", "cases = 12"),
    "empty": digests("x", 'dims = { N = [0, 3] }\ninputs.x = ["N"]', "cases = 6"),
    "expanded": digests("x", PLAIN, 'cases = 6\nlayouts = ["expanded"]'),
    "multiple": one("nonfinite = false", "N = { min = 8, max = 640, multiple_of = 8 }"),
    "computed": digests("x, y", 'dims = { N = { min = 1, max = 40 }, H = "(N-1)//2+1" }\n'
                        'inputs = { x = ["N"], y = ["H"] }', "cases = 12"),
    "range": one('dtype = "int64", range = [-3, 9]'),
    "float_range": one("range = [-0.5, 0.25]", keys="cases = 24"),
    "open_range": one("range = [0, inf]", keys="cases = 24"),
    "nonfinite": one("range = [-1, 1], nonfinite = true", keys="cases = 24"),
    "values": one('dtype = "int64", values = [-100], range = [0, 5], share = 0.1'),
    "permutation": one('dtype = "int64", kind = "permutation"'),
    "sorted": one('kind = "sorted", range = [-8.0, 8.0]'),
    "descending": one('dtype = "int32", kind = "sorted", descending = true'),
    "offsets": digests("x, t", "dims = { N = { min = 2, max = 20 }, T = { min = 0, max = 99 } }\n"
                       'inputs.x = { dims = ["N"], dtype = "int32", kind = "offsets", to = "T" }\n'
                       'inputs.t = ["T"]', "cases = 20"),
    "lengths": digests("x, t", "dims = { N = { min = 1, max = 6 }, T = { min = 1, max = 70 } }\n"
                       'inputs.x = { dims = ["N"], dtype = "int32", kind = "lengths", to = "T" }\n'
                       'inputs.t = ["T"]', "cases = 20"),
    "mask": one('dtype = "bool", kind = "mask", share = 0.3', keys="cases = 20"),
    "one_hot": one('kind = "one_hot"'),
    "positive": one('kind = "positive"'),
    "probabilities": one('kind = "probabilities"'),
    "symmetric": digests("a", "dims = { N = { min = 1, max = 20 } }\n"
                         'inputs.a = { dims = ["N", "N"], kind = "symmetric" }', "cases = 12"),
    "unique": one('dtype = "int64", kind = "unique", range = [0, "2*N-1"]'),
    "indices": digests("t, x", "dims = { V = [1, 257], N = { min = 1, max = 70 } }\n"
                       'inputs.t = ["V", 8]\ninputs.x = { dims = ["N"], dtype = "int64", '
                       'kind = "indices", of = "t", values = [-1], share = 0.1 }', "cases = 16"),
    "quantized": digests("q, s", "dims = { B = [1, 6], N = { min = 1, max = 70 } }\n"
                         'inputs.q = { dims = ["B", "N"], dtype = "int8", kind = "quantized", '
                         'scale = "s" }\ninputs.s = { dims = ["B"], kind = "positive" }',
                         "cases = 12"),
    "packed": one('dtype = "uint8", kind = "packed"'),
    "total": digests("x, t", "dims = { N = [1, 4], T = { min = 4, max = 60 } }\n"
                     'inputs.x = { dims = ["N"], dtype = "int32", kind = "lengths", to = "T" }\n'
                     'inputs.t = ["T"]\nconstraints = ["x.sum() == T"]', "cases = 12"),
    "offsets_of": digests(
        "x, y", "dims = { N = [1, 4], T = { min = 4, max = 60 } }\n"
        'inputs.x = { dims = ["N"], dtype = "int32", kind = "lengths", to = "T" }\n'
        'inputs.y = { dims = ["N+1"], dtype = "int32", kind = "offsets", to = "T" }\n'
        'constraints = ["x.sum() == T", "y == cumsum(x)"]', "cases = 12",
    ),
    "below": digests("x, y", "dims = { N = { min = 1, max = 40 } }\n"
                     'inputs.x = { dims = ["N"], dtype = "int32", range = [0, 20] }\n'
                     'inputs.y = { dims = ["N"], dtype = "int32", range = [0, 20] }\n'
                     'constraints = ["x <= y"]', "cases = 12"),
    "scalars": digests("x, eps, on, k, mode", "dims = { N = { min = 1, max = 40 } }\n"
                       'inputs.x = ["N"]\nscalars = { eps = [0.5, 2.0], on = [false, true], '
                       'k = { range = [1, "N"] }, mode = ["sum", "mean"] }', "cases = 20"),
    "optional": digests("x, w", "dims = { N = { min = 1, max = 40 } }\ninputs.x = ["
                        '"N"]\ninputs.w = { dims = ["N"], optional = true }', "cases = 20"),
    "list": digests("xs", "dims = { N = { min = 1, max = 40 } }\n"
                    'inputs.xs = { dims = ["N"], list = [1, 4] }', "cases = 20"),
    "complex": one('dtype = "complex64"'),
}  # fmt: skip


def told_by(folder: Path) -> dict[str, list[str]]:
    """Each op's cases in their order: what `reproduce` calls them, and the checksum."""
    ran = run_ops(folder, OPS, 'seed = 42\ntolerance = "table"')
    told: dict[str, list[str]] = {}
    for name, failures in ran.failures.items():
        for failure in failures:
            told.setdefault(name, []).append(case_of(failure))
    return told


def case_of(failure: dict[str, Any]) -> str:
    words = failure["reproduce"].split()
    assert words[:3] == ["gpuemu-flow", "reproduce", failure["seed_str"]], failure
    return f"{words[-1]} {failure['seed'] % 65536:04x} {int(failure['actual']):08x}"


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return once(tmp_path_factory, "same-cases", told_by)


@pytest.mark.parametrize("name", OPS)
def test_cases_are_the_recorded_ones(told: dict[str, list[str]], name: str) -> None:
    assert told[name] == json.loads(RECORD.read_text())[name]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        RECORD.write_text(json.dumps(told_by(Path(name) / "w"), indent=0) + "\n")
