"""The input of the rules: figures and findings of one kernel as plain data, without its PTX.

A view is made once per artifact and can be cached. Therefore, a kernel can be checked with a
changed limit without parsing its PTX again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, field
from typing import Any

from gpuemu_flow.artifacts.findings import PtxLocation, RuleFinding
from gpuemu_flow.artifacts.metrics import KernelMetrics
from gpuemu_flow.artifacts.ptx.model import LaunchBounds
from gpuemu_flow.quick_dataclass import dataclass

VIEW_VERSION = 2
"""Part of the cache key: raise it when a view's content changes for the same artifact."""


@dataclass(frozen=True)
class KernelView:
    """One kernel for one architecture.

    Attributes
    ----------
    name, file, arch : str
    metrics : KernelMetrics
    bounds : LaunchBounds
    place : PtxLocation
        The location of the kernel itself.
    has_ptx : bool
        False if only a cubin was given, so that rules for PTX found nothing to examine.
    target_options : tuple of str
        Words after the architecture in ``.target``, such as ``debug``.
    findings : dict of str to tuple of RuleFinding
        Findings in the PTX, by the id of the rule that made them.
    opcode_places, call_places : dict of str to PtxLocation
        The first instruction of each PTX opcode, and the first call of each function.
    unmet_bounds : str
        Message of ptxas about launch bounds that it ignored; empty if there is none.
    assembly : dict of str to str
        For each architecture, the assembler's error; empty if there was none.
    recursive : bool
        True if functions of the call tree call each other in a cycle; the stack then has no static
        bound.
    """

    name: str
    file: str
    arch: str
    metrics: KernelMetrics
    bounds: LaunchBounds = field(default_factory=LaunchBounds)
    place: PtxLocation = field(default_factory=PtxLocation)
    has_ptx: bool = True
    target_options: tuple[str, ...] = ()
    findings: Mapping[str, tuple[RuleFinding, ...]] = field(default_factory=dict)
    opcode_places: Mapping[str, PtxLocation] = field(default_factory=dict)
    call_places: Mapping[str, PtxLocation] = field(default_factory=dict)
    unmet_bounds: str = ""
    assembly: Mapping[str, str] = field(default_factory=dict)
    recursive: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON; `from_json` is its inverse."""
        return {"version": VIEW_VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> KernelView:
        """Make a view from the result of `to_json`.

        Raises
        ------
        KeyError, TypeError, ValueError
            For data of another form or version.
        """
        values = dict(data)
        if values.pop("version") != VIEW_VERSION:
            raise ValueError("a kernel view of another version")
        values["metrics"] = KernelMetrics.from_json(values["metrics"])
        values["bounds"] = LaunchBounds(**values["bounds"])
        values["place"] = PtxLocation(**values["place"])
        values["target_options"] = tuple(values["target_options"])
        values["findings"] = {
            rule: tuple(RuleFinding.from_json(item) for item in items)
            for rule, items in values["findings"].items()
        }
        for name in ("opcode_places", "call_places"):
            values[name] = {key: PtxLocation(**place) for key, place in values[name].items()}
        return cls(**values)
