"""Parse Python sources, one at a time."""

from __future__ import annotations

import ast
from contextlib import suppress
from threading import Lock

_ONE_AT_A_TIME = Lock()
_MOST_ATTEMPTS = 100


def parse_python(source: str | bytes, filename: str = "<unknown>") -> ast.Module:
    """Return the syntax tree of a Python source.

    Raises SyntaxError, ValueError, RecursionError, MemoryError: The source does not parse.

    CPython keeps the recursion depth of the tree's construction per interpreter, not per thread,
    up to and including some 3.11 and 3.12 releases (python/cpython issue 106905): two threads that
    parse at once can get a SystemError for a correct source. The daemon parses in many threads,
    which take turns by a lock. Threads of a client's own program may parse without this lock, so a
    source that causes a SystemError is parsed again.
    """
    for _ in range(_MOST_ATTEMPTS):
        with _ONE_AT_A_TIME, suppress(SystemError):
            return ast.parse(source, filename)
    return ast.parse(source, filename)
