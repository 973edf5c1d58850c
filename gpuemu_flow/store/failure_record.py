"""One failing case as data: its op and inputs, its result, and its provenance."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import datetime, timezone

from msgspec import Struct, field, to_builtins

from gpuemu_flow.model.types import (
    Case,
    CheckResult,
    Json,
    Shape,
    number_from_json,
    number_to_json,
)
from gpuemu_flow.store.keys import digest_json

SOURCES = ("run", "fuzz", "minimize", "daemon", "pytest")
GENERATED = ("run", "fuzz")
"""Sources for which the case alone determines the inputs."""

SUBMITTED = "submitted"
"""Kind of a program whose outputs a client or a test submitted."""
VERSION = 1
_NUMBERS = ("max_abs", "max_rel", "max_ulp", "expected", "actual")


class FailureRecord(Struct, frozen=True):
    """One failing case, with everything that is needed to run, shrink and export it."""

    op: str
    seed: int
    dtype: str
    shape: Shape
    shapes: Mapping[str, Shape]
    layout: str
    strategy: str
    target: str | None
    kind: str
    message: str
    max_abs: float
    max_rel: float
    max_ulp: float
    index: Shape | None
    expected: float | None
    actual: float | None
    verdict: str
    source: str
    case: Json
    result: Json
    layouts: Mapping[str, str]
    cause: str = ""
    inputs: str = ""
    provenance: Json = None
    environment: Mapping[str, str] = field(default_factory=dict)
    time: str = ""
    minimized: str | None = None
    minimized_from: str | None = None
    id: str = ""
    inputs_dropped: bool = False
    mended: bool = False
    intermittent: bool = False

    @classmethod
    def of(
        cls,
        op: str,
        case: Case,
        result: CheckResult,
        *,
        source: str,
        provenance: Json = None,
        environment: Mapping[str, str] | None = None,
        cause: str = "",
        minimized_from: str | None = None,
    ) -> FailureRecord:
        """Make the record of a case that did not pass, with the present time.

        Raises ValueError: `source` is not in `SOURCES`.
        """
        if source not in SOURCES:
            raise ValueError(f"there is no source {source!r}")
        first = result.failures[0] if result.failures else None
        stats = result.stats
        index = first.index if first is not None else None
        return cls(
            op=op,
            seed=case.seed,
            dtype=case.dtype,
            shape=case.inputs[0].shape if case.inputs else (),
            shapes={spec.name: spec.shape for spec in case.inputs},
            layout=case.layout,
            strategy=case.strategy,
            target=case.target,
            kind=first.kind.value if first is not None else "",
            message=first.message if first is not None else "",
            max_abs=stats.max_abs,
            max_rel=stats.max_rel,
            max_ulp=stats.max_ulp,
            index=stats.worst_index if index is None else index,
            expected=first.expected if first is not None else None,
            actual=first.actual if first is not None else None,
            verdict=result.verdict.value,
            source=source,
            case=case.to_json(),
            result=result.to_json(),
            layouts={spec.name: spec.layout for spec in case.inputs},
            cause=cause,
            provenance=provenance,
            environment=dict(environment or {}),
            time=now(),
            minimized_from=minimized_from,
        )

    @property
    def reproduce(self) -> str:
        """Return the command that runs this case again, quoted for a shell.

        An op that only a client runs cannot be run by us: then it gives the client the inputs.
        """
        op = (self.provenance or {}).get("op")
        if isinstance(op, Mapping) and op.get("kind") == SUBMITTED and self.id:
            line = f"import gpuemu_flow; print(gpuemu_flow.Client().reproduce({self.id!r}).inputs)"
            return f"python -c {shlex.quote(line)}"
        if self.source not in GENERATED and self.id:
            return f"gpuemu-flow reproduce {self.id}"
        words = [str(self.seed), "--op", self.op, "--case", Case.from_json(self.case).to_text()]
        return f"gpuemu-flow reproduce {shlex.join(words)}"

    def identity(self) -> str:
        """Return a sha256 of op, case and kind, by which the same failure is recognized later.

        Inputs that the case does not determine are part of the digest, too: a shrunk case has the
        seed of its original, and clients may send any inputs.
        """
        case = Case.from_json(self.case).identity()
        own = "" if self.source in GENERATED else self.inputs
        return digest_json([self.op, case, self.kind, own])

    def to_json(self) -> dict[str, Json]:
        """Return plain JSON, non-finite numbers as strings; `from_json` is its inverse."""
        out = {"version": VERSION, **to_builtins(self)}
        out["shape"] = list(self.shape)
        out["shapes"] = {name: list(shape) for name, shape in self.shapes.items()}
        out["index"] = None if self.index is None else list(self.index)
        out.update({name: number_to_json(out[name]) for name in _NUMBERS})
        if not self.intermittent:  # earlier versions refuse records with names that they lack
            del out["intermittent"]
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> FailureRecord:
        """Rebuild from `to_json`'s result, or raise KeyError, TypeError or ValueError."""
        values = dict(data)
        if values.pop("version") != VERSION:
            raise ValueError("a failure record of another version")
        if "maker" in values:  # its name in records of earlier versions
            values["provenance"] = values.pop("maker")
        values["shape"] = tuple(values["shape"])
        values["shapes"] = {name: tuple(shape) for name, shape in values["shapes"].items()}
        values["index"] = None if values["index"] is None else tuple(values["index"])
        values.update({name: number_from_json(values[name]) for name in _NUMBERS})
        return cls(**values)

    def to_public_json(self) -> dict[str, Json]:
        """Return the JSON that commands print, without inputs, configuration and paths."""
        inner = (
            "version", "case", "result", "inputs", "inputs_dropped", "provenance", "environment",
            "mended", "intermittent",
        )  # fmt: skip
        out = {name: value for name, value in self.to_json().items() if name not in inner}
        return {**out, "seed_str": str(self.seed), "reproduce": self.reproduce}


def now() -> str:
    """Return the present time in the format of records, which sorts as text."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
