"""Fixtures that tests only read, made once for all of pytest's worker processes."""

from __future__ import annotations

import fcntl
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], T]) -> T:
    """Return the result of `make`, which the first worker that asks for this name calls.

    A fixture of a module is made anew in each worker that gets a test of the module; workers that
    ask for this one meanwhile wait for it. All of them use one folder: no test may change it.

    Parameters
    ----------
    factory : TempPathFactory
    name : str
        One of its own for each fixture.
    make : callable
        Given a folder that does not exist yet; what it returns is pickled. Where it raises, the
        next worker tries, in another folder.
    """
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    kept = base / f"once-{name}.pickle"
    with (base / f"once-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            number = sum(1 for _ in base.glob(f"once-{name}-*"))
            folder = base / f"once-{name}-{number}"
            folder.mkdir()
            made = make(folder / "made")
            whole = folder / "pickle"
            whole.write_bytes(pickle.dumps(made))
            whole.rename(kept)
        return pickle.loads(kept.read_bytes())
