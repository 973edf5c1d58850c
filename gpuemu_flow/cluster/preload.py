"""Preload module of the dask workers that a command starts: they leave Ctrl-C to the command."""

from __future__ import annotations

import signal


def dask_setup(_worker: object) -> None:
    """Ignore SIGINT, which a terminal sends to all processes of a command."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
