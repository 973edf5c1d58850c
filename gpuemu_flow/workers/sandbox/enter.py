"""Enforce a sandbox in a process that was just forked and runs no program yet."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any

from msgspec import Struct

from gpuemu_flow.model.let_through import USER_CACHE, keep_user_cache
from gpuemu_flow.workers.sandbox import filters
from gpuemu_flow.workers.sandbox.listings import Listings
from gpuemu_flow.workers.sandbox.rules import AccessRules, outermost, rules_for
from gpuemu_flow.workers.sandbox.spec import (
    NONE,
    SCRATCH,
    Sandbox,
    has_seccomp,
    is_below,
    landlock_version,
)

CACHES = {
    "CUDA_CACHE_PATH": "cuda",
    "CUPY_CACHE_DIR": "cupy",
    "FLAGGEMS_CACHE_DIR": "flag-gems",
    "MPLCONFIGDIR": "matplotlib",
    "NUMBA_CACHE_DIR": "numba",
    "PYTORCH_KERNEL_CACHE_PATH": "torch-kernels",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
}
"""Variables that name the folder in which a framework caches compiled code."""
BELOW_HOME = {
    "CARGO_HOME": ".cargo",
    "HF_HOME": ".cache/huggingface",
    "KERAS_HOME": ".keras",
    "PYENV_ROOT": ".pyenv",
    "PYTHONUSERBASE": ".local",
    "RUSTUP_HOME": ".rustup",
    "TORCH_HOME": ".cache/torch",
}
"""Variables that name the folder of a user's installation, each with the folder's default path.

