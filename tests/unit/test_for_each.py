"""A table as one test: all rows are tried, and those that fail are told."""

from __future__ import annotations

import pytest
from for_each import for_each


def test_rows_that_fail_are_told_and_the_others_tried(capsys: pytest.CaptureFixture[str]) -> None:
    tried = []

    @for_each("sign", "ab")
    @for_each(("x", "y"), [(1, 1), (1, 2), (3, 3), (3, 4)])
    def equal(x: int, y: int, sign: str) -> None:
        tried.append((sign, x, y))
        assert x == y, f"{x} is not {y}"

    with pytest.raises(AssertionError, match="1 is not 2"):
        equal()
    assert len(tried) == 8
    told = [line for line in capsys.readouterr().out.splitlines() if "sign" not in line]
    assert told == 2 * ["fails with x = 1, y = 2", "fails with x = 3, y = 4"]
