"""Python sources are parsed correctly from many threads at once."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpuemu_flow.syntax import parse_python

THREADS = 8


@pytest.fixture
def eager_switching() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_switching")
def test_threads_parse_at_once() -> None:
    source = "def f(x):\n    return " + " + ".join(["(x, [x, {x: (x,)}])"] * 50) + "\n"
    expected = ast.dump(ast.parse(source))
    with ThreadPoolExecutor(THREADS) as threads:
        trees = list(threads.map(parse_python, [source] * 200))
    assert all(ast.dump(tree) == expected for tree in trees)


def test_a_source_that_does_not_parse_is_reported() -> None:
    with pytest.raises(SyntaxError):
        parse_python("def", "op.py")
