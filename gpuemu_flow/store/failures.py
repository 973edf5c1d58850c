"""Failing cases, kept with their exact inputs until they are deleted: found by id, seed or op."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone

from gpuemu_flow.errors import Problem, UsageError
from gpuemu_flow.store.keys import digest_bytes, digest_json
from gpuemu_flow.store.workspace_cache import WorkspaceCache
from gpuemu_flow.types import (
    Case,
    CheckResult,
    Json,
    Shape,
    number_from_json,
    number_to_json,
)

SOURCES = ("run", "fuzz", "minimize", "daemon", "pytest")
GENERATED = ("run", "fuzz")
"""Sources whose inputs follow from the case alone."""

ID_LENGTH = 12
VERSION = 1
_NUMBERS = ("max_abs", "max_rel", "max_ulp", "expected", "actual")
_LARGEST_ROUNDED = 1 << 65  # JavaScript writes 2**64 as 18446744073709552000, which is above it
_SAFE_INTEGER = 1 << 53  # IEEE doubles, which JavaScript reads JSON numbers as, are exact up to it


@dataclass(frozen=True)
class FailureRecord:
    """One failing case and all that is needed to run, shrink and export it again.

    Attributes
    ----------
    op : str
    seed : int
        The case's own seed, u64.
    dtype, layout, strategy : str
        Of the case as a whole.
    shape : tuple of int
        Of the first input.
    shapes : mapping of str to tuple of int
        Of every input.
    target : str or None
        Input that layout and strategy apply to; None = all of them.
    kind, message : str
        Of the first failure; see `types.FailureKind`.
    max_abs, max_rel, max_ulp : float
    index : tuple of int or None
        Worst or first element.
    expected, actual : float or None
        Values there.
    cause : str
        What it is grouped under; empty when not analysed.
    verdict : str
        ``failed`` or ``error``.
    source : str
        One of `SOURCES`.
    case, result : JSON
        `types.Case.to_json` and `types.CheckResult.to_json`.
    inputs : str
        sha256 of the safetensors blob with the inputs' values in C order; filled in by the store.
    layouts : mapping of str to str
        How each input lies in memory, in the op's order of inputs.
    maker : JSON
        What made the outputs: ``op`` and ``reference`` (programs) and ``compare`` (the slice of the
        configuration).
    environment : mapping of str to str
    time : str
        When it was last seen: UTC, ISO 8601 with microseconds.
    minimized, minimized_from : str or None
        Ids of the shrunk case of this one, and of the case that this one was shrunk from.
    id : str
        Short hex; filled in by the store.
    """

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
    maker: Json = None
    environment: Mapping[str, str] = field(default_factory=dict)
    time: str = ""
    minimized: str | None = None
    minimized_from: str | None = None
    id: str = ""

    @classmethod
    def of(
        cls,
        op: str,
        case: Case,
        result: CheckResult,
        *,
        source: str,
        maker: Json = None,
        environment: Mapping[str, str] | None = None,
        cause: str = "",
        minimized_from: str | None = None,
    ) -> FailureRecord:
        """The record of a case that did not pass, as of now.

        Raises
        ------
        ValueError
            `source` is none of `SOURCES`.
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
            maker=maker,
            environment=dict(environment or {}),
            time=now(),
            minimized_from=minimized_from,
        )

    @property
    def reproduce(self) -> str:
        """The command that runs this very case again, quoted for a shell."""
        if self.source not in GENERATED and self.id:
            return f"gpuemu-flow reproduce {self.id}"
        return f"gpuemu-flow reproduce {self.seed} --op {shlex.quote(self.op)}"

    def identity(self) -> str:
        """sha256 over op, case and kind: equal for one failure seen twice, and only then.

        The inputs are part of it where they do not follow from the case: a shrunk case has its
        original's seed, and clients send what they like.
        """
        case = Case.from_json(self.case).identity()
        own = "" if self.source in GENERATED else self.inputs
        return digest_json([self.op, case, self.kind, own])

    def to_json(self) -> dict[str, Json]:
        """As plain JSON, non-finite numbers as strings; `from_json` is its inverse."""
        out = {"version": VERSION, **asdict(self)}
        out["shape"] = list(self.shape)
        out["shapes"] = {name: list(shape) for name, shape in self.shapes.items()}
        out["index"] = None if self.index is None else list(self.index)
        out.update({name: number_to_json(out[name]) for name in _NUMBERS})
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> FailureRecord:
        """Rebuild from `to_json`'s form; KeyError, TypeError or ValueError when it is not that."""
        values = dict(data)
        if values.pop("version") != VERSION:
            raise ValueError("a failure record of another version")
        values["shape"] = tuple(values["shape"])
        values["shapes"] = {name: tuple(shape) for name, shape in values["shapes"].items()}
        values["index"] = None if values["index"] is None else tuple(values["index"])
        values.update({name: number_from_json(values[name]) for name in _NUMBERS})
        return cls(**values)

    def to_public_json(self) -> dict[str, Json]:
        """A failure as commands print it: no inputs, no configuration, no paths."""
        inner = ("version", "case", "result", "inputs", "maker", "environment")
        out = {name: value for name, value in self.to_json().items() if name not in inner}
        return {**out, "seed_str": str(self.seed), "reproduce": self.reproduce}


