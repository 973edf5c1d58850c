"""The data type of lint rules, and functions that several rules use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from gpuemu_flow.artifacts.analysis import KernelAnalysis
from gpuemu_flow.artifacts.findings import PtxLocation, RuleFinding, Violation
from gpuemu_flow.artifacts.policy import KernelPolicy
from gpuemu_flow.artifacts.view import KernelView
from gpuemu_flow.quick_dataclass import dataclass

Check = Callable[[KernelView, KernelPolicy], Iterable[Violation]]
Find = Callable[[KernelAnalysis], Iterable[RuleFinding]]
Unchecked = Callable[[KernelView, KernelPolicy], str]


@dataclass(frozen=True)
class Rule:
    """One lint rule.

    Attributes
    ----------
    number : int
        Position among the rules, which are ordered from the most to the least valuable.
    id : str
        Stable name in kebab-case, by which users allow or silence the rule.
    severity : str
        Default severity of the rule's violations: ``error``, ``warning`` or ``info``.
    what, why, example, instead : str
        Texts for people: what the rule looks for, why that matters, a kernel that breaks the rule,
        and what to do instead.
    check : callable
        Returns the violations of a kernel view under a policy.
    find : callable or None
        Searches the PTX once, whatever the policy; its findings are kept in the kernel view.
    unchecked : callable or None
        Returns the reason why the rule cannot judge a kernel view, or an empty string.
    """

    number: int
    id: str
    severity: str
    what: str
    why: str
    example: str
    instead: str
    check: Check
    find: Find | None = None
    unchecked: Unchecked | None = None


def violation(
    view: KernelView,
    rule: str,
    severity: str,
    message: str,
    *,
    place: PtxLocation | None = None,
    actual: float | None = None,
    limit: float | None = None,
) -> Violation:
    """Make a violation, located in the source if its line is known, else in the PTX.

    By default, `place` is the location of the kernel.
    """
    place = view.place if place is None else place
    in_source = place.source_line > 0 and place.source_file != ""
    return Violation(
        rule,
        severity,
        message,
        place.source_file if in_source else view.file,
        place.source_line if in_source else place.line,
        actual,
        limit,
        place,
    )


def report_findings(rule: str, severity: str) -> Check:
    """Make a ``check`` function that reports every finding of a rule as a violation."""

    def check(view: KernelView, policy: KernelPolicy) -> Iterator[Violation]:
        for finding in view.findings.get(rule, ()):
            yield violation(
                view,
                rule,
                finding.severity or severity,
                finding.message,
                place=finding.place,
                actual=finding.count,
            )

    return check


def needs_ptx(view: KernelView, policy: KernelPolicy) -> str:
    """Return the reason why a rule that reads PTX cannot judge a kernel; empty if it can."""
    return "" if view.has_ptx else "needs the kernel's PTX"


def needs_exact_figures(view: KernelView, policy: KernelPolicy) -> str:
    """Return the reason why the compiler's figures for a kernel are unknown; empty if known."""
    return "" if view.metrics.is_exact else "needs a cubin or the output of ptxas -v"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, such as ``1 instruction`` or ``2 instructions``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def explain(rule: Rule) -> str:
    """Return the description of one rule as a section of Markdown."""
    example = "\n".join(f"    {line}" for line in rule.example.splitlines())
    return (
        f"## {rule.id}\n\n"
        f"Rule {rule.number}, {rule.severity}.\n\n"
        f"**What it does.** {rule.what}\n\n"
        f"**Why it matters.** {rule.why}\n\n"
        f"**Example.**\n\n{example}\n\n"
        f"**Instead.** {rule.instead}\n"
    )
