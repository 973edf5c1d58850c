"""The part of the environment that results depend on: interpreter, packages, processor."""

from __future__ import annotations

import os
import platform
import re
import sys
from pathlib import Path

from gpuemu_flow.store.keys import digest_bytes

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
    from importlib import metadata  # noqa: PLC0415

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
    return platform.processor() or platform.machine()


def fingerprint() -> dict[str, str]:
    """Collect the facts about the machine that every action key of a program's run contains."""
    found = {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "machine": f"{sys.platform} {platform.machine()}",
        "cpu": cpu_features(),
    }
    found.update({name: package_version(name) for name in NUMERIC_PACKAGES})
    return found
