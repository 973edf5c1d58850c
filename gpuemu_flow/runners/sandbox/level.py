"""Find the parts of the sandbox that this system supports."""

from __future__ import annotations

import sys
from functools import cache

from gpuemu_flow.runners.sandbox.spec import NONE, OFF, STRICT, level_of


@cache
def system_level(*, strict: bool = False) -> str:
    """Name the parts that the system has, such as ``landlock 7, seccomp``.

    Parameters
    ----------
    strict : bool
        True to name also the parts that only ``strict`` uses; finding them starts a process.
    """
    if sys.platform != "linux":
        return NONE
    from gpuemu_flow.runners.sandbox import filters, landlock  # noqa: PLC0415 - brings ctypes

    known, seccomp = landlock.version(), filters.available()
    if not strict:
        return level_of(known, seccomp=seccomp)
    from gpuemu_flow.runners.sandbox import bubblewrap, cgroup  # noqa: PLC0415 - starts a process

    bwrap = not bubblewrap.refusal()
    return level_of(known, seccomp=seccomp, bwrap=bwrap, cgroup=bwrap and bool(cgroup.home()))


def level_for(mode: str) -> str:
    """Return the level at which ops run under a mode of the configuration."""
    return OFF if mode == "off" else system_level(strict=mode == STRICT)
