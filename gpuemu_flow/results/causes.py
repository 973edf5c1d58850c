"""Group the failing cases of one op by their causes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpuemu_flow.cases.cause import Cause, case_id
from gpuemu_flow.judging.verdicts import reason
from gpuemu_flow.results.model import CaseFailure, OpResult
from gpuemu_flow.types import Verdict


class Explained(msgspec.Struct, frozen=True):
    """Failing cases with the same confirmed cause or, without one, of the same kind.

    The smallest case is the first of `members`.
    """

    members: list[CaseFailure]
    cause: Cause | None = None

    @property
    def text(self) -> str:
        """Return the confirmed cause as text; empty if there is none."""
        return self.cause.text if self.cause is not None else ""


def causes(results: Sequence[OpResult]) -> list[Explained]:
    """Group one op's failing cases by cause; the group with the smallest case comes first."""
    failures = [failure for result in results for failure in result.failures]
    known = next((result.causes for result in results if result.causes), ())
    of_case = {member: cause for cause in reversed(known) for member in cause.members}
    groups: dict[object, list[CaseFailure]] = {}
    found: dict[object, Cause] = {}
    for failure in sorted(failures, key=lambda f: (f.case.numel, f.case.index)):
        cause = of_case.get(case_id(failure.case))
        key = _kind(failure) if cause is None else ("cause", cause.text)
        groups.setdefault(key, []).append(failure)
        if cause is not None:
            found[key] = cause
    return [Explained(members, found.get(key)) for key, members in groups.items()]


def _kind(failure: CaseFailure) -> object:
    """Return what failing cases without a known cause are grouped by."""
    result = failure.result
    first = result.failures[0] if result.failures else None
    if first is None:
        return (result.verdict,)
    if result.verdict is Verdict.FAILED:
        return result.verdict, first.kind
    return result.verdict, reason(first), first.output, first.place
