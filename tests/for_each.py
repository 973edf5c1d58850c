"""Tables of small cases as one test: `pytest.mark.parametrize` makes an item of each row, and an
item costs more than most rows."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

Test = Callable[..., None]


def for_each(names: str | tuple[str, ...], rows: Iterable[Any]) -> Callable[[Test], Test]:
    """Call a test for each row of a table, with the same fixtures.

    Takes what `pytest.mark.parametrize` takes. All rows are tried; those that fail are printed,
    and the first one's error is raised.
    """
    given = names if isinstance(names, tuple) else (names,)
    table = [dict(zip(given, row if len(given) > 1 else (row,), strict=True)) for row in rows]
    assert table

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def each(**fixtures: Any) -> None:
            __tracebackhide__ = True
            first: BaseException | None = None
            for row in table:
                try:
                    test(**fixtures, **row)
                except Exception as error:
                    print("fails with", ", ".join(f"{k} = {v!r}" for k, v in row.items()))
                    first = first or error
            if first is not None:
                raise first

        signature = inspect.signature(test)
        kept = [p for name, p in signature.parameters.items() if name not in given]
        each.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return each

    return decorate