The default paths are relative to the home folder.
"""
COMPILED_BELOW_HOME = {
    "CUDA_CACHE_PATH": ".nv/ComputeCache",
    "CUPY_CACHE_DIR": ".cupy/kernel_cache",
    "FLAGGEMS_CACHE_DIR": ".flaggems",
    "MPLCONFIGDIR": ".config/matplotlib",
    "PYTORCH_KERNEL_CACHE_PATH": ".cache/torch/kernels",
    "TRITON_CACHE_DIR": ".triton/cache",
}
"""Defaults, in the home folder, of those `CACHES` that trusted programs continue to use."""
_OF_KERNELS = frozenset(CACHES) - {"MPLCONFIGDIR"}
_KEPT_CAPABILITIES = (1 << 1) | (1 << 3)  # access to other users' files and modes
_CAPABILITIES_VERSION = 0x20080522
_HIGHEST_CAPABILITY = 63
_LAST_CAPABILITY = "/proc/sys/kernel/cap_last_cap"
_Header = ctypes.c_uint32 * 2  # the C structures of capget(2): version and process,
_Sets = ctypes.c_uint32 * 6  # and twice effective, permitted, inheritable


class SandboxError(Exception):
    """Raised if the sandbox cannot be enforced."""


def make_scratch(folder: str = "") -> str:
    """Make a temporary folder, and return its real path."""
    made = tempfile.mkdtemp(dir=folder) if folder else tempfile.mkdtemp(prefix=SCRATCH)
    return os.path.realpath(made)


def move_in(scratch: str, *, trusted: bool) -> str:
    """Set the worker's own folder as ``HOME``; keep packages in the user's home importable."""
    keep_user_cache(os.environ.pop(USER_CACHE, ""))
    if trusted:
        # PyTorch would use it by default; an op need not see the other temporary files there.
        inductor = f"{tempfile.gettempdir()}/torchinductor_{os.environ.get('USER') or os.getuid()}"
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", inductor)
    _use_for_temporary_files(scratch)
    home = os.environ.get("HOME", "")
    os.environ["HOME"] = scratch
    if not os.path.isdir(home):  # noqa: PTH112
        return home
    for name, folder in BELOW_HOME.items():
        path = f"{home}/{folder}"
        if os.path.isdir(path):  # noqa: PTH112
            os.environ.setdefault(name, path)
    for name, folder in COMPILED_BELOW_HOME.items() if trusted else ():
        os.environ.setdefault(name, f"{home}/{folder}")
    return home


class Ready(Struct, frozen=True):
    """A prepared sandbox, ready to be entered; the slow steps are done."""

    ruleset: filters.Ruleset | None
    folders: Mapping[str, str]

    def close(self) -> None:
        """Close the prepared sandbox, for a process that does not enter it."""
        if self.ruleset is not None:
            self.ruleset.close()


def make_ready(
    sandbox: Sandbox, scratch: str, home: str, listings: Listings | None = None
) -> Ready:
    """Prepare a sandbox: list the existing files that a process in the sandbox may use. Call it
    before forking: a forked process has to copy each shared page of memory that it writes to, and
    this function writes to many. Raises OSError, AttributeError: The sandbox cannot be prepared on
    this system."""
    for path in outermost(sandbox.writable):
        if not os.path.lexists(path):
            make(path)
    folders, compiled = _cache_folders(scratch, sandbox, home)
    known = landlock_version(sandbox.level)
    ruleset = None
    if known:
        rules = rules_for(sandbox, scratch, home, compiled, listings)
        ruleset = _ruleset(filters.library(), rules, known)
    return Ready(ruleset, folders)


def enter(sandbox: Sandbox, scratch: str, home: str, ready: Ready | None = None) -> None:
    """Restrict this process, and all that it will start, to the files that `sandbox` allows.
    This cannot be undone. Raises SandboxError: The sandbox cannot be enforced. The caller must
    then run no program, since the cache key of its results would name a sandbox level that was
    not in force."""
    try:
        if ready is None:
            ready = make_ready(sandbox, scratch, home)
        os.environ.update(ready.folders)
        if sandbox.level == NONE:
            _make_inner(sandbox)
            return
        libc = filters.library()
        if len(os.listdir("/proc/self/task")) != 1:  # noqa: PTH208
            raise SandboxError("the worker has more than one thread")
        _drop_capabilities(libc)
        filters.prctl(libc, filters.NO_NEW_PRIVS, 1)
        if ready.ruleset is not None:
            ready.ruleset.enforce()
        if has_seccomp(sandbox.level):
            filters.enforce(libc)
        _make_inner(sandbox)
    except (OSError, AttributeError) as error:
        raise SandboxError(str(error)) from None


def prepare() -> None:
    """Compute in advance what every sandbox needs, so that forked processes need not do it."""
    _highest_capability()
    with suppress(OSError, AttributeError):  # the sandboxed process meets the same error
        filters.adds_rules(filters.library())
        if filters.seccomp_number():
            filters.program(filters.PROCESSOR)


def make(path: str) -> None:
    """Make a missing writable path: a file if the name has a suffix (``op.log``), else a folder."""
    if os.path.splitext(path)[1]:  # noqa: PTH122
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666))
    else:
        os.makedirs(path, exist_ok=True)  # noqa: PTH103


def _make_inner(sandbox: Sandbox) -> None:
    """Make each missing writable path that lies inside another writable path. The outer paths exist
    already, and an op may have replaced one by a link that leads out of the sandbox. Call this only
    once the process is restricted, so that it cannot follow such a link."""
    for path in sandbox.writable:
        with suppress(OSError):  # the op meets the same error where it needs the path
            if not os.path.lexists(path):
                make(path)


def _ruleset(libc: Any, rules: AccessRules, known: int) -> filters.Ruleset:
    ruleset = filters.Ruleset(libc, known)
    try:
        # Every folder can be listed. Otherwise no module could be imported from a folder that leads
        # to a hidden file.
        ruleset.allow(("/",), filters.READ_DIR)
        ruleset.allow(rules.read, filters.READ, rules.opened)
        ruleset.allow(rules.write, filters.WRITE, rules.opened)
        ruleset.allow(rules.devices, filters.DEVICE)
    except BaseException:
        ruleset.close()
        raise
    return ruleset


def _use_for_temporary_files(folder: str) -> None:
    os.environ["TMPDIR"] = folder
    for name in ("TMP", "TEMP"):
        os.environ.pop(name, None)
    tempfile.tempdir = None


def _cache_folders(scratch: str, sandbox: Sandbox, home: str) -> tuple[dict[str, str], list[str]]:
    """Choose writable folders for the compilation caches of frameworks."""
    folders = {}
    writable = tuple(os.path.realpath(path) for path in sandbox.writable)
    usual = (
        {f"{home}/{COMPILED_BELOW_HOME[name]}" for name in _OF_KERNELS & {*COMPILED_BELOW_HOME}}
        if home
        else set()
    )
    found = {real for real in map(os.path.realpath, usual) if not is_below(real, writable)}
    for name, folder in CACHES.items():
        given = os.environ.get(name, "")
        real = os.path.realpath(given) if given else ""
        if not is_below(real, writable):
            folders[name] = f"{scratch}/{folder}"
            if real and name in _OF_KERNELS:
                found.add(real)
    return folders, [path for path in found if not is_below(sandbox.root, (path,))]


@cache
def _highest_capability() -> int:
    """Return the highest capability number, or an upper bound if the system does not report it."""
    try:
        with open(_LAST_CAPABILITY, "rb") as file:  # noqa: PTH123
            return int(file.read())
    except (OSError, ValueError):
        return _HIGHEST_CAPABILITY


def _drop_capabilities(libc: Any) -> None:
    """Drop all capabilities of root but two, which give access to files. Landlock restricts this
    access."""
    header, held = _Header(_CAPABILITIES_VERSION, 0), _Sets()
    if libc.capget(header, held) != 0:
        raise OSError(ctypes.get_errno(), "capabilities cannot be read")
    if not (held[1] or held[4]):
        return
    nothing = ctypes.c_ulong(0)
    for number in range(_highest_capability() + 1):
        if not (1 << number) & _KEPT_CAPABILITIES:
            # It fails for numbers that the kernel does not know, or without the right to do it.
            given = ctypes.c_ulong(number)
            libc.prctl(filters.DROP_FROM_BOUNDS, given, nothing, nothing, nothing)
    kept = held[1] & _KEPT_CAPABILITIES
    if libc.capset(header, _Sets(kept, kept)) != 0:
        raise OSError(ctypes.get_errno(), "capabilities cannot be given up")
