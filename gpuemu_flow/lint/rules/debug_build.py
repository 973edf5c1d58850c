"""Rule 6: a kernel compiled for the debugger."""

from __future__ import annotations

from gpuemu_flow.lint.rules.base import (
    Finding,
    Findings,
    KernelPolicy,
    KernelView,
    Rule,
    needs_ptx,
)


def check(view: KernelView, policy: KernelPolicy) -> Findings:
    """Report a kernel whose ``.target`` has the word ``debug``.

    Line information alone is not reported.
    """
    if "debug" in view.target_options:
        yield Finding("built for debugging (.target says debug)")


RULE = Rule(
    id="debug-build",
    severity="error",
    what="The PTX's `.target` has the word `debug`: it was compiled with `-G`.",
    why="Device debugging turns all optimisation off: every variable lives in local memory. "
    "Figures of such a kernel mean nothing.",
    example="nvcc -G -ptx kernel.cu      // .target sm_80, debug",
    instead="Compile without `-G`. `-lineinfo` keeps source lines at no cost.",
    check=check,
    unchecked=needs_ptx,
)
