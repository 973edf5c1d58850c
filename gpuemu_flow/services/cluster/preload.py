"""Preload module of the dask workers that a command starts; it makes them ignore Ctrl-C."""

from __future__ import annotations

import signal


def dask_setup(_worker: object) -> None:
    """Ignore SIGINT, which a terminal sends to all processes of a command."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
