"""Cases handed out to clients, found again when a client submits their seed."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.numerics.dtypes import bytes_of
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.store.cache import JsonStore
from gpuemu_flow.store.keys import digest_json
from gpuemu_flow.types import Case, Json, Shape

MAX_ISSUED = 50_000


@dataclass(frozen=True)
class Issued:
    """A case that was handed out to a client."""

    case: Case
    shape: Shape
    fuzz_config: Json
    digest: str


@lru_cache(maxsize=64)
def _numpy_name(dtype: np.dtype[Any]) -> str:
    """Return numpy's name of a dtype, cached because numpy computes the name at each access."""
    return str(dtype.name)


def digest_of(inputs: Mapping[str, NDArray[Any]]) -> str:
    """Return the sha256 of tensors: their names, dtypes, shapes, and elements in C order."""
    found = hashlib.sha256()
    for name, array in sorted(inputs.items()):
        found.update(repr((name, _numpy_name(array.dtype), array.shape)).encode())
        found.update(bytes_of(array).data)
    return found.hexdigest()


def seed_of(op: str, inputs: Mapping[str, NDArray[Any]], asked: object) -> int:
    """Return a seed for a case whose inputs a client made; equal calls get equal seeds."""
    return int(digest_json([op, digest_of(inputs), repr(asked)])[:16], 16)


class IssuedCaseStore:
    """Cases that were handed out: the latest in memory, the recipes of all on disk. Thread-safe."""

    def __init__(self, recipes: JsonStore, limit: int = MAX_ISSUED) -> None:
        self._limit = limit
        self._recipes = recipes
        self._issued: OrderedDict[tuple[str, int], Issued] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, op: str, maker: Mapping[str, Json], issued: Sequence[tuple[int, Issued]]) -> None:
        """Store cases in memory and their recipes on disk.

        If there are then too many cases in memory, the oldest are dropped there.
        """
        made_from = digest_json(maker)
        records: list[tuple[str, Json]] = [(f"maker:{made_from}", dict(maker))]
        records += [
            (_key(op, one.case.seed), {"maker": made_from, "number": number})
            for number, one in issued
        ]
        self._recipes.put_many(records)
        for _, one in issued:
            self.remember(op, one)

    def remember(self, op: str, issued: Issued) -> None:
        """Store a case in memory."""
        key = op, issued.case.seed
        with self._lock:
            self._issued[key] = issued
            self._issued.move_to_end(key)
            while len(self._issued) > self._limit:
                self._issued.popitem(last=False)

    def find(self, op: str, seed: int) -> Issued | None:
        """Return the case of an op and seed, or None when it is not in memory."""
        with self._lock:
            return self._issued.get((op, seed))

    def handed_out(self, op: str, seeds: Collection[int]) -> set[int]:
        """Return the members of `seeds` whose cases a daemon of this workspace handed out."""
        with self._lock:
            known = {seed for seed in seeds if (op, seed) in self._issued}
        keys = {_key(op, seed): seed for seed in seeds if seed not in known}
        return known | {keys[key] for key in self._recipes.among(list(keys))}

    def recipe(self, op: str, seed: int) -> tuple[dict[str, Json], int] | None:
        """Return the recipe of a case that was handed out; None if none is stored.

        The result has two parts: the recipe that several cases share, and the number with which
        this recipe makes the case.
        """
        record = self._recipes.get(_key(op, seed))
        maker = None if record is None else self._recipes.get(f"maker:{record['maker']}")
        return None if record is None or maker is None else (maker, int(record["number"]))


def _key(op: str, seed: int) -> str:
    return f"case:{seed}:{op}"
