"""Parse Python sources, one at a time."""

from __future__ import annotations

import ast
from threading import Lock

_ONE_AT_A_TIME = Lock()


def parse_python(source: str | bytes, filename: str = "<unknown>") -> ast.Module:
    """Return the syntax tree of a Python source.

    Raises
    ------
    SyntaxError, ValueError, RecursionError, MemoryError
        The source does not parse.

    Notes
    -----
    CPython keeps the recursion depth of the tree's construction per interpreter, not per thread,
    up to and including some 3.11 and 3.12 releases (python/cpython issue 106905): two threads that
    parse at once can get a SystemError for a correct source. The daemon parses in many threads.
    """
    with _ONE_AT_A_TIME:
        return ast.parse(source, filename)
