"""Count the known answers in the tests of instructions, without running them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import known_answers
import pytest
import test_known_conversions
import test_known_floats
import test_known_integers
import test_known_small

MODULES = (test_known_floats, test_known_conversions, test_known_integers, test_known_small)


def calls(module: ModuleType) -> Iterator[tuple[Any, dict[str, Any]]]:
    """List each test of a module with each of its sets of arguments."""
    for name, function in vars(module).items():
        if not name.startswith("test_"):
            continue
        tables = []
        for mark in getattr(function, "pytestmark", []):
            names, values = mark.args
            names = (names,) if isinstance(names, str) else tuple(names)
            rows = [v if len(names) > 1 else (v,) for v in values]
            tables.append([dict(zip(names, row, strict=True)) for row in rows])
        for chosen in itertools.product(*tables):
            yield function, {k: v for table in chosen for k, v in table.items()}


def test_there_are_thousands_of_known_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_answers, "counting", True)
    monkeypatch.setattr(known_answers, "ANSWERS", known_answers.Counter())
    for module in MODULES:
        for function, arguments in calls(module):
            try:
                function(**arguments)
            except pytest.skip.Exception:
                continue
    answers = known_answers.ANSWERS
    print(f"{answers.total():,} answers of {len(answers)} instructions")
    assert answers.total() >= 50_000
    assert len(answers) >= 250
