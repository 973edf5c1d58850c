"""Violations that source comments or the configuration accept, each for a stated reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import field, replace

from gpuemu_flow.artifacts.findings import PtxLocation, Violation
from gpuemu_flow.errors import Problem, did_you_mean
from gpuemu_flow.quick_dataclass import dataclass

ReadSource = Callable[[str], bytes | None]
"""Callable that returns the bytes of a source file that PTX names; None if it is unreadable."""

_COMMENT = re.compile(rb"(?://|#)[ \t]*gpuemu:[ \t]*allow\b[ \t]*([\w-]*)[ \t]*([^\r\n]*)")
_COMMENT_LINE = re.compile(rb"\s*(?://|#|/\*|\*)")
MAX_COMMENTS = 10_000
"""Largest number of comments that are read per file."""


@dataclass(frozen=True)
class Allowance:
    """One comment ``gpuemu: allow RULE reason``: its line, and the line of code below it."""

    rule: str
    reason: str
    line: int
    covers: int


@dataclass
class Allowances:
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
    """Read the ``gpuemu: allow`` comments of a source file.

    Returns
    -------
    (list of Allowance, list of Problem)
        A comment without a reason, or with an unknown rule, is a warning and allows nothing.
    """
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


def apply_allowances(
    violations: list[Violation],
    allowances: Allowances | None,
    allowed_by_policy: Mapping[str, str],
) -> list[Violation]:
    """Return all violations; those that are accepted carry the reason in ``allowed``.

    Parameters
    ----------
    violations : list of Violation
    allowances : Allowances or None
        The comments that accept violations; None to ignore comments.
    allowed_by_policy : mapping of str to str
        Rules whose violations the configuration accepts, each with the reason.
    """
    marked = []
    for violation in violations:
        reason = allowed_by_policy.get(violation.rule, "")
        if not reason and allowances is not None:
            reason = allowances.reason_for(violation.rule, violation.place)
        marked.append(replace(violation, allowed=reason) if reason else violation)
    return marked
