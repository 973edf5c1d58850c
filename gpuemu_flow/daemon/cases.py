"""Cases that were handed out: what a submission with their seed is about."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    digest : str
        Of the inputs as they were sent; see `digest_of`.
    """

    case: Case
    shape: Shape
    fuzz_config: Json
    digest: str


def digest_of(inputs: Mapping[str, NDArray[Any]]) -> str:
    """sha256 of tensors: names, dtypes, shapes and elements in C order."""
    found = hashlib.sha256()
    for name, array in sorted(inputs.items()):
        found.update(repr((name, array.dtype.name, array.shape)).encode())
        found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


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
