"""The few cases of an op that stand for all of them where its traits are found out."""

from __future__ import annotations

from collections.abc import Sequence

from gpuemu_flow.types import Case

SAMPLED = 8  # cases among which `sample_cases` chooses


def sample_cases(cases: Sequence[Case]) -> list[Case]:
    """Return cases on whose shapes an op's traits show: the largest of its first eight.

    Tiny shapes tell little (a softmax over one element is exact), and more cases than these must
    not change the verdict on any.
    """
    return sorted(cases[:SAMPLED], key=lambda case: (-case.numel, case.index))[:4]
