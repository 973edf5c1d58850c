"""Store failing cases with their exact inputs, and find them by id, seed or op."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from gpuemu_flow.model.decoding import convert, plain
from gpuemu_flow.model.errors import Problem, UsageError
from gpuemu_flow.model.types import Case, CheckResult, Json, Shape
from gpuemu_flow.store.keys import digest_bytes, digest_json

if TYPE_CHECKING:
    from gpuemu_flow.store.cache import WorkspaceCache

SOURCES = ("run", "fuzz", "minimize", "daemon", "pytest")
GENERATED = ("run", "fuzz")
"""Sources for which the case alone determines the inputs."""
SUBMITTED = "submitted"
"""Kind of a program whose outputs a client or a test submitted."""

VERSION = 1


class FailureRecord(Struct, frozen=True, kw_only=True):
    """One failing case, with everything that is needed to run, shrink and export it. Raises
    ValueError: It is of another version."""

    version: int = VERSION
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
    case: Case
    result: CheckResult
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

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ValueError("a failure record of another version")

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
        """Make the record of a case that did not pass, with the present time. Raises ValueError:
        `source` is not in `SOURCES`."""
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
            case=case,
            result=result,
            layouts={spec.name: spec.layout for spec in case.inputs},
            cause=cause,
            provenance=provenance,
            environment=dict(environment or {}),
            time=now(),
            minimized_from=minimized_from,
        )

    @property
    def reproduce(self) -> str:
        """Return the command that runs this case again, quoted for a shell. An op that only a
        client runs cannot be run by us: then it gives the client the inputs."""
        op = (self.provenance or {}).get("op")
        if isinstance(op, Mapping) and op.get("kind") == SUBMITTED and self.id:
            line = f"import gpuemu_flow; print(gpuemu_flow.Client().reproduce({self.id!r}).inputs)"
            return f"python -c {shlex.quote(line)}"
        if self.source not in GENERATED and self.id:
            return f"gpuemu-flow reproduce {self.id}"
        words = [str(self.seed), "--op", self.op, "--case", self.case.to_text()]
        return f"gpuemu-flow reproduce {shlex.join(words)}"

    @property
    def tolerance(self) -> dict[str, float | None]:
        """Return the explicit `atol` and `rtol` that judged the case; None under ``auto``."""
        compare = (self.provenance or {}).get("compare") or {}
        output = self.result.failures[0].output if self.result.failures else ""
        own = (o.get("tolerance") for o in compare.get("outputs", ()) if o.get("name") == output)
        given = next(own, None) or compare.get("tolerances", {}).get(self.dtype) or {}
        return {name: given.get(name) for name in ("atol", "rtol")}

    def identity(self) -> str:
        """Return a sha256 of op, case and kind, by which the same failure is recognized later.
        Inputs that the case does not determine are part of the digest, too: a shrunk case has the
        seed of its original, and clients may send any inputs."""
        case = self.case.identity()
        own = "" if self.source in GENERATED else self.inputs
        return digest_json([self.op, case, self.kind, own])

    def to_public_json(self) -> dict[str, Json]:
        """Return the JSON that commands print, without inputs, configuration and paths."""
        inner = (
            "version", "case", "result", "inputs", "inputs_dropped", "provenance", "environment",
            "mended", "intermittent",
        )  # fmt: skip
        out = {name: value for name, value in plain(self).items() if name not in inner}
        return {**out, **self.tolerance, "seed_str": str(self.seed), "reproduce": self.reproduce}


def now() -> str:
    """Return the present time in the format of records, which sorts as text."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


# Limit the disk space of recorded failures' inputs, and choose the inputs to drop.


INPUTS_LIMIT = 2_000_000_000
"""Largest total size of the inputs of all recorded failures, in bytes."""

FREED_TO = 0.9
"""Fraction of the limit down to which inputs are dropped, so that the next failures fit."""

MADE_AGAIN, GIVEN, SHRUNK = range(3)
"""Ranks of inputs; inputs with the lowest rank are dropped first. Generated inputs can be made
again. Inputs that a client or a test sent cannot. Inputs of a shrunk case took much work, and are
small."""


