"""Limit the disk space of recorded failures' inputs, and choose the inputs to drop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from gpuemu_flow.quick_dataclass import dataclass

INPUTS_LIMIT = 2_000_000_000
"""Largest total size of the inputs of all recorded failures, in bytes."""

FREED_TO = 0.9
"""Fraction of the limit down to which inputs are dropped, so that the next failures fit."""

MADE_AGAIN, GIVEN, SHRUNK = range(3)
"""Ranks of inputs; inputs with the lowest rank are dropped first. Generated inputs can be made
again. Inputs that a client or a test sent cannot. Inputs of a shrunk case took much work, and are
small."""


@dataclass(frozen=True)
class StoredInputs:
    """The stored inputs of one failure."""

    failure: str
    digest: str
    rank: int
    time: str


@dataclass(frozen=True)
class Excess:
    """The inputs to drop."""

    failures: tuple[str, ...] = ()
    blobs: tuple[str, ...] = ()
    left: int = 0


def excess(
    stored: Iterable[StoredInputs], sizes: Mapping[str, int], limit: int, newest: str
) -> Excess:
    """Choose the inputs to drop if all stored inputs together exceed the limit.

    Enough inputs are dropped to leave at most `FREED_TO` of the limit. Inputs with the lowest rank
    are dropped first. Among inputs of the same rank, those whose failures were seen least recently
    are dropped first.
    """
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
        """Count inputs that were just stored, and choose inputs to drop if there are too many."""
        if self._total is not None:
            self._total += nbytes  # an existing blob counts twice: the scan is only earlier
            if self._total <= self.limit:
                return Excess()
        stored = list(self._scan())
        sizes = {one.digest: self._size_of(one.digest) for one in stored}
        found = excess(stored, sizes, self.limit, failure)
        self._total = found.left
        return found
