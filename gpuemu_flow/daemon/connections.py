"""Limit the connections of a daemon.

A connection counts toward the limit once it has sent a whole message. Until then it is half-open,
and is closed after `HALF_OPEN_SECONDS` or when its user has too many half-open connections.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from gpuemu_flow.quick_dataclass import dataclass

HALF_OPEN_SECONDS = 10.0
"""Seconds that a connection may stay open without a whole message."""
MOST_HALF_OPEN = 256
IDLE_SECONDS = 60.0
"""Seconds without a request after which a connection is closed if another client waits."""
OTHERS_SHARE = 4
"""Each user except the daemon's own may have one of this many equal shares of the connections."""


@dataclass
class _Connection:
    """One connection. `last` is the time of its latest message, or else of its start."""

    user: int
    last: float
    counted: bool = False


class ConnectionTable:
    """All connections of a daemon. Thread-safe."""

    def __init__(self, most: int, owner: int) -> None:
        self.most = most
        self._owner = owner
        self._connections: dict[int, _Connection] = {}
        self._lock = threading.Lock()
        self._refused = 0.0

    def enter(self, pipe: int, user: int, now: float) -> tuple[bool, list[int]]:
        """Add a connection if there is room for it."""
        with self._lock:
            if self._taken(user) >= self._share(user, self.most) or self._full():
                self._refused = now
                return False, []
            self._connections[pipe] = _Connection(user, now)
            return True, self._too_many(user)

    def note_message(self, pipe: int, now: float) -> bool:
        """Record a whole message of a connection; return False if the caller has to close it."""
        with self._lock:
            found = self._connections.get(pipe)
            if found is None:
                return True  # it left, and its request is given up elsewhere
            found.last = now
            if found.counted:
                return True
            if self._full() or self._taken(found.user) >= self._share(found.user, self.most):
                self._refused = now
                return False
            found.counted = True
            return True

    def leave(self, pipe: int) -> bool:
        """Forget a connection, and return whether it was the last one."""
        with self._lock:
            self._connections.pop(pipe, None)
            return not self._connections

    def user_of(self, pipe: int) -> int | None:
        """Return the user id of a connection's client; None if the client has left."""
        with self._lock:
            found = self._connections.get(pipe)
            return None if found is None else found.user

    def overdue(self, now: float, is_busy: Callable[[int], bool]) -> list[int]:
        """Return the numbers of the connections to close.

        A connection is closed if it has been half-open for `HALF_OPEN_SECONDS`. If the table is
        full and a client was refused lately, one more connection is closed: the one that has been
        idle for longest, provided that it was idle for at least `IDLE_SECONDS`. A connection is
        never idle while `is_busy` returns true for its number.
        """
        with self._lock:
            late = [
                pipe
                for pipe, one in self._connections.items()
                if not one.counted and now - one.last >= HALF_OPEN_SECONDS
            ]
            if self._full() and now - self._refused < HALF_OPEN_SECONDS:
                idle = [
                    (one.last, pipe)
                    for pipe, one in self._connections.items()
                    if one.counted and now - one.last >= IDLE_SECONDS and not is_busy(pipe)
                ]
                late += [pipe for _, pipe in sorted(idle)[:1]]
            return late

    def _full(self) -> bool:
        return sum(one.counted for one in self._connections.values()) >= self.most

    def _taken(self, user: int) -> int:
        return sum(one.counted and one.user == user for one in self._connections.values())

    def _share(self, user: int, whole: int) -> int:
        return whole if user == self._owner else max(1, whole // OTHERS_SHARE)

    def _too_many(self, user: int) -> list[int]:
        """Remove and return a user's oldest half-open connections that exceed the user's share."""
        half = [
            (one.last, pipe)
            for pipe, one in self._connections.items()
            if one.user == user and not one.counted
        ]
        surplus = len(half) - self._share(user, MOST_HALF_OPEN)
        evicted = [pipe for _, pipe in sorted(half)[: max(0, surplus)]]
        for pipe in evicted:
            del self._connections[pipe]
        return evicted
