"""Rule 6: a kernel compiled for the debugger."""

from __future__ import annotations

from collections.abc import Iterator

from gpuemu_flow.artifacts.findings import Violation
from gpuemu_flow.artifacts.policy import KernelPolicy
from gpuemu_flow.artifacts.rules.base import Rule, needs_ptx, violation
from gpuemu_flow.artifacts.view import KernelView

ID = "debug-build"


def check(view: KernelView, policy: KernelPolicy) -> Iterator[Violation]:
    """Report a kernel whose ``.target`` has the word ``debug``.

    Line information alone is not reported.
    """
    if "debug" in view.target_options:
        yield violation(view, ID, "error", "built for debugging (.target says debug)")


RULE = Rule(
    number=6,
    id=ID,
    severity="error",
    what="The PTX's `.target` has the word `debug`: it was compiled with `-G`.",
    why="Device debugging turns all optimisation off: every variable lives in local memory. "
    "Figures of such a kernel mean nothing.",
    example="nvcc -G -ptx kernel.cu      // .target sm_80, debug",
    instead="Compile without `-G`. `-lineinfo` keeps source lines at no cost.",
    check=check,
    unchecked=needs_ptx,
)
