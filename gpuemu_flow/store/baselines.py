"""Named baselines: the metrics of all kernels and the summaries of all comparisons at one time.

A baseline is one checksummed file, written whole or not at all. The commands, the daemon and its
clients use the same baselines.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from msgspec import UNSET, Struct, UnsetType, ValidationError, to_builtins

from gpuemu_flow.model.decoding import convert, plain
from gpuemu_flow.model.errors import Problem, StoreError, UsageError, did_you_mean
from gpuemu_flow.model.types import Json
from gpuemu_flow.store.cache import JsonStore, OtherFormatError, WorkspaceCache, seal, unseal
from gpuemu_flow.store.private_files import write_atomic

FORMAT = 1
KIND = "gpuemu-flow baseline"
RESERVED = ("store", "list", "show", "delete", "export", "import", "diff")
MAX_FILE_BYTES = 256 << 20
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+@/-]{0,127}")
_SUFFIX = ".baseline"
_PLAIN_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_LONGEST_NAME = 200  # of a file; some file systems take 255 bytes


class SubmittedResult(Struct, frozen=True):
    """The newest result that a client submitted for one op and seed."""

    op: str
    seed: int
    passed: bool
    max_abs: float


class Baseline(Struct, frozen=True, kw_only=True):
    """Results and kernel metrics at one time."""

    kind: str = KIND
    format: int = FORMAT
    tag: str
    created: str
    tool: str
    environment: Mapping[str, str]
    kernels: Mapping[str, list[dict[str, Json]]]
    results: Mapping[str, Mapping[str, dict[str, Json]]]
    submitted: tuple[SubmittedResult, ...] | None = None
    artifacts: Mapping[str, ArtifactMetrics] | None = None
    of_run: bool = True

    @property
    def holds_a_run(self) -> bool:
        return self.of_run or bool(self.results)

    @classmethod
    def from_json(cls, data: Json) -> Baseline:
        """Return the baseline that was stored as plain JSON, or raise ValueError."""
        if not isinstance(data, dict) or data.get("kind") != KIND:
            raise ValueError("is no baseline")
        if data.get("format") != FORMAT:
            raise OtherFormatError(f"is a baseline of format {data.get('format')!r}")
        return convert(data, cls, strict=False)  # which reads "NaN" as a float


def check_tag(tag: str) -> str:
    """Return the tag if it is valid. Raises UsageError: ``baseline-bad-tag``."""
    parts = tag.split("/")
    if not _TAG.fullmatch(tag) or any(part.strip(".") == "" for part in parts) or tag in RESERVED:
        hint = "letters, digits and . _ + @ - /, beginning with a letter or digit"
        if tag in RESERVED:
            hint = "that is the name of a command"
        raise UsageError(Problem("baseline-bad-tag", f"{tag!r} cannot name a baseline", hint))
    return tag


def unknown_baseline(tag: str, known: list[str]) -> UsageError:
    hint = did_you_mean(tag, known) or "`gpuemu-flow baseline store TAG` makes one"
    return UsageError(Problem("unknown-baseline", f"no baseline {tag!r}", hint))


class BaselineStore:
    """The baselines of one workspace, deleted only by name or by `trim`."""

    def __init__(self, cache: WorkspaceCache) -> None:
        self._cache = cache
        self._folder = cache.folder / "baselines"

    def put(self, baseline: Baseline) -> bool:
        path = self._path(baseline.tag)
        existed = path.exists()
        self._cache.files.write(path, seal(plain(baseline)))
        return existed

    def get(self, tag: str) -> Baseline:
        """Return the baseline with a tag. Raises UsageError: ``unknown-baseline``, with the most
        similar tag; ``baseline-bad-file`` if another version stored the baseline in a format that
        this version cannot read."""
        path = self._path(tag)
        found = self._read(path)
        if found is None and path.exists():
            message = f"baseline {tag!r} was stored by another version of gpuemu-flow"
            raise UsageError(Problem("baseline-bad-file", message, "use that version", str(path)))
        if found is None:
            raise unknown_baseline(tag, [baseline.tag for baseline in self.list()])
        return found

    def comparable(self, tag: str) -> Baseline:
        """Return a baseline with which a run can be compared. Raises UsageError:
        ``unknown-baseline``; ``nothing-to-compare`` for a baseline with data from clients only."""
        found = self.get(tag)
        if not found.holds_a_run:
            message = f"baseline {tag!r} holds only what clients of the daemon stored"
            hint = f"`gpuemu-flow baseline store {tag}` adds the ops and kernels of this workspace"
            raise UsageError(Problem("nothing-to-compare", message, hint))
        return found

    def newest(self) -> Baseline:
        """Return the newest baseline with which a run can be compared. Raises UsageError:
        ``no-baseline``."""
        found = [baseline for baseline in self.list() if baseline.holds_a_run]
        if not found:
            hint = "`gpuemu-flow baseline store TAG` makes one"
            raise UsageError(Problem("no-baseline", "there is no baseline to compare with", hint))
        return found[0]

    def list(self) -> tuple[Baseline, ...]:
        found = [
            self._read(path) for path in sorted(self._cache.files.list_files(self._folder, _SUFFIX))
        ]
        known = [baseline for baseline in found if baseline is not None]
        return tuple(sorted(known, key=lambda b: (b.created, b.tag), reverse=True))

    def delete(self, tag: str) -> None:
        """Delete a baseline. Raises UsageError: ``unknown-baseline``."""
        self.get(tag)
        path = self._path(tag)
        self._cache.files.remove(path)

    def trim(self, keep: int, spared: str) -> tuple[str, ...]:
        """Delete all but the newest baselines, and return the tags of the deleted ones."""
        others = [baseline.tag for baseline in self.list() if baseline.tag != spared]
        dropped = tuple(others[keep - 1 :] if keep else ())
        for tag in dropped:
            self.delete(tag)
        return dropped

    def _path(self, tag: str) -> Path:
        name = quote(tag, safe="", errors="surrogatepass")
        plain = len(name) <= _LONGEST_NAME and (
            _PLAIN_TAG.fullmatch(tag) is not None
            or (self._folder / (name + _SUFFIX)).exists()  # as earlier versions wrote any tag
        )
        if not plain:  # a client's tag may be any text, a path among them
            name = "=" + hashlib.sha256(name.encode()).hexdigest()
        return self._folder / (name + _SUFFIX)

    def _read(self, path: Path) -> Baseline | None:
        """Return a stored baseline; None if it is missing, damaged, or written by another version.
        A damaged file is moved aside."""
        try:
            baseline = Baseline.from_json(unseal(self._cache.files.read(path)))
            if self._path(baseline.tag) != path:
                raise ValueError("is stored under another name")
        except (OSError, OtherFormatError):
            return None
        except ValueError as error:
            self._cache.set_aside(path, f"baseline {error}")
            return None
        return baseline


def read_file(path: Path) -> Baseline:
    """Read an exported baseline. Raises UsageError: ``baseline-bad-file``."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ValueError(f"is larger than {MAX_FILE_BYTES >> 20} MiB")
        return Baseline.from_json(json.loads(path.read_bytes()))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        hint = "give a file that `gpuemu-flow baseline export` wrote"
        raise UsageError(Problem("baseline-bad-file", reason, hint, str(path))) from None


