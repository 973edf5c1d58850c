"""Right kernels on inputs that nobody chose: no check finds anything, and the values are right."""

from __future__ import annotations

import os

import pytest
from emulator_false_alarms import run

CASES = int(os.environ.get("EMULATOR_CASES", "150"))
"""Number of launches; the full count is ``EMULATOR_CASES=10000``."""


@pytest.mark.ci
def test_right_kernels_give_no_alarm() -> None:
    tally = run(CASES, seed=7, seconds=36_000)
    assert tally.alarms == []
    assert tally.count == CASES
    assert len(tally.cases) > 40
