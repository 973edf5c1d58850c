"""The few cases from which an op's properties, such as exactness, are found."""

from __future__ import annotations

from collections.abc import Sequence

from gpuemu_flow.cases.op_schema import OpSchema
from gpuemu_flow.cases.plan import plan_cases
from gpuemu_flow.types import Case

SAMPLED = 8  # cases among which `sample_cases` chooses


def op_samples(
    schema: OpSchema,
    *,
    seed: int,
    dtype: str,
    strategies: Sequence[str],
    layouts: Sequence[str],
) -> list[Case]:
    """Return the cases from which an op's properties, such as exactness, are found."""
    cases = plan_cases(
        schema, seed=seed, dtype=dtype, count=SAMPLED, strategies=strategies, layouts=layouts
    )
    return sample_cases(cases)


def sample_cases(cases: Sequence[Case]) -> list[Case]:
    """Select cases whose shapes show an op's properties: the four largest of the first eight cases.

    Tiny shapes tell little (a softmax over one element is exact). A longer plan gives the same
    samples, so that it does not change the verdict on any case.
    """
    return sorted(cases[:SAMPLED], key=lambda case: (-case.numel, case.index))[:4]
