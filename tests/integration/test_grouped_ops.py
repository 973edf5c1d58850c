"""Ops on complex numbers and lists of tensors: right ones pass, planted bugs are found."""

from __future__ import annotations

from pathlib import Path

import pytest
from mini_workspace import Mini

CONFIG = """
[project]
name = "groups"
[validation]
cases = 12
cause_budget = 0
dtypes = {dtypes}
[[ops]]
name = "it"
op = "op.py:f"
reference = "ref.py:f"
[ops.schema]
dims = {{ N = [1, 7, 33] }}
{schema}
"""
COMPLEX = """
inputs.z = { dims = ["N"], dtype = "complex64", range = [-10.0, 10.0] }
inputs.w = { dims = ["N"], dtype = "complex64", nonfinite = false }
output = { dims = ["N"], dtype = "complex64" }
"""
LIST = """
inputs.xs = { dims = ["N"], list = [1, 4] }
inputs.w = { dims = [], range = [1.0, 2.0] }
output = ["N"]
"""
OPS = {
    "complex": (
        COMPLEX,
        '["float32"]',
        "(z, w): return z * w.conj()",
        [
            "(z, w): return z * w",
            "(z, w): return (z.real * w.real + 0j).astype(z.dtype)",
            "(z, w): return np.abs(z) * w.conj()",
            "(z, w): return (w.conj() * z).real",
            "(z, w): return np.concatenate([(z * w.conj())[:-1], z[-1:] * w[-1:]])",
            "(z, w):\n    z *= w.conj()\n    return z",
        ],
    ),
    "list": (
        LIST,
        '["float32"]',
        "(xs, w): return xs[0] * w + sum(x * 0 for x in xs[1:]) + xs[-1]",
        [
            "(xs, w): return xs[0] * w + xs[0]",
            "(xs, w): return xs[0] * w + xs[min(2, len(xs) - 1)]",
            "(xs, w): return xs[-1] * w + xs[0]",
            "(xs, w): return xs[0] * w + (xs[1] if len(xs) > 1 else 0)",
            "(xs, w):\n    xs[-1][:] = xs[0] * w + xs[-1]\n    return xs[-1]",
        ],
    ),
}


def verdict(mini: Mini) -> set[str]:
    return {str(result["verdict"]) for result in mini.run(code=None)["results"]}


@pytest.mark.parametrize("kind", OPS)
@pytest.mark.ci
def test_right_ones_pass_and_bugs_are_found(kind: str, tmp_path: Path) -> None:
    schema, dtypes, right, bugs = OPS[kind]
    mini = Mini(tmp_path / "ws")
    mini.write("gpuemu.toml", CONFIG.format(schema=schema, dtypes=dtypes))
    mini.write("ref.py", f"def f{right}\n")
    mini.write("op.py", f"def f{right}\n")
    assert verdict(mini) == {"passed"}
    mini.command("fuzz", "it", "--iterations", "40", "--seed", "3")
    for bug in bugs:
        mini.write("op.py", f"import numpy as np\ndef f{bug}\n")
        assert "passed" not in verdict(mini), bug
    mini.command("fuzz", "it", "--iterations", "40", "--seed", "3", code=1)


def test_another_kind_of_argument_is_another_op(tmp_path: Path) -> None:
    """The members are the same: only the way in which a call gets them differs."""
    mini = Mini(tmp_path / "ws")
    schema = 'inputs = { xs = { dims = ["N"], list = 2 } }\noutput = ["N"]'
    mini.write("gpuemu.toml", CONFIG.format(schema=schema, dtypes='["float32"]'))
    source = "def f(xs=None, **more):\n    return xs[0] - xs[1] if xs else more['xs.1'] * 2\n"
    mini.write("ref.py", source)
    mini.write("op.py", source + "# the op\n")
    assert verdict(mini) == {"passed"}
    before = mini.run()["tasks"]
    assert before["ran"] == 0
    plain = 'inputs = { "xs.0" = ["N"], "xs.1" = ["N"] }\noutput = ["N"]'
    mini.edit("gpuemu.toml", schema, plain)
    assert mini.run()["tasks"]["ran"] > 0
