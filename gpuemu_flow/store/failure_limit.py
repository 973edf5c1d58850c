"""The disk limit for inputs of recorded failures, and the order in which they are dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from gpuemu_flow.quick_dataclass import dataclass

INPUTS_LIMIT = 2_000_000_000
"""Bytes that the stored inputs of all recorded failures may take together."""

FREED_TO = 0.9
"""Share of the limit that is left when it was exceeded, so that not every failure looks again."""

MADE_AGAIN, GIVEN, SHRUNK = range(3)
"""Ranks of inputs, those that go first first: what follows from the case can be made again; what
a client or a test sent cannot; a shrunk case is the result of much work, and small."""


@dataclass(frozen=True)
class StoredInputs:
    """The stored inputs of one failure.

    Attributes
    ----------
    failure : str
        Id of the failure.
    digest : str
        Digest of the blob, which several failures may share.
    rank : int
        `MADE_AGAIN`, `GIVEN` or `SHRUNK`.
    time : str
        The time when the failure was last seen; such times sort as text.
    """

    failure: str
    digest: str
    rank: int
    time: str


@dataclass(frozen=True)
class Excess:
    """The inputs to drop.

    Attributes
    ----------
    failures : tuple of str
        Ids of the failures that lose their inputs.
    blobs : tuple of str
        Digests that no failure needs any more.
    left : int
        Bytes that stay.
    """

    failures: tuple[str, ...] = ()
    blobs: tuple[str, ...] = ()
    left: int = 0


def excess(
    held: Iterable[StoredInputs], sizes: Mapping[str, int], limit: int, newest: str
) -> Excess:
    """Choose the failures whose inputs are dropped so that the rest fits.

    Parameters
    ----------
    held : iterable of StoredInputs
    sizes : mapping of str to int
        Bytes of each blob.
    limit : int
        Bytes that may stay.
    newest : str
        Id of the failure that was just recorded: its inputs stay, whatever their size.

    Returns
    -------
    Excess
        Inputs with the lowest rank first, of equal ranks those unseen for longest.
    """
    held = list(held)
    users: dict[str, int] = {}
    for one in held:
        users[one.digest] = users.get(one.digest, 0) + 1
    total = sum(sizes[digest] for digest in users)
    if total <= limit:
        return Excess(left=total)
    chosen: list[StoredInputs] = []
    blobs = []
    for one in sorted(held, key=lambda h: (h.rank, h.time, h.failure)):
        if total <= FREED_TO * limit:
            break
        if one.failure == newest:
            continue
        chosen.append(one)
        users[one.digest] -= 1
        if not users[one.digest]:
            blobs.append(one.digest)
            total -= sizes[one.digest]
    # A failure that shares its inputs with one that stays has lost nothing.
    failures = tuple(one.failure for one in chosen if not users[one.digest])
    return Excess(failures, tuple(blobs), total)


class InputsBudget:
    """Counts the bytes of stored inputs, and lists all of them only if they are too many.

    Parameters
    ----------
    limit : int
        Bytes.
    scan : callable
        Gives every failure's stored inputs as they are now: other processes write, too.
    size_of : callable
        Bytes of a blob, 0 when it is gone.
    """

    def __init__(
        self, limit: int, scan: Callable[[], Iterable[StoredInputs]], size_of: Callable[[str], int]
    ) -> None:
        self.limit = limit
        self._scan = scan
        self._size_of = size_of
        self._total: int | None = None

    def added(self, failure: str, nbytes: int) -> Excess:
        """Count inputs that were just stored, and return those to drop for them."""
        if self._total is not None:
            self._total += nbytes  # twice when it was there already: then the scan comes earlier
            if self._total <= self.limit:
                return Excess()
        held = list(self._scan())
        sizes = {one.digest: self._size_of(one.digest) for one in held}
        found = excess(held, sizes, self.limit, failure)
        self._total = found.left
        return found
