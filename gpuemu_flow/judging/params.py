"""How outputs of an op are judged: its ``compare`` part of the configuration, as a type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuemu_flow.types import PRECISIONS, Json


@dataclass(frozen=True)
class CompareParams:
    """How outputs are judged; see `config.slices.to_slice`, which says it in canonical form.

    Attributes
    ----------
    tolerance : str
        ``auto`` or ``table``, for dtypes without an explicit tolerance.
    tolerances : mapping of dtype name to mapping
        Explicit ones: ``atol`` and ``rtol``.
    precision : str
        One of `types.PRECISIONS`.
    nan_policy, inf_policy : str
    invariants : sequence of str
    shape_preserved_input : str or None
    mutates : sequence of str
        Inputs that the op may change.
    deterministic : bool
    reference_dtype : str or None
        The dtype that the reference is asked for; None means float64 where it can.
    """

    tolerance: str
    tolerances: Mapping[str, Mapping[str, float]]
    precision: str = PRECISIONS[0]
    nan_policy: str = "match"
    inf_policy: str = "match"
    invariants: Sequence[str] = ()
    shape_preserved_input: str | None = None
    mutates: Sequence[str] = ()
    deterministic: bool = True
    reference_dtype: str | None = None

    def to_json(self) -> dict[str, Json]:
        """As plain JSON; `from_json` is its inverse."""
        lists = {"invariants": list(self.invariants), "mutates": list(self.mutates)}
        tolerances = {dtype: dict(explicit) for dtype, explicit in self.tolerances.items()}
        return {**vars(self), **lists, "tolerances": tolerances}

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> CompareParams:
        """Rebuild from `to_json`'s form; TypeError when it is not that."""
        return cls(**data)
