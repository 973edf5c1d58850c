"""Cases that were handed out: what a submission with their seed is about."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from gpuemu_flow.types import Case, Json, Shape

MAX_ISSUED = 50_000


@dataclass(frozen=True)
class Issued:
    """One case that a client was given.

    Attributes
    ----------
    case : Case
    shape : tuple of int
        The one shape that stands for the whole case on the wire.
    fuzz_config : JSON
        What it was made from.
    """

    case: Case
    shape: Shape
    fuzz_config: Json


class IssuedCases:
    """The latest cases by op and seed. Thread-safe."""

    def __init__(self, limit: int = MAX_ISSUED) -> None:
        self._limit = limit
        self._issued: OrderedDict[tuple[str, int], Issued] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, op: str, issued: Issued) -> None:
        """Remember a case; the oldest is forgotten when there are too many."""
        key = op, issued.case.seed
        with self._lock:
            self._issued[key] = issued
            self._issued.move_to_end(key)
            while len(self._issued) > self._limit:
                self._issued.popitem(last=False)

    def find(self, op: str, seed: int) -> Issued | None:
        """The case of an op and seed, or None when it was never issued or is forgotten."""
        with self._lock:
            return self._issued.get((op, seed))
