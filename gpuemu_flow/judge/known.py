"""Find the results on cases that are known, and keep new ones, by the inputs that programs used."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.types import CheckResult, ConfiguredEnv, Json, Observation
from gpuemu_flow.store.keys import Discovered, Lookup, SeenInputs, digest_bytes

if TYPE_CHECKING:
    from gpuemu_flow.store.cache import JsonStore
    from gpuemu_flow.store.remote_cache import SharedCache

T = TypeVar("T")
MALFORMED = (AttributeError, KeyError, OverflowError, TypeError, ValueError)
MOST_WAITING = 1000
"""Maximum number of results that wait to be written in one transaction."""
WRITE_SECONDS = 1.0
"""Time in seconds after which the next result makes all waiting ones be written. A transaction
costs more than a tiny case, and a killed process loses what it made since the last one."""


def read_verdict(data: Json) -> CheckResult | None:
    """Return a stored verdict; None if there is none, or it is damaged."""
    try:
        return None if data is None else convert(data, CheckResult, strict=False)
    except MALFORMED:
        return None


class KnownResults(Generic[T]):
    """Finds and keeps results on the cases of one op in one dtype. Thread-safe.

    A result's key covers `static`, the inputs that the programs were seen to use until it was
    written, in their present states, and what the result is `about`: the digest of a case,
    for example.
    """

    def __init__(
        self,
        actions: JsonStore,
        static: str,
        lookup: Lookup,
        start: Discovered,
        *,
        read: Callable[[Json], T | None],
        write: Callable[[T], Json],
        force: bool = False,
        unchanged: Callable[[], bool] = lambda: True,
        before_write: Callable[[], None] = lambda: None,
    ) -> None:
        """Take no results from the cache if `force` is true; keep none once `unchanged` is not."""
        self.inputs = SeenInputs(actions, static, lookup, start, force=force)
        self._actions = actions
        self._read = read
        self._to_json = write
        self._unchanged = unchanged
        self._before_write = before_write
        self._lock = threading.Lock()
        self._waiting: list[tuple[str, T]] = []
        self._written = time.monotonic()
        self._whole = False
        self._bases: set[str] = set()

    def find(self, about: str) -> T | None:
        """Return the result for the present inputs; None if it is not known."""
        return self.find_all({0: about}).get(0)

    def find_all(self, abouts: Mapping[int, str]) -> dict[int, T]:
        """Return the results that are known, by the keys of `abouts`."""
        found: dict[int, T] = {}
        for names, base in self.inputs.earlier:
            there = self._stored(base, {n: a for n, a in abouts.items() if n not in found})
            if there:
                found.update(there)
                self.inputs.join(names)
        return found

    def _stored(self, base: str, abouts: Mapping[int, str]) -> dict[int, T]:
        """Return the results that are stored for a set of inputs, found with one query."""
        keys = {n: _key(base, about) for n, about in abouts.items()}
        stored = self._actions.among([*keys.values()])
        read = {n: self._read(self._actions.get(key)) for n, key in keys.items() if key in stored}
        found = {n: result for n, result in read.items() if result is not None}
        if found:
            self._bases.add(base)
        return found

    def learn(self, seen: Observation, given: ConfiguredEnv) -> None:
        """Add the inputs that the program was seen to use so far."""
        self.inputs.learn("program", seen, given)

    def put(self, about: str, result: T) -> None:
        """Keep a new result; it is written soon, or when `flush` is called."""
        with self._lock:
            self._waiting.append((about, result))
            late = time.monotonic() >= self._written + WRITE_SECONDS
            if late or len(self._waiting) >= MOST_WAITING:
                self._write_waiting()

    def flush(self) -> None:
        """Write the results that still wait."""
        with self._lock:
            self._write_waiting()

    def _write_waiting(self) -> None:
        """Write what waits, unless a program or an input of it was edited meanwhile."""
        waiting, self._waiting = self._waiting, []
        self._written = time.monotonic()
        base = self.inputs.key() if waiting and self._unchanged() else None
        if base is not None:
            self._store(base, waiting)

    def _store(self, base: str, results: Iterable[tuple[str, T]]) -> None:
        self._bases.add(base)
        self._before_write()
        self._actions.put_many(
            (_key(base, about), self._to_json(result)) for about, result in results
        )

    def join(self, results: Iterable[tuple[str, T]]) -> None:
        """Write all results of a task under one key, if they are under several.

        Only a few sets of inputs are remembered, and each case may have used other ones.
        """
        if len(self._bases) > 1 and self._unchanged() and (base := self.inputs.key()) is not None:
            self._store(base, results)

    def fetch(
        self,
        shared: SharedCache | None,
        given: ConfiguredEnv,
        abouts: Mapping[int, str],
        found: dict[int, T],
    ) -> None:
        """Add to `found` the results that a shared cache has for the inputs' present contents.

        `abouts` are those of all results of the task, by the keys of `found`.
        """
        if shared is None:
            return
        for names in shared.sets(self.inputs.place, given.names):
            base = self.inputs.key_of(names)
            whole = shared.fetch([_key(base, about) for about in abouts.values()])
            fetched = self._stored(base, {n: a for n, a in abouts.items() if n not in found})
            if fetched:
                found.update(fetched)
                self.inputs.add(names)
                self._whole = whole
            if abouts.keys() <= found.keys():
                return

    def share(
        self,
        shared: SharedCache | None,
        given: ConfiguredEnv,
        abouts: Mapping[int, str],
        good: Mapping[int, T],
        blobs: Iterable[str] = (),
    ) -> None:
        """Store the `good` results of a task in a shared cache, unless it has them already.

        Nothing is stored if an input changed, or if the programs may have used unobserved inputs:
        only the user of this machine knows when these change.
        """
        if shared is None or not shared.writes or self._whole or not good:
            return
        names = self.inputs.names
        if names.untracked or not self._unchanged() or self.inputs.moved():
            return
        base = self.inputs.key_of(names)
        keys = {n: _key(base, about) for n, about in abouts.items()}
        shared.store_set(self.inputs.place, names, given.names)
        records = {keys[n]: self._to_json(result) for n, result in good.items()}
        shared.store(list(keys.values()), records, blobs)


def _key(base: str, about: str) -> str:
    return digest_bytes(f"{base} {about}".encode())