def write_file(path: Path, baseline: Baseline) -> None:
    """Export a baseline as readable JSON. Raises StoreError when the file cannot be written."""
    text = json.dumps(plain(baseline), indent=1, sort_keys=True, allow_nan=False)
    try:
        write_atomic(path, text.encode() + b"\n")
    except OSError as error:
        reason = error.strerror or str(error)
        raise StoreError(Problem("cache-not-writable", reason, "", str(path))) from None


# Store the latest metrics of each kernel that the daemon knows, in the wire protocol's form.


FOLDER = "wire-artifacts"
_KERNEL = "kernel:"


class ArtifactMetrics(Struct, frozen=True):
    """The metrics of one kernel: the protocol's ``ArtifactMetrics``. ``source`` is ``Ptx``,
    ``Sass`` or ``Both``, ``timestamp`` Unix time in seconds. The last three are no part of the
    protocol; they are known only for kernels that gpuemu-flow itself measured."""

    kernel_name: str
    register_count: int
    spill_count: int
    local_memory_bytes: int
    shared_memory_bytes: int
    instruction_count: int
    patterns_found: tuple[str, ...]
    source: str
    timestamp: int
    ptx_content: None = None
    registers: int | UnsetType | None = UNSET
    metric_source: str | UnsetType = UNSET
    max_live: int | UnsetType | None = UNSET


class ArtifactStore:
    """Metrics by kernel name. Thread-safe."""

    def __init__(self, cache: WorkspaceCache) -> None:
        self._records = JsonStore(cache.folder / FOLDER, cache.set_aside)

    def put(self, metrics: ArtifactMetrics) -> None:
        """Store a kernel's metrics, replacing earlier ones."""
        self._records.put(_KERNEL + metrics.kernel_name, to_builtins(metrics))

    def get(self, name: str) -> ArtifactMetrics | None:
        """Return a kernel's metrics; None if there are none or they cannot be read."""
        try:
            return convert(self._records.get(_KERNEL + name), ArtifactMetrics)
        except ValidationError:
            return None

    def everything(self) -> dict[str, ArtifactMetrics]:
        names = sorted(k.removeprefix(_KERNEL) for k in self._records if k.startswith(_KERNEL))
        return {name: metrics for name in names if (metrics := self.get(name)) is not None}

    def close(self) -> None:
        self._records.close()
