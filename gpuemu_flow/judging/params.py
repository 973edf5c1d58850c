"""The ``compare`` part of an op's configuration, as a type: settings for judging its outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from gpuemu_flow.numerics.contract import OutputContract
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import PRECISIONS, Json, listed

CONFIGURED = "gpuemu.toml"


@dataclass(frozen=True)
class CompareParams:
    """Settings of the comparison; see `config.slices.to_slice` for their canonical form."""

    tolerance: str
    tolerances: Mapping[str, Mapping[str, float]]
    precision: str = PRECISIONS[0]
    nan_policy: str = "match"
    inf_policy: str = "match"
    invariants: tuple[str, ...] = ()
    shape_preserved_input: str | None = None
    mutates: tuple[str, ...] = ()
    deterministic: bool = True
    reference_dtype: str | None = None
    outputs: tuple[OutputContract, ...] = ()
    input_dims: Mapping[str, list[str | int]] = field(default_factory=dict)
    gradients: tuple[str, ...] = ()
    tolerances_from: str = CONFIGURED

    def to_json(self) -> dict[str, Json]:
        """Return the settings as plain JSON; `from_json` is the inverse."""
        lists = {"invariants": list(self.invariants), "mutates": list(self.mutates)}
        tolerances = {dtype: dict(explicit) for dtype, explicit in self.tolerances.items()}
        outputs = [listed(contract.to_json()) for contract in self.outputs]
        data = {**vars(self), **lists, "tolerances": tolerances, "outputs": outputs}
        gradients = list(data.pop("gradients"))
        if self.tolerances_from == CONFIGURED:
            del data["tolerances_from"]
        return {**data, "gradients": gradients} if gradients else data

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> CompareParams:
        """Rebuild the settings from the result of `to_json`, or raise TypeError."""
        given = cls(**data)
        outputs = tuple(OutputContract.from_json(contract) for contract in data.get("outputs", ()))
        return replace(
            given,
            invariants=tuple(given.invariants),
            mutates=tuple(given.mutates),
            outputs=outputs,
            gradients=tuple(given.gradients),
        )
