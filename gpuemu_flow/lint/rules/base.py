"""What a lint rule is, and what several rules use."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from gpuemu_flow.lint.analysis import KernelAnalysis
from gpuemu_flow.lint.kernel import Finding, KernelView
from gpuemu_flow.lint.policy import KernelPolicy

__all__ = [
    "Finding",
    "Findings",
    "KernelAnalysis",
    "KernelPolicy",
    "KernelView",
    "Rule",
    "needs_exact_figures",
    "needs_ptx",
    "plural",
]

Findings = Iterable[Finding]


class Rule(Struct, frozen=True):
    """One lint rule; ``severity`` is the default of its findings.

    ``what``, ``why``, ``example`` and ``instead`` are its page: what it looks for, why that
    matters, a kernel that breaks it, and what to do instead. ``find`` searches the PTX once,
    whatever the policy; what it finds is kept in the kernel view, and is what the rule finds unless
    it has a ``check``, which judges a view by a policy. ``unchecked`` returns why the rule cannot
    judge a view, or an empty text; without it, a rule with ``find`` needs the PTX.
    """

    id: str
    severity: str
    what: str
    why: str
    example: str
    instead: str
    find: Callable[[KernelAnalysis], Findings] | None = None
    check: Callable[[KernelView, KernelPolicy], Findings] | None = None
    unchecked: Callable[[KernelView, KernelPolicy], str] | None = None

    def findings(self, view: KernelView, policy: KernelPolicy) -> Findings:
        """Return what the rule finds in a kernel under a policy."""
        if self.check is not None:
            return self.check(view, policy)
        return view.findings.get(self.id, ())

    def why_unchecked(self, view: KernelView, policy: KernelPolicy) -> str:
        """Return the reason why the rule cannot judge a kernel; empty if it can."""
        unchecked = self.unchecked or (needs_ptx if self.find is not None else None)
        return unchecked(view, policy) if unchecked is not None else ""


def needs_ptx(view: KernelView, _policy: KernelPolicy) -> str:
    """Return the reason why a rule that reads PTX cannot judge a kernel; empty if it can."""
    return "" if view.has_ptx else "needs the kernel's PTX"


def needs_exact_figures(view: KernelView, _policy: KernelPolicy) -> str:
    """Return the reason why the compiler's figures for a kernel are unknown; empty if known."""
    return "" if view.metrics.is_exact else "needs a cubin or the output of ptxas -v"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, such as ``1 instruction`` or ``2 instructions``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
