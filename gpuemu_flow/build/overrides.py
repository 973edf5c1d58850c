"""Changes that a command line makes to the configuration."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from gpuemu_flow.cases.schema import fixed_shapes_schema
from gpuemu_flow.config.model import Config, OpConfig


class Overrides(Struct, frozen=True):
    """Changes that a command line makes to the configuration."""

    seed: int | None = None
    draw_seed: bool = False
    ci: str = ""
    cases: int | None = None
    profile: str = ""
    settings: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    given: frozenset[str] = frozenset()

    @property
    def all_given(self) -> frozenset[str]:
        """Return the names of all options set by the command line, which targets cannot change."""
        own = {
            "seed": self.seed is not None or self.draw_seed,
            "cases": self.cases is not None,
            "profile": bool(self.profile),
        }
        keys = {f"config.{setting.partition('=')[0].strip()}" for setting in self.settings}
        return self.given | keys | {name for name, here in own.items() if here}


# Changes that a mode of ``[ci]`` makes to the ops' cases.


class Sampling(Struct, frozen=True):
    """Changes that a mode of ``[ci]`` makes to the ops' cases."""

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
