"""Results of single validations that clients submitted, newest first."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from bisect import bisect_left, insort
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field

from gpuemu_flow.model.decoding import convert, plain
from gpuemu_flow.model.types import CheckResult, Json, MeasuredErrors, Verdict
from gpuemu_flow.model.verdicts import Elements
from gpuemu_flow.store.cache import JsonStore, WorkspaceCache, seal, to_text
from gpuemu_flow.store.private_files import PrivateFolder

FOLDER = "results"
STAMP = "results.stamp"
"""A file beside `FOLDER`; its modification time is the time of the newest result."""
FORGOTTEN = "results.forgotten"
"""A file beside `FOLDER`; its modification time is that of the latest `forget` or `rename`."""
DAY_NS = 86_400 * 10**9
PRUNE_SLACK = 256  # results above the limit before the oldest are deleted, many at a time


class ResultStore:
    """The results of one workspace, also held in memory. Thread-safe; only one process may
    write."""

    def __init__(
        self,
        cache: WorkspaceCache,
        folder: Path | None = None,
        *,
        max_results: int = 10_000,
        retention_days: int = 0,
    ) -> None:
        folder = folder or cache.folder
        self._records = JsonStore(folder / FOLDER, cache.set_aside)
        self._files = PrivateFolder(folder)
        self._stamp = folder / STAMP
        self._forgotten = folder / FORGOTTEN
        self._forgotten_ns = self._last_forgotten()
        self._max_results = max_results
        self._retention_days = retention_days
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._last_ns = 0
        self._keys: list[str] = []
        self._by_key: dict[str, StoredResult] = {}
        self._by_seed: dict[int, list[str]] = {}
        self._load()

    def _load(self) -> None:
        self._read_all()
        self.prune()

    def _read_all(self) -> None:
        for key in tuple(self._records):
            data = self._records.get(key)
            try:
                if data is not None:
                    judged = convert(data.pop("judged"), CountedResult, strict=False)
                    text = to_text(data.pop("result"))
                    stored = StoredResult(key, judged=judged, text=text, **data)
                    if stored.time_ns >= 0:
                        self._index(stored)
            except (KeyError, TypeError, ValueError):
                continue  # another version's, which may be asked for it again
        if self._keys:  # later results come after it, even if the clock was put back meanwhile
            self._last_ns = max(self._last_ns, int(self._keys[-1]))

    def _last_forgotten(self) -> int:
        try:
            return self._forgotten.lstat().st_mtime_ns
        except OSError:
            return 0

    def _catch_up(self) -> None:
        """Apply deletions and renames by other processes; call it with the lock held."""
        latest = self._last_forgotten()
        if latest == self._forgotten_ns:
            return
        self._forgotten_ns = latest
        older = bisect_left(self._keys, f"{latest:0{TIME_DIGITS}d}")
        gone, self._keys = self._keys[:older], self._keys[older:]
        for key in gone:
            self._drop(key)
        self._read_all()

    def _index(self, stored: StoredResult) -> None:
        if stored.key in self._by_key:
            return
        self._by_key[stored.key] = stored
        for keys in (self._keys, self._by_seed.setdefault(stored.seed, [])):
            if not keys or keys[-1] < stored.key:  # nearly always the newest
                keys.append(stored.key)
            else:
                insort(keys, stored.key)

    def time_ns(self) -> int:
        """Return the Unix time in ns, but always a later time than was returned before."""
        return self._times(1)[0]

    def _times(self, count: int) -> range:
        with self._lock:
            first = max(time.time_ns(), self._last_ns + 1)
            self._last_ns = first + count - 1
        return range(first, first + count)

    def add(self, new: NewResult) -> StoredResult:
        """Store a result; it is on disk when this returns."""
        return self.add_many([new])[0]

    def add_many(self, new: Sequence[NewResult]) -> list[StoredResult]:
        """Store results in one transaction; they are on disk when this returns. Raises StoreError:
        The results cannot be stored. None of them is."""
        records, added = {}, []
        with self._writing:
            times = self._times(len(new))
            for one, time_ns in zip(new, times, strict=True):
                key = f"{time_ns:0{TIME_DIGITS}d}"
                records[key] = seal(plain(one), key)
                added.append(
                    StoredResult(
                        key, one.op, one.seed, one.dtype, one.source, one.judged_by, one.judged,
                        to_text(dict(one.result)), one.client,
                    )
                )  # fmt: skip
            if records:
                self._records.put_sealed(records)
                self._touch(times[-1])
        with self._lock:
            for stored in added:
                self._index(stored)
        return added

    def _touch(self, time_ns: int, path: Path | None = None) -> None:
        """Set the time of a stamp file, by which other processes notice changes of the store."""
        path = path or self._stamp
        with contextlib.suppress(OSError):
            descriptor = self._files.open(path, os.O_WRONLY | os.O_CREAT)
            try:
                os.utime(descriptor, ns=(time_ns, time_ns))
            finally:
                os.close(descriptor)

    @property
    def is_due(self) -> bool:
        """Tell whether there are enough excess results to call `prune`."""
        return bool(self._max_results) and len(self._keys) >= self._max_results + PRUNE_SLACK

    def _stale(self, now_ns: int) -> list[str]:
        """Remove results that exceed the limits from the indices, and return their keys."""
        drop = 0
        if self._max_results:
            drop = max(0, len(self._keys) - self._max_results)
        if self._retention_days:
            oldest = max(0, now_ns - self._retention_days * DAY_NS)
            drop = max(drop, bisect_left(self._keys, f"{oldest:0{TIME_DIGITS}d}"))
        stale, self._keys = self._keys[:drop], self._keys[drop:]
        for key in stale:
            self._drop(key)
        return stale

    def _drop(self, key: str) -> None:
        stored = self._by_key.pop(key)
        keys = self._by_seed[stored.seed]
        keys.remove(key)
        if not keys:
            del self._by_seed[stored.seed]

    def prune(self) -> None:
        """Delete results that exceed the limits. Only the writing process may call this."""
        with self._lock:
            stale = self._stale(time.time_ns())
        for start in range(0, len(stale), PRUNE_SLACK):
            with self._writing:  # else calls that store results would poll for SQLite's lock
                self._delete(stale[start : start + PRUNE_SLACK])

    def _delete(self, keys: list[str]) -> None:
        if keys:
            self._records.delete_many(keys)

    def find(self, seed: int) -> StoredResult | None:
        with self._lock:
            self._catch_up()
            keys = self._by_seed.get(seed)
            return self._by_key[keys[-1]] if keys else None

    def newest(self, limit: int) -> list[StoredResult]:
        with self._lock:
            self._catch_up()
            return [self._by_key[key] for key in reversed(self._keys[-limit:])] if limit else []

    def latest(self) -> dict[tuple[str, int], StoredResult]:
        """Return the newest result of each op and seed."""
        with self._lock:
            self._catch_up()
            return {(s.op, s.seed): s for s in (self._by_key[key] for key in self._keys)}

    def everything(self) -> list[StoredResult]:
        with self._lock:
            self._catch_up()
            return [self._by_key[key] for key in self._keys]

    def forget(self, ops: Collection[str] | None = None) -> int:
        """Delete the results of some ops (by default all), and return their number."""
        with self._lock:
            keys = [k for k in self._keys if ops is None or self._by_key[k].op in ops]
            gone = set(keys)
            self._keys = [key for key in self._keys if key not in gone]
            for key in keys:
                self._drop(key)
        if keys:
            self._delete(keys)
            now = self.time_ns()
            self._touch(now)
            self._touch(now, self._forgotten)
        return len(keys)

    def close(self) -> None:
        self._records.close()


# Results that clients submitted, before and after they are stored.


TIME_DIGITS = 20  # keys sort as the times do


class CountedResult(Struct, frozen=True):
    """The part of a validation that reports and baselines use."""

    verdict: Verdict
    elements: Elements = field(default_factory=Elements)
    max_abs: float = 0.0
    max_rel: float = 0.0
    max_ulp: float = 0.0
    tolerance_used: float = 0.0
    failure_id: str = ""
    measured: tuple[MeasuredErrors, ...] = ()

    @classmethod
    def of(cls, result: CheckResult, failure_id: str = "") -> CountedResult:
        stats = result.stats
        return cls(
            result.verdict,
            Elements.of(result),
            float(stats.max_abs),
            float(stats.max_rel),
            float(stats.max_ulp),
            float(stats.tolerance_used),
            failure_id,
            result.measured,
        )


class StoredResult(Struct, frozen=True):
    """The stored result of one validation."""

    key: str
    op: str
    seed: int
    dtype: str
    source: str
    judged_by: str
    judged: CountedResult
    text: str
    client: Mapping[str, Json] = field(default_factory=dict)

    @property
    def result(self) -> dict[str, Json]:
        found: dict[str, Json] = json.loads(self.text)
        return found

    @property
    def origin(self) -> str:
        """Return the name of the function that computed the output; empty if unknown."""
        return str(self.client.get("origin", ""))

    @property
    def batch(self) -> str:
        """Return what the submissions of one command have in common; empty if unknown."""
        return str(self.client.get("id", ""))

    @property
    def time_ns(self) -> int:
        return int(self.key[:TIME_DIGITS])


class NewResult(Struct):
    """A validation that is to be stored; see `StoredResult`. `result` is the daemon's reply."""

    op: str
    seed: int
    dtype: str
    judged: CountedResult
    result: Mapping[str, Json]
    source: str
    judged_by: str = ""
    client: Mapping[str, Json] = field(default_factory=dict)
