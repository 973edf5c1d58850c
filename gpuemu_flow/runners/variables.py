"""The names of environment variables that a program reads in its worker.

``os.environ`` stays the object that it is; the dictionary below it is replaced by one that tells
who reads what. Reads by C code (`getenv`) are not seen.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gpuemu_flow.observed import ALL_VARIABLES

_NOISE = frozenset((
    "_", "COLUMNS", "GPUEMU_KWARGS", "LINES", "OLDPWD", "PWD", "PYTEST_CURRENT_TEST", "SHLVL",
    "TERM", "WINDOWID",
))  # fmt: skip
AT_START = (
    "LD_LIBRARY_PATH", "LD_PRELOAD", "MKL_NUM_THREADS", "NPY_DISABLE_CPU_FEATURES",
    "NUMEXPR_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_CORETYPE", "OPENBLAS_NUM_THREADS",
    "PYTHONHASHSEED", "PYTHONHOME", "PYTHONOPTIMIZE", "PYTHONPATH", "PYTHONUTF8",
    "VECLIB_MAXIMUM_THREADS",
)  # fmt: skip
"""Read by the interpreter and its libraries as they start, which no Python code tells of."""

_PASSES_ON = (os.sep + "subprocess.py",)
_PACKAGE = str(Path(__file__).parent.parent) + os.sep


def is_noise(name: str) -> bool:
    """Return True for a name whose value differs between two terminals, or is the tool's own.

    These never count as an input, even when a program reads them.
    """
    return name in _NOISE or name.startswith("SSH_") or name.endswith("_SESSION_ID")


class _Told(dict[bytes, bytes]):
    """Stand below ``os.environ`` and tell what is read of it."""

    def __init__(self, values: Mapping[bytes, bytes], tell: Callable[[str], None]) -> None:
        super().__init__(values)
        self._tell = tell
        self._own: set[Any] = set()

    def _read(self, key: Any) -> None:
        if key not in self._own:
            self._own.add(key)  # once told is enough
            self._tell(os.fsdecode(key))

    def _read_all(self) -> None:
        frame = sys._getframe(2)
        while frame.f_back is not None and frame.f_code.co_filename.endswith(_SKIPPED):
            frame = frame.f_back
        name = frame.f_code.co_filename
        if not name.endswith(_PASSES_ON) and not name.startswith(_PACKAGE):
            self._tell(ALL_VARIABLES)

    def __getitem__(self, key: bytes) -> bytes:
        self._read(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self._read(key)
        return super().__contains__(key)

    def get(self, key: bytes, default: Any = None) -> Any:
        self._read(key)
        return super().get(key, default)

    def __setitem__(self, key: bytes, value: bytes) -> None:
        self._own.add(key)
        super().__setitem__(key, value)

    def __iter__(self) -> Iterator[bytes]:
        self._read_all()
        return super().__iter__()

    def keys(self) -> Any:
        self._read_all()
        return super().keys()

    def values(self) -> Any:
        self._read_all()
        return super().values()

    def items(self) -> Any:
        self._read_all()
        return super().items()

    def copy(self) -> dict[bytes, bytes]:
        self._read_all()
        return dict(super().items())


_SKIPPED = (os.sep + "os.py", os.sep + "_collections_abc.py", "<frozen os>",
            "<frozen _collections_abc>")  # fmt: skip


def watch(tell: Callable[[str], None], own: Iterable[str]) -> None:
    """Tell of every name that is read from now on, once; `ALL_VARIABLES` for an iteration.

    Parameters
    ----------
    tell : callable
        Called with a name.
    own : iterable of str
        Names that the tool itself has set.
    """
    inner: Any = os.environ
    values = inner._data

    def tell_real(name: str) -> None:
        if not is_noise(name):
            tell(name)

    told = _Told(values, tell_real)
    told._own.update(os.fsencode(name) for name in own)
    inner._data = told
    bytewise: Any = os.environb
    bytewise._data = told


def names_at_start() -> list[str]:
    """Return the names that count for every program that runs in a worker."""
    return [*AT_START, *(n for n in os.environ if n.startswith(("OPENBLAS_", "MKL_", "NPY_")))]
