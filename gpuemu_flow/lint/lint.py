"""Judge a kernel's figures and findings by a policy: rules, severities, allowances, verdict.

Violations are accepted, each for a stated reason, by the configuration or by comments
``gpuemu: allow RULE reason`` in the source.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from msgspec import Struct, field

from gpuemu_flow.lint.kernel import (
    Finding,
    KernelRecord,
    KernelView,
    PtxLocation,
    UncheckedRule,
    Violation,
)
from gpuemu_flow.lint.policy import KernelPolicy
from gpuemu_flow.lint.rules import RULES, RULES_BY_ID, Rule
from gpuemu_flow.model.errors import Problem, did_you_mean
from gpuemu_flow.model.verdicts import decide

LINT_VERSION = 1
"""Part of the cache key: raise it when a rule judges the same view differently."""

ReadSource = Callable[[str], bytes | None]
"""Callable that returns the bytes of a source file that PTX names; None if it is unreadable."""

_COMMENT = re.compile(rb"(?://|#)[ \t]*gpuemu:[ \t]*allow\b[ \t]*([\w-]*)[ \t]*([^\r\n]*)")
_COMMENT_LINE = re.compile(rb"\s*(?://|#|/\*|\*)")
MAX_COMMENTS = 10_000
"""Largest number of comments that are read per file."""


class Linter:
    """Checks kernels by one policy.

    `read_source` reads a source file, in which comments that allow violations are then searched;
    None to ignore such comments. Mistakes in such comments are added to `problems`.
    """

    def __init__(self, policy: KernelPolicy, read_source: ReadSource | None = None) -> None:
        self.policy = policy
        self._allowances = Allowances(read_source or _no_source, RULES_BY_ID)
        self.problems = self._allowances.problems

    def lint(self, view: KernelView) -> KernelRecord:
        """Check one kernel by all rules that the policy does not switch off."""
        violations: list[Violation] = []
        unchecked: list[UncheckedRule] = []
        looked = 0
        for rule in RULES:
            if self.policy.severities.get(rule.id) == "off":
                continue
            looked += 1
            reason = rule.why_unchecked(view, self.policy)
            if reason:
                unchecked.append(UncheckedRule(rule.id, reason))
            found = rule.findings(view, self.policy)
            violations += (self._violation(rule, each, view) for each in found)
        failed = any(v.severity == "error" and not v.allowed for v in violations)
        return KernelRecord(
            name=view.name,
            file=view.file,
            arch=view.arch,
            metric_source=view.metrics.metric_source,
            metrics=view.metrics.figures,
            violations=tuple(violations),
            unchecked=tuple(unchecked),
            verdict=decide(failed, looked - len(unchecked)),
        )

    def _violation(self, rule: Rule, found: Finding, view: KernelView) -> Violation:
        """Place a finding in the source if its line is known, else in the PTX."""
        place = found.place or view.place
        in_source = place.source_line > 0 and place.source_file != ""
        return Violation(
            rule.id,
            self.policy.severities.get(rule.id) or found.severity or rule.severity,
            found.message,
            place.source_file if in_source else view.file,
            place.source_line if in_source else place.line,
            found.actual,
            found.limit,
            self.policy.allow.get(rule.id) or self._allowances.reason_for(rule.id, place),
        )


def _no_source(_name: str) -> None:
    return None


class Allowance(Struct, frozen=True):
    """One comment ``gpuemu: allow RULE reason``: its line, and the line of code below it."""

    rule: str
    reason: str
    line: int
    covers: int


class Allowances(Struct):
    """The ``gpuemu: allow`` comments in the sources of violations; each file is read once."""

    read_source: ReadSource
    known_rules: Collection[str]
    problems: list[Problem] = field(default_factory=list)
    _by_file: dict[str, list[Allowance]] = field(default_factory=dict)

    def reason_for(self, rule: str, place: PtxLocation) -> str:
        """Return the reason why a violation at a location is accepted; empty if it is not.

        A comment covers its own line, and the first line of code below it. A comment at a call also
        covers the code that is inlined there.
        """
        for file, line in (
            (place.source_file, place.source_line),
            (place.call_file, place.call_line),
        ):
            if not file or not line:
                continue
            for allowance in self._comments(file):
                if allowance.rule == rule and line in (allowance.line, allowance.covers):
                    return allowance.reason
        return ""

    def _comments(self, file: str) -> list[Allowance]:
        if file not in self._by_file:
            data = self.read_source(file)
            found, problems = parse_allowances(data or b"", file, self.known_rules)
            self._by_file[file] = found
            self.problems.extend(problems)
        return self._by_file[file]


def parse_allowances(
    data: bytes, file: str, known_rules: Collection[str]
) -> tuple[list[Allowance], list[Problem]]:
    """Read the ``gpuemu: allow`` comments of a source file."""
    allowances: list[Allowance] = []
    problems: list[Problem] = []
    if b"gpuemu:" not in data:
        return allowances, problems
    lines = data.split(b"\n")
    for number, text in enumerate(lines, 1):
        match = _COMMENT.search(text)
        if match is None:
            continue
        rule = match.group(1).decode("utf-8", "replace")
        reason = match.group(2).decode("utf-8", "replace").strip(" \t:-*/")
        if rule not in known_rules:
            problems.append(_warning(file, number, f"unknown rule {rule!r}", known_rules, rule))
        elif not reason:
            problems.append(_warning(file, number, f"no reason given for {rule}"))
        else:
            allowances.append(Allowance(rule, reason, number, _next_code_line(lines, number)))
        if len(allowances) + len(problems) >= MAX_COMMENTS:
            break
    return allowances, problems


def _next_code_line(lines: list[bytes], number: int) -> int:
    """Return the number of the next line of code, or `number` if the next 40 lines hold none.

    Empty lines and comments are not code.
    """
    for following in range(number + 1, min(number + 40, len(lines)) + 1):
        text = lines[following - 1]
        if text.strip() and not _COMMENT_LINE.match(text):
            return following
    return number


def _warning(
    file: str, line: int, message: str, known: Collection[str] = (), rule: str = ""
) -> Problem:
    hint = did_you_mean(rule, sorted(known)) if known else "write: gpuemu: allow RULE reason"
    return Problem("lint-bad-allow", message, hint, file, line, warning=True)
