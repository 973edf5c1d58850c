"""Compile C to a library and load it; a private cache keeps libraries by their source's digest."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from msgspec import Struct

from gpuemu_flow.lint.toolchain import run_tool

COMPILERS = ("cc", "gcc", "clang")
FLAGS = (
    "-O1", "-std=gnu11", "-shared", "-fPIC", "-w", "-fwrapv", "-fno-strict-aliasing",
    "-ffp-contract=off", "-fno-fast-math", "-fno-math-errno", "-fvisibility=hidden",
    "-ftree-ter", "-fno-stack-protector",
)  # fmt: skip
COMPILE_SECONDS = 120
MAX_LIBRARIES = 200
"""Largest number of libraries that the cache holds; the least recently used are removed first."""

_FEATURES = (("fma", "-mfma"), ("f16c", "-mf16c"), ("popcnt", "-mpopcnt"), ("bmi2", "-mbmi2"))
_DIGEST = 32
_OVERRIDE = "GPUEMU_CC"


class CompileError(Exception):
    """Raised if a kernel could not be compiled or loaded; the text says why."""


class CCompiler(Struct, frozen=True):
    """A C compiler on this machine."""

    path: str
    version: str
    flags: tuple[str, ...]

    def key(self, source: str) -> str:
        """Return the digest that names a source's library in the cache."""
        parts = (self.path, self.version, *self.flags, platform.machine(), source)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def find_compiler(environ: Mapping[str, str]) -> CCompiler | None:
    """Find the compiler that `GPUEMU_CC` names or, if this is not set, a compiler on PATH."""
    given = environ.get(_OVERRIDE)
    if given == "":
        return None
    for name in (given,) if given else COMPILERS:
        path = shutil.which(name, path=environ.get("PATH"))
        if path is not None:
            found = _known(path, _stamp(path))
            if found is not None:
                return found
    return None


def _stamp(path: str) -> tuple[int, int]:
    try:
        found = Path(path).stat()
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)


@cache
def _known(path: str, stamp: tuple[int, int]) -> CCompiler | None:
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, stdin=subprocess.DEVNULL, check=False,
            timeout=COMPILE_SECONDS,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    if done.returncode:
        return None
    return CCompiler(path, done.stdout.decode("utf-8", "replace"), (*FLAGS, *_machine_flags()))


def _machine_flags() -> tuple[str, ...]:
    if platform.machine() not in ("x86_64", "AMD64"):
        return ()
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return ()
    line = next((row for row in text.splitlines() if row.startswith("flags")), "")
    has = set(line.partition(":")[2].split())
    if "avx" not in has:
        return ()
    return tuple(flag for name, flag in _FEATURES if name in has)


def load_library(source: str, compiler: CCompiler, folder: Path) -> ctypes.CDLL:
    """Return the library of a C source, from the cache if possible; else compile it now. Raises
    CompileError."""
    name = compiler.key(source) + ".so"
    with suppress(OSError):
        _make_private(folder)
        found = folder / name
        if not _is_sound(found):
            _build(source, compiler, found)
            _prune(folder)
        else:
            os.utime(found)
        return _open(found)
    with tempfile.TemporaryDirectory() as other:
        target = Path(other) / name
        try:
            _build(source, compiler, target)
        except OSError as error:
            raise CompileError(f"the compiled kernel cannot be kept: {error.strerror}") from None
        return _open(target)


def _open(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise CompileError(f"the compiled kernel cannot be loaded: {error}") from None


def _make_private(folder: Path) -> None:
    """Make the cache's folder private to the user; raise OSError if it belongs to another user."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise OSError("the cache's folder is not ours")
    if found.st_mode & 0o077:
        folder.chmod(0o700)


def _is_sound(path: Path) -> bool:
    """Tell whether a library is intact, belongs to the user, and is writable by nobody else. An
    intact library ends with the sha256 of all bytes before this digest."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
            return False
        if found.st_mode & 0o022:
            return False
        data = file.read()
    return hashlib.sha256(data[:-_DIGEST]).digest() == data[-_DIGEST:]


def _build(source: str, compiler: CCompiler, target: Path) -> None:
    """Compile in a temporary folder next to the target, then move the library to the target."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made, text = Path(folder) / "kernel.so", Path(folder) / "kernel.c"
        text.write_text(source)
        done = run_tool(
            [compiler.path, *compiler.flags, str(text), "-o", str(made), "-lm"],
            timeout=COMPILE_SECONDS, cwd=folder, environment={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
        if done.stopped:
            raise CompileError(f"{compiler.path} was {done.stopped}")
        if not done.ok:
            said = done.stderr.decode("utf-8", "replace").strip().splitlines()
            raise CompileError(f"{compiler.path} failed: {said[0][:200] if said else 'no words'}")
        data = made.read_bytes()
        signed = Path(folder) / "signed.so"
        handle = os.open(signed, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700)
        with os.fdopen(handle, "wb") as file:
            file.write(data + hashlib.sha256(data).digest())
        signed.replace(target)


def _prune(folder: Path) -> None:
    found = [(entry.stat(follow_symlinks=False).st_mtime, entry.path) for entry in
             os.scandir(folder) if entry.name.endswith(".so")]  # fmt: skip
    for _, path in sorted(found)[: max(0, len(found) - MAX_LIBRARIES)]:
        with suppress(OSError):
            Path(path).unlink()
