"""Expected outputs of slow references, stored so that they need not run again for an edited op.

Outputs are stored only if computing them costs more than storing them: on small cases, most
references take less time than writing a file. The outputs are blobs, stored under the digests of
their content. The action cache maps a reference and a case to a blob. If a blob or an entry was
damaged or deleted, the reference runs again.
"""

from __future__ import annotations

import hashlib
import itertools
import resource
import secrets
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from gpuemu_flow.model.errors import StoreError
from gpuemu_flow.model.observed import ConfiguredEnv, Observation
from gpuemu_flow.model.types import Case, Json
from gpuemu_flow.store.keys import digest_json
from gpuemu_flow.workers import blobs

if TYPE_CHECKING:  # workers import this module but open no cache
    from gpuemu_flow.store.discovered import SeenInputs
    from gpuemu_flow.store.workspace_cache import WorkspaceCache

Arrays = Mapping[str, NDArray[Any]]

VERSION = 3
STORE_LIMIT = 1_000_000_000
"""Maximum number of bytes that one `ExpectedStore` writes."""

# Measured on a plain SSD: one small file with its record, and the throughput of sha256 and copy.
WRITE_SECONDS, WRITE_SECONDS_PER_BYTE = 0.6e-3, 4.3e-9
READ_SECONDS, READ_SECONDS_PER_BYTE = 0.25e-3, 1.2e-9
_KEEPS_SOME = "keeps some"
WORTH = 3.0
"""Outputs are stored if computing them costs this many times as much as storing and reading them,
since not every stored output is read again."""


def worth_keeping(seconds: float, nbytes: int) -> bool:
    """Tell whether outputs of this size are cheaper to store than to compute again."""
    write = WRITE_SECONDS + WRITE_SECONDS_PER_BYTE * nbytes
    read = READ_SECONDS + READ_SECONDS_PER_BYTE * nbytes
    return seconds > WORTH * (write + read)


class Effort:
    """Measures the cost of a call; the object must be made when the call begins."""

    def __init__(self) -> None:
        self._before = resource.getrusage(resource.RUSAGE_SELF)
        self._begin = time.perf_counter()

    def is_worth_keeping(self, nbytes: int) -> bool:
        """Tell whether outputs of this size are worth storing, given the call's duration so far.

        Time in which other processes used the processor is not counted.
        """
        passed = time.perf_counter() - self._begin
        if not worth_keeping(passed, nbytes):
            return False
        now = resource.getrusage(resource.RUSAGE_SELF)
        return worth_keeping(own_seconds(passed, self._before, now), nbytes)


def own_seconds(
    passed: float, before: resource.struct_rusage, now: resource.struct_rusage
) -> float:
    """Return the elapsed seconds without the time in which other processes used the processor."""
    if now.ru_nvcsw > before.ru_nvcsw:
        return passed
    used = now.ru_utime + now.ru_stime - before.ru_utime - before.ru_stime
    return min(passed, used)


def stage(outputs: Arrays, path: Path) -> str:
    """Write outputs to a file, for `ExpectedStore.keep` to store them; runs in the worker."""
    data = blobs.encode(outputs)
    try:
        path.write_bytes(data)
    except OSError:
        return ""
    return hashlib.sha256(data).hexdigest()


def load(path: Path) -> dict[str, NDArray[Any]]:
    """Return read-only outputs from a file that `ExpectedStore.find` named; runs in the worker.

    Raises OSError, BlobError: The file is gone or was damaged in the meantime: the caller runs the
    reference.
    """
    return blobs.decode(path.read_bytes())


class ExpectedStore:
    """Expected outputs of one reference, by case. Thread-safe."""

    def __init__(
        self,
        cache: WorkspaceCache,
        reference_key: str,
        *,
        inputs: SeenInputs | None = None,
        force: bool = False,
        limit: int = STORE_LIMIT,
    ) -> None:
        self.inputs = inputs
        self._cache = cache
        self._reference_key = reference_key
        self._force = force
        self._left = limit
        self._staging = cache.staging / f"expected-{secrets.token_hex(12)}"
        self._numbers = itertools.count()
        self._keeps_some = self.fact(_KEEPS_SOME) is not None
        self._lock = threading.Lock()
        self.found = self.stored = 0

    def learn(self, seen: Observation, given: ConfiguredEnv) -> None:
        """Make the key of stored outputs depend on inputs that the reference was seen to use."""
        if self.inputs is not None:
            self.inputs.learn("reference", seen, given)

    @property
    def full(self) -> bool:
        """Tell whether the limit of stored bytes is reached, so that nothing more is stored."""
        return self._left <= 0

    def find(self, case: Case) -> Path | None:
        """Return the file with the reference's outputs for a case; None if there is none."""
        if not self._keeps_some:  # spares a look-up per case for every fast reference
            return None
        digest = self._record("outputs", case.identity())
        try:
            if digest is None or self._cache.blobs.read(digest) is None:
                return None
            path = self._cache.blobs.path(digest)
        except (TypeError, ValueError):
            return None
        with self._lock:
            self.found += 1
        return path

    def staging_path(self) -> str:
        """Return the path of a new file for `stage` to write."""
        return f"{self._staging}-{next(self._numbers)}"

    def keep(self, case: Case, staged: Path, digest: str) -> bool:
        """Store outputs from a worker's staged file, and tell whether they were stored.

        The staged file is always removed. Its outputs are not stored if the limit is reached, if
        the store cannot write them, or if the file does not match `digest`. In the last case, the
        op may have written to the file.
        """
        try:
            data = self._cache.files.read(staged)
            blobs.decode(data)
        except (OSError, blobs.BlobError):
            data = b""
        if hashlib.sha256(data).hexdigest() != digest:
            data = b""
        self._cache.files.remove(staged)
        with self._lock:
            if not data or len(data) > self._left:
                return False
            self._left -= len(data)
        try:
            digest = self._cache.blobs.write(data)
            if not self._keeps_some:
                self.remember(_KEEPS_SOME, True)
                self._keeps_some = True
            self._put("outputs", case.identity(), digest)
        except StoreError:
            return False  # a full disk: the verdict does not need the file
        with self._lock:
            self.stored += 1
        return True

    def fact(self, name: str) -> Json | None:
        """Return a stored fact about the reference by its name, such as its traits."""
        return self._record("fact", name)

    def remember(self, name: str, value: Json) -> None:
        """Store a small fact about the reference, which `fact` returns to later runs."""
        self._put("fact", name, value)

    def _record(self, kind: str, what: Json) -> Json | None:
        if self._force:
            return None

        def get(base: str) -> Json | None:
            return self._cache.actions.get(_key(base, kind, what))

        return get(self._reference_key) if self.inputs is None else self.inputs.find(get)

    def _put(self, kind: str, what: Json, value: Json) -> None:
        """Store a value, unless an input that it depends on was written to in the meantime.

        `kind` and `what` name the value: ``outputs`` and the identity of a case, or ``fact`` and
        the name of a fact.
        """
        base = self._reference_key if self.inputs is None else self.inputs.key()
        if base is not None:
            self._cache.actions.put(_key(base, kind, what), value)


def _key(base: str, kind: str, what: Json) -> str:
    return digest_json(["expected", VERSION, base, kind, what])
