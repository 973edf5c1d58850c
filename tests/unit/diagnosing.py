"""Arrays with errors planted in them, and findings looked up by their kind."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuemu_flow.model.types import Tolerance
from gpuemu_flow.numerics.finding import Finding

EXACT = Tolerance(0.0, 0.0)
CLOSE = Tolerance(1e-6, 1e-5)


def values(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def kinds(found: tuple[Finding, ...]) -> list[str]:
    return [finding.kind for finding in found]


def one(found: tuple[Finding, ...], kind: str) -> Finding:
    matching = [finding for finding in found if finding.kind == kind]
    assert matching, f"{kind} is not among {[f.sentence for f in found]}"
    return matching[0]


def with_zeroed(expected: np.ndarray, where: Any) -> np.ndarray:
    actual = expected.copy()
    actual[where] = 0
    return actual
