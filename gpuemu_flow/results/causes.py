"""Group the failing cases of one op by their causes."""

from __future__ import annotations

from collections.abc import Sequence

from gpuemu_flow.cases.cause import Cause, case_id
from gpuemu_flow.cases.features import group
from gpuemu_flow.judging.verdicts import reason
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.results.model import CaseFailure, OpResult
from gpuemu_flow.types import Case, Verdict


@dataclass(frozen=True)
class Explained:
    """A group of failing cases with the same cause, or with similar features.

    Attributes
    ----------
    members : list of CaseFailure
        Smallest case first.
    cause : Cause or None
        The cause that new cases confirmed; None if they confirmed none.
    seen_with : tuple of str
        If there is no confirmed cause: features of the cases that may be the cause, likeliest
        first.
    """

    members: list[CaseFailure]
    cause: Cause | None = None
    seen_with: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Return the confirmed cause, or else the cases' features, as text; empty if unknown."""
        if self.cause is not None:
            return self.cause.text
        return f"seen with: {'; '.join(self.seen_with)}" if self.seen_with else ""

    @property
    def line(self) -> str:
        """Return `text` as a full line, with the prefix ``cause:`` if the cause is confirmed."""
        return f"cause: {self.text}" if self.cause is not None else self.text


def causes(results: Sequence[OpResult]) -> list[Explained]:
    """Group one op's failing cases by cause; the group with the smallest case comes first."""
    failures = [failure for result in results for failure in result.failures]
    passing = [case for result in results for case in result.passing]
    known = next((result.causes for result in results if result.causes), ())
    found: list[Explained] = []
    left = sorted(failures, key=lambda f: (f.case.numel, f.case.index))
    for cause in known:
        if cause.stated:
            ids = set(cause.members)
            members = [f for f in left if case_id(f.case) in ids]
            left = [f for f in left if case_id(f.case) not in ids]
            if members:
                found.append(Explained(members, cause))
    unlike: dict[tuple[Verdict, tuple[str, ...]], list[CaseFailure]] = {}
    wrong: dict[Case, CaseFailure] = {}
    for failure in left:
        if failure.result.verdict is Verdict.FAILED:
            wrong[failure.case] = failure
        else:
            first = failure.result.failures[0] if failure.result.failures else None
            detail = (reason(first), first.output, first.place) if first is not None else ()
            unlike.setdefault((failure.result.verdict, detail), []).append(failure)
    kinds = ((case, failure.result.failures[0].kind) for case, failure in wrong.items())
    for each in group(kinds, passing):
        members = [wrong[case] for case in each.members]
        old = (each.feature.sentence,) if each.feature is not None else ()
        found.append(Explained(members, None, _seen_with(known, members) or old))
    found += [Explained(members) for members in unlike.values()]
    return sorted(found, key=lambda e: (e.members[0].case.numel, e.members[0].case.index))


def _seen_with(known: Sequence[Cause], members: Sequence[CaseFailure]) -> tuple[str, ...]:
    """Return texts of the unconfirmed causes that cover more than half of the cases `members`.

    `known` are all causes that were found for the op. Each text says how many of the cases that
    meet the condition fail, and how many of the others.
    """
    ids = {case_id(failure.case) for failure in members}
    about = (c for c in known if not c.stated and 2 * len(ids & set(c.members)) > len(ids))
    return tuple(cause.counted for cause in about)
