"""Changes that a mode of ``[ci]`` makes to the ops' cases."""

from __future__ import annotations

from msgspec.structs import replace

from gpuemu_flow.cases.schema import fixed_shapes_schema
from gpuemu_flow.config.model import Config, OpConfig
from gpuemu_flow.quick_dataclass import dataclass


@dataclass(frozen=True)
class Sampling:
    """Changes that a mode of ``[ci]`` makes to the ops' cases.

    Attributes
    ----------
    cases : int or None
        Number of cases per op and dtype; None for each op's own number.
    shapes : tuple of shape
        Shapes for ops without a schema; empty for each op's own shapes.
    seed : int or None
        Master seed; 0 to draw a random one, None for the seed of ``[validation]``.
    """

    cases: int | None = None
    shapes: tuple[tuple[int, ...], ...] = ()
    seed: int | None = None

    def of(self, op: OpConfig) -> OpConfig:
        """Return a copy of an op in which `cases` and `shapes` replace the op's own settings.

        The op keeps its shapes if it has a schema.
        """
        schema = op.schema
        if self.shapes and not op.has_schema:
            schema = fixed_shapes_schema(op.input_names, self.shapes)
        return replace(op, cases=self.cases or op.cases, schema=schema)


def samplings(config: Config) -> dict[str, Sampling]:
    """Return, by mode of ``[ci]``, the changes that the mode makes to the ops' cases.

    A mode that changes nothing is left out.
    """
    ci = config.ci
    found = {
        "quick": Sampling(ci.quick_fuzz_iterations, ci.quick_shapes, ci.seed),
        "thorough": Sampling(ci.fuzz_iterations, seed=ci.seed),
    }
    return {mode: sampling for mode, sampling in found.items() if sampling != Sampling()}
