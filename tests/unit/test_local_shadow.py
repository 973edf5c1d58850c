"""Functions of this process have shadows: copies that compute in float32, or round on the way."""

from __future__ import annotations

import functools
import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuemu_flow.frameworks.local import OPERANDS, SHADOW, STEPS, Versions, compare, reference_of
from gpuemu_flow.frameworks.seeded import widened
from gpuemu_flow.numerics.operand import Rounding, rounding_to

HELPERS = """
import numpy as np
from numpy import float64

WIDE = np.float64


def total(x):
    return x.astype(float64).sum(-1, keepdims=True)


def product(a, b):
    return a.astype(WIDE) @ b.astype(WIDE)
"""
MAIN = """
import numpy as np
import shadowed_helpers
from shadowed_helpers import total

WEIGHTS = np.linspace(0.0, 1.0, 8)
calls = 0


def mean(x):
    return total(x) / np.float64(x.shape[-1])


def scaled(x):
    global calls
    calls += 1
    return x.astype(np.float64) * WEIGHTS


def twice(x):
    def inner(y):
        return y.astype("float64") * 2
    return inner(x)


def through_module(a, b):
    return shadowed_helpers.product(a, b)


def factorial(n, x):
    return x.astype(np.float64) if n <= 1 else x * n * factorial(n - 1, x)


first, second = (lambda x: x.astype(np.float64) + 1), (lambda x: x.astype(np.float64) + 2)


def checked(x):
    assert x.ndim
    return x.astype(np.float64) * 3
"""


@pytest.fixture
def main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "shadowed_helpers.py").write_text(HELPERS)
    (tmp_path / "shadowed_main.py").write_text(MAIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("shadowed_main")
    for name in ("shadowed_main", "shadowed_helpers"):
        sys.modules.pop(name, None)


X = np.linspace(-1, 1, 8, dtype=np.float32)


@pytest.mark.parametrize("name", ["mean", "scaled", "twice", "first", "second", "checked"])
def test_a_shadow_computes_in_float32_and_the_same(main: Any, name: str) -> None:
    function = getattr(main, name)
    assert function(X).dtype == np.float64
    found = Versions(function).version(SHADOW)(X)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, function(X), rtol=1e-6)


def test_modules_stay_as_they_are(main: Any) -> None:
    before = dict(vars(main))
    Versions(main.scaled).version(SHADOW)(X)
    assert main.calls == 0, "the copy counts for itself"
    assert all(vars(main)[name] is value for name, value in before.items())


def test_what_a_function_reaches(main: Any) -> None:
    a, b = np.ones((2, 3), np.float32), np.full((3, 2), 1 / 3, np.float32)
    assert Versions(main.through_module).version(SHADOW)(a, b).dtype == np.float32
    assert Versions(main.factorial).version(SHADOW)(4, X).dtype == np.float32
    third = functools.partial(main.factorial, 3)
    assert Versions(third).version(SHADOW)(X).dtype == np.float32
    weights = np.ones(8)  # float64, in a closure
    assert Versions(lambda x: x * weights).version(SHADOW)(X).dtype == np.float32


def test_operands_are_rounded_where_they_are_multiplied(main: Any) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((4, 4)).astype(np.float32) for _ in range(2))
    rounded = Versions(main.through_module).version(OPERANDS)
    with rounding_to(Rounding("float16")):
        found = rounded(a, b)
    half = [m.astype(np.float16).astype(np.float32) for m in (a, b)]
    np.testing.assert_allclose(found, half[0] @ half[1], rtol=1e-5, atol=1e-6)


def test_what_has_no_source_stands_for_itself(main: Any) -> None:
    assert Versions(np.exp).version(STEPS) is np.exp
    made: dict[str, Any] = {}
    exec("def unseen(x): return x * 2", made)
    assert not Versions(made["unseen"]).rewritten(STEPS)
    assert Versions(main.twice).rewritten(STEPS)


def test_edited_source_is_not_mistaken_for_what_runs(main: Any, tmp_path: Path) -> None:
    (tmp_path / "shadowed_main.py").write_text(MAIN.replace("* 2", "* 200"))
    np.testing.assert_array_equal(Versions(main.twice).version(SHADOW)(X), X * 2)


def judged(op: Any, reference: Any, **options: Any) -> Any:
    rng = np.random.default_rng(4)
    inputs = {"a": rng.standard_normal((32, 300)).astype(np.float32) + 50}
    asked = reference_of(reference, lambda function, arrays: function(**arrays))
    return compare(
        op(**inputs), reference(**widened(inputs)), inputs=inputs, reference=asked, **options
    )


def test_a_maximum_that_cancels_is_excused_by_the_shadow() -> None:
    """Of errors that the result does not depend on, only float32 arithmetic tells."""

    def reference(a: Any) -> Any:
        a = a.astype(np.float64)
        return (a * a).mean(-1) - a.mean(-1) ** 2

    def op(a: Any) -> Any:
        return (a * a).mean(-1, dtype=np.float32) - a.mean(-1, dtype=np.float32) ** 2

    assert judged(op, reference).passed
    assert not judged(lambda a: op(a) * np.float32(1.5), reference).passed


def test_what_may_be_rounded_is_the_callers_to_say() -> None:
    def reference(a: Any) -> Any:
        return np.exp(-a) / (1 + np.exp(-a)) * a

    rng = np.random.default_rng(4)
    inputs = {"a": rng.standard_normal((64, 64)).astype(np.float16)}
    asked = reference_of(reference, lambda function, arrays: function(**arrays))
    expected = reference(**widened(inputs))
    right, off = reference(**inputs), (expected * 1.02).astype(np.float16)
    verdicts = {
        precision: [
            compare(made, expected, inputs=inputs, reference=asked, precision=precision).verdict
            for made in (right, off)
        ]
        for precision in ("input", "tensor-core", "float32")
    }
    assert verdicts["input"] == ["passed", "failed"]
    assert verdicts["tensor-core"] == verdicts["float32"] == ["failed", "failed"]
