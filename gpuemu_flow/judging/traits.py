"""Traits of an op that are found once, by evaluating its reference on a few plain inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuemu_flow.judging.plain_inputs import plain_inputs
from gpuemu_flow.numerics.contracts import PairedReference
from gpuemu_flow.numerics.envelope import exact_outputs_of, is_exact_op, shadow_is_faithful
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import Case


@dataclass(frozen=True)
class OpTraits:
    """Traits of an op on which the ``auto`` tolerance depends.

    Attributes
    ----------
    exact : bool
        True if the reference computes without rounding: copies, comparisons, selections.
    weak : bool
        True if the reference cannot be evaluated in float32 arithmetic.
    exact_outputs : sequence of str
        Outputs that the reference computes without rounding, if it rounds other outputs.
    """

    exact: bool
    weak: bool
    exact_outputs: Sequence[str] = ()


def find_traits(reference: Any, samples: Sequence[Case]) -> OpTraits:
    """Find an op's traits by evaluating its reference on inputs of the samples' shapes.

    The samples' own values are replaced by ordinary ones; see `plain_inputs`.

    Parameters
    ----------
    reference : judge.Reference
    samples : sequence of Case
        See `cases.plan`.
    """
    inputs = [plain_inputs(case) for case in samples]
    evaluate = PairedReference(reference)
    exact = is_exact_op(evaluate, inputs)
    shadowed = evaluate.has_source and (exact or shadow_is_faithful(evaluate, inputs))
    outputs = exact_outputs_of(evaluate, inputs) if shadowed and not exact else []
    return OpTraits(exact, weak=not shadowed, exact_outputs=outputs)
