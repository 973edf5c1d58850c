"""Observe which environment variables a program reads in its worker.

``os.environ`` remains the same object, but the dictionary inside it is replaced by one that records
which file reads which variable. Reads by C code (`getenv`) are not seen. Therefore, an installed
package with such code counts as reading all variables with the package's own prefixes. A library of
the user's that can read the environment counts as reading all of it.
"""

from __future__ import annotations

import mmap
import os
import posix
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gpuemu_flow.installed import is_installed
from gpuemu_flow.observed import ALL_VARIABLES
from gpuemu_flow.runners.stdlib_files import files_of

NEVER = frozenset(("_", "GPUEMU_KWARGS", "PYTEST_CURRENT_TEST"))
OF_TERMINAL = frozenset((
    "COLUMNS", "LINES", "OLDPWD", "PWD", "SHLVL", "TERM", "TERM_SESSION_ID", "WINDOWID",
))  # fmt: skip
AT_START = (
    "BLIS_*", "GLIBC_TUNABLES", "GOMP_*", "KMP_*", "LANG", "LC_*", "LD_*", "LOCPATH", "MALLOC_*",
    "MKL_*", "NPY_*", "NUMEXPR_NUM_THREADS", "OMP_*", "OPENBLAS_*", "TZ", "TZDIR",
    "VECLIB_MAXIMUM_THREADS",
    "PYTHON_*", "PYTHONASYNCIODEBUG", "PYTHONCASEOK", "PYTHONCOERCECLOCALE", "PYTHONDEVMODE",
    "PYTHONEXECUTABLE", "PYTHONHASHSEED", "PYTHONHOME", "PYTHONINTMAXSTRDIGITS",
    "PYTHONIOENCODING", "PYTHONMALLOC", "PYTHONNOUSERSITE", "PYTHONOPTIMIZE", "PYTHONPATH",
    "PYTHONPLATLIBDIR", "PYTHONSAFEPATH", "PYTHONTRACEMALLOC", "PYTHONUSERBASE", "PYTHONUTF8",
    "PYTHONWARNDEFAULTENCODING", "PYTHONWARNINGS",
)  # fmt: skip
"""Variables that the interpreter and its libraries read when they start, unseen by Python code.

``OMP_*`` stands for all names that begin with ``OMP_``, set or not. Some variables of the
interpreter are left out, such as ``PYTHONUNBUFFERED`` and ``PYTHONDONTWRITEBYTECODE``: containers
and editors set them, and they only affect printing or the storage of bytecode.
"""
_OF_PACKAGES = {
    "_cffi_backend": (ALL_VARIABLES,),  # calls any function that the program names
    "torch": ("ATEN_*", "CUDA_*", "DNNL_*", "ONEDNN_*", "PYTORCH_*"),
    "jaxlib": ("CUDA_*", "DNNL_*", "JAX_*", "ONEDNN_*", "TF_*", "XLA_*"),
    "tensorflow": ("CUDA_*", "DNNL_*", "ONEDNN_*", "TF_*", "XLA_*"),
}
_SITE = re.compile(r"/(?:site|dist)-packages/(\w+)")
_SYSTEM_LIBRARIES = ("/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/")
_READERS = (b"\0getenv\0", b"\0secure_getenv\0", b"\0environ\0", b"\0__environ\0")
FUNCTIONS = frozenset(("getenv", "secure_getenv", "environ", "__environ", "_environ"))
"""Names in the C library with which code reads the environment."""

_PASSES_ON = files_of("subprocess")
_ASKS_FOR_SIZE = files_of("shutil")
_PACKAGE = str(Path(__file__).parent.parent) + os.sep
_NOT_THE_USERS = (_PACKAGE, "<frozen")


def is_noise(name: str, reader: str) -> bool:
    """Tell whether to ignore that the file `reader` reads the environment variable `name`.

    Otherwise, the variable counts as an input. Variables that differ between terminals, such as the
    width, count only if the workspace's own code reads them, since libraries read them only to
    format their output. A few variables that differ in every process never count.
    """
    if name in NEVER:
        return True
    of_terminal = name in OF_TERMINAL or name.startswith("SSH_")
    return of_terminal and (reader.startswith("<") or is_installed(reader))


def read_by_library(path: str) -> tuple[str, ...]:
    """Return the names and patterns of the variables that a compiled library may read.

    For a library in ``site-packages``, they follow from the package's name. The system's libraries,
    and other installed ones, count as reading none. A library of the user's counts as reading all
    variables if it refers to ``getenv`` or a similar symbol.
    """
    if path.startswith(_SYSTEM_LIBRARIES):
        return ()
    site = _SITE.search(path)
    if site is not None:
        package = site[1].partition(".")[0]
        return (f"{package.upper()}_*", *_OF_PACKAGES.get(package, ()))
    if is_installed(path):
        return ()
    try:
        with (
            open(path, "rb") as file,  # noqa: PTH123 - pathlib asks by way of the observer
            mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content,
        ):
            reads = any(content.find(name) >= 0 for name in _READERS)
    except (OSError, ValueError):
        return ()
    return (ALL_VARIABLES,) if reads else ()


class _Told(dict[bytes, bytes]):
    """The mapping inside ``os.environ``; it reports the variables that are read from it."""

    def __init__(
        self,
        values: Mapping[bytes, bytes],
        tell: Callable[[str], None],
        tell_asked: Callable[[str], None],
    ) -> None:
        super().__init__(values)
        self._tell = tell
        self._tell_asked = tell_asked
        self._own: set[Any] = set()

    def _read(self, key: Any) -> None:
        if key in self._own:
            return
        name, reader = os.fsdecode(key), _reader(2)
        if is_noise(name, reader):
            return
        self._tell(name)
        if super().__contains__(key):
            self._own.add(key)  # each name is reported once
        elif not (is_installed(reader) or reader.startswith(_NOT_THE_USERS)):
            self._own.add(key)
            self._tell_asked(name)

    def _read_all(self) -> None:
        name = _reader(2)
        if name not in _PASSES_ON and not name.startswith(_PACKAGE):
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


_SKIPPED = files_of("os", "_collections_abc")


def _reader(depth: int) -> str:
    """Return the file of the code that reads a variable, skipping the standard library."""
    frame = sys._getframe(depth + 1)
    while frame.f_back is not None and (
        frame.f_code.co_filename in _SKIPPED
        or (
            frame.f_code.co_name == "get_terminal_size"
            and frame.f_code.co_filename in _ASKS_FOR_SIZE
        )
    ):
        frame = frame.f_back
    return frame.f_code.co_filename


def watch(
    tell: Callable[[str], None], tell_asked: Callable[[str], None], own: Iterable[str]
) -> None:
    """Report each environment variable that is read from now on.

    A variable that is set is reported once. An iteration over the environment is reported as
    `ALL_VARIABLES`. Variables for which `is_noise` is true are not reported.

    Parameters
    ----------
    tell : callable
        Called with the name of each variable that is read, whether it is set or not.
    tell_asked : callable
        Called with the same name after `tell`, if the variable is unset and the user's code reads
        it.
    own : iterable of str
        Names of variables that the tool itself has set; they are not reported.
    """
    inner: Any = os.environ
    known = [os.fsencode(name) for name in own]
    told = _Told(inner._data, tell, tell_asked)
    told._own.update(known)
    inner._data = told
    bytewise: Any = os.environb
    bytewise._data = told
    as_started = _Told(posix.environ, tell, tell_asked)
    as_started._own.update(known)
    posix.environ = as_started
