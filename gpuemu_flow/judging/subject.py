"""An op under test: its two programs, and the settings of the comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

import msgspec

from gpuemu_flow.judging.params import CompareParams
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.runners.api import Program
from gpuemu_flow.types import Case, Json


@dataclass(frozen=True)
class Subject:
    """An op under test, with its programs and the settings by which its outputs are judged."""

    name: str
    dtype: str
    op: Program
    reference: Program
    compare: CompareParams
    samples: Sequence[Case]
    reference_dtype: str | None = None
    generators: Mapping[str, Program] = field(default_factory=dict)

    def program(self, who: str) -> Program:
        """Return the program of a role: ``op``, ``reference`` or ``generator``.

        If there are several generators, the first is returned: callers need only its environment,
        and all generators have the same.
        """
        if who == "generator":
            return next(iter(self.generators.values()))
        return self.op if who == "op" else self.reference

    def to_json(self) -> dict[str, Json]:
        """Return the subject, without name and dtype, as plain JSON for a failure's record."""
        return {
            "op": msgspec.to_builtins(self.op),
            "reference": msgspec.to_builtins(self.reference),
            "reference_dtype": self.reference_dtype,
            "compare": self.compare.to_json(),
            "samples": [case.to_json() for case in self.samples],
            "generators": {
                label: msgspec.to_builtins(made) for label, made in self.generators.items()
            },
        }

    @classmethod
    def from_json(cls, name: str, case: Case, data: Mapping[str, Json]) -> Subject:
        """Rebuild a subject from the result of `to_json`; `case` replaces missing samples."""
        return cls(
            name,
            case.dtype,
            msgspec.convert(data["op"], Program),
            msgspec.convert(data["reference"], Program),
            CompareParams.from_json(data["compare"]),
            [Case.from_json(sample) for sample in data.get("samples", ())] or [case],
            data["reference_dtype"],
            {
                label: msgspec.convert(made, Program)
                for label, made in data.get("generators", {}).items()
            },
        )
