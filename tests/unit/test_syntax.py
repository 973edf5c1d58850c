"""Python sources are parsed correctly from many threads at once."""

from __future__ import annotations

import ast
import gc
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event

import pytest

from gpuemu_flow.model.syntax import parse_python

THREADS = 8
SOURCE = "def f(x):\n    return " + " + ".join(["(x, [x, {x: (x,)}])"] * 50) + "\n"


class Finalised:
    """Garbage whose collection, in the middle of a parse, lets another thread run."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        time.sleep(0.001)


def parse_among_garbage(source: str) -> str:
    for _ in range(20):
        Finalised()
    return ast.dump(parse_python(source))


def parse_by_themselves(stop: Event) -> None:
    """Parse as a client's own program may do, which knows of no lock."""
    while not stop.is_set():
        for _ in range(20):
            Finalised()
        with suppress(SystemError):
            ast.parse(SOURCE)


@pytest.mark.parametrize(("others", "count"), [(0, 60), (2, 12)])
def test_threads_parse_at_once(others: int, count: int) -> None:
    expected = ast.dump(ast.parse(SOURCE))
    gc.collect()
    before, stop = gc.get_threshold(), Event()
    gc.set_threshold(700, 1, 1)
    try:
        with ThreadPoolExecutor(THREADS + others) as threads:
            for _ in range(others):
                threads.submit(parse_by_themselves, stop)
            found = list(threads.map(parse_among_garbage, [SOURCE] * count))
            stop.set()
    finally:
        stop.set()
        gc.set_threshold(*before)
    assert found == [expected] * count


def test_a_source_that_does_not_parse_is_reported() -> None:
    with pytest.raises(SyntaxError):
        parse_python("def", "op.py")
