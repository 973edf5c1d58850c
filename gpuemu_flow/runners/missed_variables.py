"""Add a hint if a program may have failed because an environment variable was withheld."""

from __future__ import annotations

import os
import re
from dataclasses import replace

from gpuemu_flow.let_through import is_general, is_named
from gpuemu_flow.runners.api import Program, RunError

_MAY_BE_WHY = ("op-exception", "op-not-loadable", "op-exit-code")
_WORD = re.compile(r"[A-Za-z_]\w{2,}")
_MOST = 3


def hinted(error: RunError, program: Program) -> RunError:
    """Return the error, with a hint if its message names environment variables held back."""
    if error.hint or error.slug not in _MAY_BE_WHY:
        return error
    names = set(_WORD.findall(f"{error.message}\n{error.stderr_tail}"))
    held_back = sorted(name for name in names if _is_held_back(name, program))[:_MOST]
    if not held_back:
        return error
    shown = ", ".join(f'"{name}"' for name in held_back)
    return replace(
        error,
        hint=f"it was not given variables of yours: env = [{shown}], of the op or of "
        "`[execution]`, lets them through",
    )


def _is_held_back(name: str, program: Program) -> bool:
    if name not in os.environ or name in program.env:
        return False
    return not (is_general(name) or is_named(name, program.env_names))
