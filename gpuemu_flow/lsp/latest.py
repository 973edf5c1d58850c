"""Run background jobs, one at a time per key; requests during a job cause one more run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable


class Latest:
    """Runs one action at a time per key; requests during a run cause one more run afterwards.

    Parameters
    ----------
    on_error : callable
        Called with the exception of a failing action; other actions are not affected.
    """

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        self._on_error = on_error
        self._running: dict[Hashable, asyncio.Task[None]] = {}
        self._again: set[Hashable] = set()

    def ask(self, key: Hashable, action: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Start `action`; if one of `key` is still running, repeat that one afterwards instead.

        All actions of a key must therefore do the same.
        """
        if key in self._running:
            self._again.add(key)
        else:
            self._running[key] = asyncio.ensure_future(self._run(key, action))
        return self._running[key]

    def running(self, key: Hashable) -> asyncio.Task[None] | None:
        """Return the running job of `key`; None if there is none.

        The job does not end before all runs that were requested so far have ended.
        """
        return self._running.get(key)

    async def _run(self, key: Hashable, action: Callable[[], Awaitable[None]]) -> None:
        try:
            while True:
                self._again.discard(key)
                try:
                    await action()
                except Exception as error:  # an error must not end the server
                    self._on_error(error)
                if key not in self._again:
                    return
        finally:
            del self._running[key]
