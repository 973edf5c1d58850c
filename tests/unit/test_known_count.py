"""Count the known answers in the tests of instructions, without running them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType

import known_answers
import pytest
import test_known_conversions
import test_known_floats
import test_known_integers
import test_known_small

MODULES = (test_known_floats, test_known_conversions, test_known_integers, test_known_small)


def all_of(module: ModuleType) -> Iterator[Callable[[], None]]:
    """List the tests of a module."""
    for name, function in vars(module).items():
        if name.startswith("test_"):
            yield function


def test_there_are_thousands_of_known_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_answers, "counting", True)
    monkeypatch.setattr(known_answers, "ANSWERS", known_answers.Counter())
    for module in MODULES:
        for test in all_of(module):
            test()
    answers = known_answers.ANSWERS
    print(f"{answers.total():,} answers of {len(answers)} instructions")
    assert answers.total() >= 50_000
    assert len(answers) >= 250
