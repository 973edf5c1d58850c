"""Find the parts of the sandbox that this system supports."""

from __future__ import annotations

import sys
from functools import cache

from gpuemu_flow.runners.sandbox.spec import NONE, OFF, level_of


@cache
def system_level() -> str:
    """Name the parts that the system has, such as ``landlock 7, seccomp``."""
    if sys.platform != "linux":
        return NONE
    from gpuemu_flow.runners.sandbox import filters, landlock  # noqa: PLC0415 - brings ctypes

    return level_of(landlock.version(), seccomp=filters.available())


def level_for(mode: str) -> str:
    """Return the level at which ops run under a mode of the configuration."""
    return OFF if mode == "off" else system_level()
