"""Judge a kernel's figures and findings by a policy: rules, severities, allowances, verdict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field, fields, replace
from typing import Any

from gpuemu_flow.artifacts.findings import Violation
from gpuemu_flow.artifacts.kernel_record import (
    KernelFigures,
    KernelRecord,
    MachineMix,
    UncheckedRule,
)
from gpuemu_flow.artifacts.metrics import KernelMetrics
from gpuemu_flow.artifacts.policy import KernelPolicy
from gpuemu_flow.artifacts.rules import RULES, RULES_BY_ID
from gpuemu_flow.artifacts.sass_families import count_sass_families
from gpuemu_flow.artifacts.suppress import Allowances, ReadSource, apply_allowances
from gpuemu_flow.artifacts.view import KernelView
from gpuemu_flow.errors import Problem
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import Verdict
from gpuemu_flow.verdicts import decide

LINT_VERSION = 1
"""Part of the cache key: raise it when a rule judges the same view differently."""


_FIGURES = tuple(item.name for item in fields(KernelFigures) if item.name != "sass")


@dataclass(frozen=True)
class LintResult:
    """The result of linting one kernel for one architecture.

    Attributes
    ----------
    kernel, file, arch : str
    verdict : Verdict
        ``failed`` if an error is not accepted, else ``inconclusive`` if no rule could judge the
        kernel, else ``passed``.
    violations : tuple of Violation
        In rule order. Accepted violations carry the reason in ``allowed``.
    unchecked : tuple of UncheckedRule
        Rules that could not judge the kernel. They are listed so that nobody takes the absence of
        violations for a pass.
    problems : tuple of Problem
        Problems in the comments ``gpuemu: allow``.
    """

    kernel: str
    file: str
    arch: str
    verdict: Verdict
    violations: tuple[Violation, ...] = ()
    unchecked: tuple[UncheckedRule, ...] = ()
    problems: tuple[Problem, ...] = ()


@dataclass
class Linter:
    """Applies one policy to kernel views.

    Attributes
    ----------
    policy : KernelPolicy
    read_source : callable or None
        Reads a source file, in which ``gpuemu: allow`` comments are then searched; None to ignore
        such comments.
    """

    policy: KernelPolicy
    read_source: ReadSource | None = None
    _allowances: Allowances | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.read_source is not None:
            self._allowances = Allowances(self.read_source, RULES_BY_ID)

    def lint(self, view: KernelView) -> LintResult:
        """Check one kernel by all rules that the policy does not switch off."""
        violations: list[Violation] = []
        unchecked: list[UncheckedRule] = []
        looked = 0
        for rule in RULES:
            severity = self.policy.severities.get(rule.id, "")
            if severity == "off":
                continue
            looked += 1
            reason = rule.unchecked(view, self.policy) if rule.unchecked else ""
            if reason:
                unchecked.append(UncheckedRule(rule.id, reason))
            found: Iterable[Violation] = rule.check(view, self.policy)
            if severity:
                found = (replace(violation, severity=severity) for violation in found)
            violations.extend(found)
        seen = len(self._allowances.problems) if self._allowances else 0
        marked = apply_allowances(violations, self._allowances, self.policy.allow)
        failed = any(v.severity == "error" and not v.allowed for v in marked)
        problems = self._allowances.problems[seen:] if self._allowances else []
        return LintResult(
            view.name,
            view.file,
            view.arch,
            decide(failed, looked - len(unchecked)),
            tuple(marked),
            tuple(unchecked),
            tuple(problems),
        )


def _machine_mix(metrics: KernelMetrics) -> MachineMix | None:
    """Count machine instructions by family; None if no disassembler listed them."""
    if metrics.sass_opcodes is None:
        return None
    families = count_sass_families(metrics.sass_opcodes)
    return MachineMix(metrics.sass_tool, metrics.sass_instructions or 0, families)


def kernel_record(view: KernelView, result: LintResult) -> KernelRecord:
    """Return the figures and the verdict of one kernel as one record."""
    metrics = view.metrics
    shown = {name: getattr(metrics, name) for name in _FIGURES}
    return KernelRecord(
        name=view.name,
        file=view.file,
        arch=view.arch,
        metric_source=metrics.metric_source,
        metrics=KernelFigures(**shown, sass=_machine_mix(metrics)),
        violations=result.violations,
        unchecked=result.unchecked,
        verdict=result.verdict,
    )


def kernel_json(view: KernelView, result: LintResult) -> dict[str, Any]:
    """Return the JSON that ``lint`` and ``artifacts`` print for one kernel."""
    return kernel_record(view, result).to_json()