class StoredInputs(Struct, frozen=True):
    """The stored inputs of one failure."""

    failure: str
    digest: str
    rank: int
    time: str


class Excess(Struct, frozen=True):
    """The inputs to drop."""

    failures: tuple[str, ...] = ()
    blobs: tuple[str, ...] = ()
    left: int = 0


def excess(
    stored: Iterable[StoredInputs], sizes: Mapping[str, int], limit: int, newest: str
) -> Excess:
    stored = list(stored)
    users: dict[str, int] = {}
    for one in stored:
        users[one.digest] = users.get(one.digest, 0) + 1
    total = sum(sizes[digest] for digest in users)
    if total <= limit:
        return Excess(left=total)
    chosen: list[StoredInputs] = []
    blobs = []
    for one in sorted(stored, key=lambda h: (h.rank, h.time, h.failure)):
        if total <= FREED_TO * limit:
            break
        if one.failure == newest:
            continue
        chosen.append(one)
        users[one.digest] -= 1
        if not users[one.digest]:
            blobs.append(one.digest)
            total -= sizes[one.digest]
    # A failure keeps its inputs if a remaining failure has the same blob.
    failures = tuple(one.failure for one in chosen if not users[one.digest])
    return Excess(failures, tuple(blobs), total)


class InputsBudget:
    """Counts the bytes of stored inputs, so that they are listed only when there are too many."""

    def __init__(
        self, limit: int, scan: Callable[[], Iterable[StoredInputs]], size_of: Callable[[str], int]
    ) -> None:
        self.limit = limit
        self._scan = scan
        self._size_of = size_of
        self._total: int | None = None

    def added(self, failure: str, nbytes: int) -> Excess:
        if self._total is not None:
            self._total += nbytes  # an existing blob counts twice: the scan is only earlier
            if self._total <= self.limit:
                return Excess()
        stored = list(self._scan())
        sizes = {one.digest: self._size_of(one.digest) for one in stored}
        found = excess(stored, sizes, self.limit, failure)
        self._total = found.left
        return found


ID_LENGTH = 12
INPUTS_DROPPED = "failure-inputs-dropped"
_LARGEST_ROUNDED = 1 << 65  # JavaScript writes 2**64 as 18446744073709552000, which is above it
_SAFE_INTEGER = 1 << 53  # IEEE doubles, which JavaScript reads JSON numbers as, are exact up to it


def inputs_dropped_problem(count: int, limit: int) -> Problem:
    """Return the warning that inputs of failures were deleted because of the limit."""
    whose = "one recorded failure was" if count == 1 else f"{count} recorded failures were"
    return Problem(
        "failure-inputs-dropped",
        f"the stored inputs of {whose} deleted to stay within {limit / 1e9:g} GB",
        "those of `run` and `fuzz` are made again from their seeds when they are asked for",
        warning=True,
    )


