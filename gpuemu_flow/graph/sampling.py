"""The cases that a mode of ``[ci]`` makes in place of those that the ops ask for."""

from __future__ import annotations

from dataclasses import replace

from gpuemu_flow.cases.schema import fixed_shapes_schema
from gpuemu_flow.config.model import Config, OpConfig
from gpuemu_flow.quick_dataclass import dataclass


@dataclass(frozen=True)
class Sampling:
    """The cases made by a mode of ``[ci]`` in place of those that the ops ask for.

    Attributes
    ----------
    cases : int or None
        Number of cases per op and dtype; None leaves each op its own number.
    shapes : tuple of shape
        Shapes for ops without a schema; if empty, they keep their own.
    seed : int or None
        Master seed; 0 draws one, None uses that of ``[validation]``.
    """

    cases: int | None = None
    shapes: tuple[tuple[int, ...], ...] = ()
    seed: int | None = None

    def of(self, op: OpConfig) -> OpConfig:
        """Return the op with this sampling applied."""
        schema = op.schema
        if self.shapes and not op.has_schema:
            schema = fixed_shapes_schema(op.input_names, self.shapes)
        return replace(op, cases=self.cases or op.cases, schema=schema)


def samplings(config: Config) -> dict[str, Sampling]:
    """Map each value of `Overrides.ci` that changes the cases to its sampling."""
    ci = config.ci
    found = {
        "quick": Sampling(ci.quick_fuzz_iterations, ci.quick_shapes, ci.seed),
        "thorough": Sampling(ci.fuzz_iterations, seed=ci.seed),
    }
    return {mode: sampling for mode, sampling in found.items() if sampling != Sampling()}
