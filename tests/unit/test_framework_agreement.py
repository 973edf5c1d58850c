"""The outcome of a framework's check for outputs that agree, that differ, and without elements."""

from __future__ import annotations

import numpy as np

from gpuemu_flow.frameworks.base import agree

FULL, EMPTY = np.ones((2, 3)), np.ones((0, 3))


def test_outputs_that_agree_and_that_differ() -> None:
    assert agree([FULL], [FULL], 0, 0, "jit")
    assert not agree([FULL], [FULL + 1], 0, 0, "jit")
    assert agree([FULL, EMPTY], [FULL, EMPTY], 0, 0, "jit")


def test_nothing_compared_is_no_pass() -> None:
    for outputs in ([EMPTY], [EMPTY, EMPTY], []):
        found = agree(outputs, outputs, 0, 0, "jit")
        assert not found
        assert "no verdict" in found.message