def now() -> str:
    """The time as records hold it; such times sort as text."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class FailureStore:
    """The failures of one workspace. They are never evicted.

    Parameters
    ----------
    cache : WorkspaceCache
    """

    def __init__(self, cache: WorkspaceCache) -> None:
        self._blobs = cache.blobs
        self._records = cache.failures_db

    def add(self, record: FailureRecord, input_tensors: bytes) -> str:
        """Keep a failure; one that is kept already gets the newer content and time.

        Parameters
        ----------
        record : FailureRecord
            Its `id` and `inputs` are filled in. When it has a `minimized_from`, that record is told
            of it.
        input_tensors : bytes
            Safetensors file with the values of every input in C order.

        Returns
        -------
        str
            The id.
        """
        digest = digest_bytes(input_tensors)
        record = replace(record, inputs=digest)
        identity = record.identity()
        record = replace(record, id=self._free_id(identity))
        known = self._read(record.id)
        if known is not None:
            record = replace(
                record,
                time=max(record.time, known.time),
                minimized=record.minimized or known.minimized,
                minimized_from=record.minimized_from or known.minimized_from,
                cause=record.cause or known.cause,
            )
        self._blobs.write(input_tensors)
        self._write(record)
        self._link(record.minimized_from, record.id)
        return record.id

    def _free_id(self, identity: str) -> str:
        """The shortest id that no other failure has."""
        for length in range(ID_LENGTH, len(identity)):
            known = self._read(identity[:length])
            if known is None or known.identity() == identity:
                return identity[:length]
        return identity

    def _link(self, original: str | None, minimized: str | None) -> None:
        known = self._read(original) if original else None
        if known is not None and known.id != minimized:
            self._write(replace(known, minimized=minimized))

    def _write(self, record: FailureRecord) -> None:
        self._records.put(record.id, record.to_json())

    def _read(self, key: str) -> FailureRecord | None:
        """A record, or None when there is none or it was written by another version."""
        data = self._records.get(key)
        try:
            return None if data is None else FailureRecord.from_json(data)
        except (AttributeError, KeyError, TypeError, ValueError):
            return None

    def __iter__(self) -> Iterator[FailureRecord]:
        for key in tuple(self._records):
            record = self._read(key)
            if record is not None:
                yield record

    def get(self, prefix: str) -> FailureRecord:
        """The failure with an id, or with the only id that begins so.

        Raises
        ------
        UsageError
            ``unknown-failure``, or ``ambiguous-failure`` when several begin so.
        """
        wanted = prefix.strip().lower()
        exact = self._read(wanted) if wanted else None
        if exact is not None:
            return exact
        found = [r for r in self if r.id.startswith(wanted)] if wanted else []
        if len(found) == 1:
            return found[0]
        if found:
            ids = ", ".join(sorted(record.id for record in found)[:5])
            message = f"{len(found)} failures have ids that begin with {prefix!r}: {ids}"
            raise UsageError(Problem("ambiguous-failure", message, "give more of the id"))
        hint = "`gpuemu-flow failures` lists those that are kept"
        raise UsageError(Problem("unknown-failure", f"no failure has the id {prefix!r}", hint))

    def find(self, seed: int, op: str | None = None) -> tuple[FailureRecord, ...]:
        """Failures of a case seed, newest first; empty when there is none.

        A seed above 2**53 may come rounded, as readers of JSON in JavaScript have it; it counts
        when no two different seeds round to it.
        """
        records = self.list(op)
        exact = tuple(record for record in records if record.seed == seed)
        if exact or not _SAFE_INTEGER <= seed <= _LARGEST_ROUNDED:
            return exact
        rounded = tuple(record for record in records if float(record.seed) == float(seed))
        return rounded if len({record.seed for record in rounded}) == 1 else ()

    def list(self, op: str | None = None, limit: int | None = None) -> tuple[FailureRecord, ...]:
        """Failures of one op or of all, newest first, at most `limit`."""
        found = [record for record in self if op is None or record.op == op]
        found.sort(key=lambda record: (record.time, record.id), reverse=True)
        return tuple(found[:limit])

    def explain(self, failure_id: str, cause: str) -> FailureRecord:
        """Tell a failure what it is grouped under; the record as it is then.

        Raises
        ------
        UsageError
            ``unknown-failure``.
        """
        record = self.get(failure_id)
        if cause and record.cause != cause:
            record = replace(record, cause=cause)
            self._write(record)
        return record

    def delete(self, failure_id: str) -> None:
        """Forget a failure; silent when there is none. Its blob goes with the next collection."""
        known = self._read(failure_id)
        self._records.delete(failure_id)
        if known is not None and known.minimized_from:
            original = self._read(known.minimized_from)
            if original is not None and original.minimized == failure_id:
                self._link(original.id, None)

    def input_tensors(self, record: FailureRecord) -> bytes | None:
        """The safetensors file with a failure's inputs; None when it is lost or damaged."""
        return self._blobs.read(record.inputs) if record.inputs else None

    def pinned(self) -> frozenset[str]:
        """Digests of the blobs that collection must keep."""
        return frozenset(record.inputs for record in self if record.inputs)
