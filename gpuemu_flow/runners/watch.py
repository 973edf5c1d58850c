"""Measure the time of a program's own call, and tell the coordinator that it is running."""

from __future__ import annotations

import time

from gpuemu_flow.runners import memfd


class Watch:
    """Context manager around the program's own call."""

    def __init__(self, status_fd: int | None = None) -> None:
        self._status_fd = status_fd
        self._start = 0.0
        self.seconds = 0.0

    def _tell(self, phase: int) -> None:
        if self._status_fd is not None:
            try:
                memfd.write_status(self._status_fd, phase)
            except OSError:  # the program closed it; the coordinator then uses its outer limit
                self._status_fd = None

    def __enter__(self) -> Watch:
        self._tell(memfd.CALLING)
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._start
        self._tell(memfd.FINISHING)

    def preparing(self) -> None:
        """Tell the coordinator that inputs are being made, which stops the program's time limit."""
        self._tell(memfd.PREPARING)