class FailureStore:
    """The failures of one workspace. Records are kept; inputs are deleted above a limit."""

    def __init__(self, cache: WorkspaceCache, *, inputs_limit: int = INPUTS_LIMIT) -> None:
        self._cache = cache
        self._blobs = cache.blobs
        self._records = cache.failures_db
        self._budget = InputsBudget(inputs_limit, self._stored_inputs, self._blobs.size)
        self._dropped = 0

    def add(self, record: FailureRecord, input_tensors: bytes) -> str:
        """Store a failure, or update its record if it is already stored."""
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
        self._drop_inputs(self._budget.added(record.id, len(input_tensors)))
        return record.id

    def _stored_inputs(self) -> Iterator[StoredInputs]:
        for record in self:
            if record.inputs and not record.inputs_dropped:
                shrunk = SHRUNK if record.minimized_from is not None else GIVEN
                rank = MADE_AGAIN if record.source in GENERATED else shrunk
                yield StoredInputs(record.id, record.inputs, rank, record.time)

    def _drop_inputs(self, excess: Excess) -> None:
        for failure in excess.failures:
            record = self._read(failure)
            if record is not None:
                self._write(replace(record, inputs_dropped=True))
        for digest in excess.blobs:
            self._blobs.delete(digest)
        self._dropped += len(excess.failures)
        if excess.failures:
            problems = self._cache.problems
            problems[:] = [p for p in problems if p.slug != INPUTS_DROPPED]
            problems.append(inputs_dropped_problem(self._dropped, self._budget.limit))

    def _free_id(self, identity: str) -> str:
        """Return the shortest id that no other failure has."""
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
        self._records.put(record.id, plain(record))

    def _read(self, key: str) -> FailureRecord | None:
        data = self._records.get(key)
        try:
            return None if data is None else convert(data, FailureRecord, strict=False)
        except ValueError:
            return None

    def __iter__(self) -> Iterator[FailureRecord]:
        for key in tuple(self._records):
            record = self._read(key)
            if record is not None:
                yield record

    def get(self, prefix: str) -> FailureRecord:
        wanted = prefix.strip().lower()
        exact = self._read(wanted) if wanted else None
        if exact is not None:
            return exact
        alike = self._records.keys_from(wanted) if wanted and wanted.isascii() else []
        found = [record for record in map(self._read, alike) if record is not None]
        if len(found) == 1:
            return found[0]
        if found:
            ids = ", ".join(sorted(record.id for record in found)[:5])
            message = f"{len(found)} failures have ids that begin with {prefix!r}: {ids}"
            raise UsageError(
                Problem("ambiguous-failure", message, "give more characters of the id")
            )
        hint = "`gpuemu-flow failures` lists those that are kept"
        raise UsageError(Problem("unknown-failure", f"no failure has the id {prefix!r}", hint))

    def find(self, seed: int, op: str | None = None) -> tuple[FailureRecord, ...]:
        """Return the failures with a case seed, newest first; empty if there are none. A JSON
        parser in JavaScript may have rounded a seed above 2**53. If no failure has exactly this
        seed, failures with a seed that rounds to it are returned. If several different seeds round
        to it, the result is empty."""
        holding = filter(None, map(self._read, self._records.keys_holding(str(seed))))
        exact = _newest_first(
            record for record in holding if record.seed == seed and op in (None, record.op)
        )
        if exact or not _SAFE_INTEGER <= seed <= _LARGEST_ROUNDED:
            return exact
        rounded = tuple(record for record in self.list(op) if float(record.seed) == float(seed))
        return rounded if len({record.seed for record in rounded}) == 1 else ()

    def list(self, op: str | None = None, limit: int | None = None) -> tuple[FailureRecord, ...]:
        """Return the failures of one op or of all ops, newest first, at most `limit`."""
        return _newest_first(record for record in self if op in (None, record.op))[:limit]

    def explain(self, failure_id: str, cause: str) -> FailureRecord:
        record = self.get(failure_id)
        if cause and record.cause != cause:
            record = replace(record, cause=cause)
            self._write(record)
        return record

    def set_seen(self, failure_id: str, *, mended: bool, intermittent: bool) -> None:
        """Record the outcome of running a failure again; do nothing if the failure is unknown."""
        record = self._read(failure_id)
        if record is not None and (record.mended, record.intermittent) != (mended, intermittent):
            self._write(replace(record, mended=mended, intermittent=intermittent))

    def input_tensors(self, record: FailureRecord) -> bytes | None:
        """Return the safetensors file with a failure's inputs; None if it is lost or damaged."""
        return self._blobs.read(record.inputs) if record.inputs else None

    def dropped(self) -> int:
        """Return the number of failures whose inputs were deleted because of the limit."""
        return sum(record.inputs_dropped for record in self)

    def pinned(self) -> frozenset[str]:
        """Return the digests of the blobs that garbage collection must keep."""
        return frozenset(held.digest for held in self._stored_inputs())


def _newest_first(records: Iterable[FailureRecord]) -> tuple[FailureRecord, ...]:
    return tuple(sorted(records, key=lambda record: (record.time, record.id), reverse=True))
