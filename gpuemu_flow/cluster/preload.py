"""Loaded by dask in the workers that a command starts: Ctrl-C is the command's to answer."""

from __future__ import annotations

import signal


def dask_setup(_worker: object) -> None:
    """Ignore SIGINT, which a terminal sends to all processes of a command."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
