"""Digest of the part of our code that can change verdicts: an upgrade makes old results stale."""

from __future__ import annotations

import os
import re
import sys
from functools import cache
from pathlib import Path

from gpuemu_flow.build.files import FileTable
from gpuemu_flow.store.keys import digest_bytes, digest_json

_PACKAGE = Path(__file__).resolve().parent.parent
_FOLDERS = (
    "build",
    "cases",
    "cases/kinds",
    "config",
    "emulator",
    "emulator/effects",
    "emulator/host",
    "emulator/native",
    "emulator/semantics",
    "judge",
    "lint",
    "lint/ptx",
    "lint/rules",
    "model",
    "numerics",
    "store",
    "tasks",
    "tasks/parts",
    "workers",
    "workers/sandbox",
)
"""All code that can change a verdict."""
_LENGTH = 16


@cache
def _folders() -> dict[str, str]:
    """Map the absolute path of each folder of our code to its path relative to the package.

    If links lead to a folder, its path with the links and its path without them are both keys.
    """
    found = {}
    for name in _FOLDERS:
        folder = _PACKAGE / name
        found[str(folder)] = found[os.path.realpath(folder)] = name
    return found


def covers(path: str) -> bool:
    """Tell whether `digest` covers a file."""
    return os.path.dirname(path) in _folders()  # noqa: PTH120 - hot


def paths() -> list[str]:
    """Return the files that `digest` covers, absolute and sorted."""
    found = set[str]()
    for folder, name in _folders().items():
        if folder == os.path.realpath(_PACKAGE / name):
            with os.scandir(folder) as entries:
                found.update(e.path for e in entries if e.name.endswith(".py"))
    return sorted(found)


def digest(files: FileTable) -> str:
    """Return a digest of all of our code that can change a verdict."""
    named = []
    for path in paths():
        folder, _, name = path.rpartition("/")
        known = _folders().get(folder, path.removeprefix(f"{_PACKAGE}/").rpartition("/")[0])
        named.append([f"{known}/{name}", files.digest(path)])
    return digest_json(sorted(named))[:_LENGTH]


# The part of the environment that results depend on: interpreter, packages, processor.


NUMERIC_PACKAGES = ("numpy", "ml_dtypes")
_METADATA = ".dist-info"


def package_version(name: str) -> str:
    """Return the version of a distribution; empty if none is installed under that name.

    The metadata folder of a wheel has the version in its name. Other distributions are looked up by
    the standard library, whose import takes as long as all other work of a short command.
    """
    begin = re.sub(r"[-_.]+", "_", name).lower() + "-"
    for folder in sys.path:
        try:
            entries = os.listdir(folder or ".")  # noqa: PTH208 - names alone
        except OSError:
            continue  # no folder, as an archive
        for entry in entries:
            if entry.endswith(_METADATA) and entry.lower().startswith(begin):
                return entry[len(begin) : -len(_METADATA)]
    from importlib import metadata  # noqa: PLC0415 - brings the parser of e-mail

    try:
        return metadata.version(name)
    except (metadata.PackageNotFoundError, ValueError):
        return ""


def cpu_features() -> str:
    """Return a digest of the processor's feature flags, which numpy's SIMD paths depend on.

    On Linux, these are the flags of the first core in ``/proc/cpuinfo``; elsewhere, the name of the
    processor is used.
    """
    try:
        with Path("/proc/cpuinfo").open(encoding="ascii", errors="replace") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() in ("flags", "Features"):
                    return digest_bytes(" ".join(sorted(value.split())).encode())[:16]
    except OSError:
        pass
    return os.uname().machine


def fingerprint() -> dict[str, str]:
    """Collect the facts about the machine that every action key of a program's run contains."""
    found = {
        "python": f"{sys.implementation.name} {sys.version.split()[0]}",
        "machine": f"{sys.platform} {os.uname().machine}",
        "cpu": cpu_features(),
    }
    found.update({name: package_version(name) for name in NUMERIC_PACKAGES})
    return found
