"""Decide verdicts from the number of compared elements; only this module gives ``passed``.

Its function `decide` gives that verdict, but never if nothing was compared. The other functions
define what counts as compared, in the outputs of a case and in the cases of an op. docs/oracle.md
explains these rules to users.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from gpuemu_flow.model.types import (
    Case,
    CheckResult,
    Failure,
    Lean,
    Verdict,
    WeakOutput,
    always,
)

MOST_UNJUDGED = 0.10
"""Largest share of an output's elements without a verdict in a case that passes."""

MOST_WITHOUT_VERDICT = 0.20
"""Largest share of cases without a verdict with which an op in one dtype can pass."""

MOST_NAN = 0.90
"""Largest share of NaN, expected on finite inputs, with which an output's NaN count as evidence. An
equal NaN shows only that NaN is in the right place; if NaN is everywhere, this shows nothing."""

ZEROS = "zeros or NaN"
"""Values of inputs that prove nothing: many wrong ops give the right outputs for them."""

_TELLING_ELEMENTS = 16
"""Fewest judged elements for which one constant expected value is suspicious. With fewer, it may be
chance: relu gives n random numbers the same value, 0, with a probability of 2^-n."""


def decide(failed: bool, compared: int) -> Verdict:
    """Decide a verdict from the number of items that were compared, such as elements. The verdict
    is ``failed`` if `failed` is true. Otherwise, it is ``passed`` if `compared` is above 0, and
    ``inconclusive`` if it is 0. No other function gives ``passed``."""
    if failed:
        return Verdict.FAILED
    return Verdict.PASSED if compared > 0 else Verdict.INCONCLUSIVE


LEAN = 0.4
"""Smallest mean signed error, in ulp, that a wrong factor is told by. Of unbiased roundings, the
mean of 8 elements is beyond half of it once in 20 cases, and never so in most."""

MOST_LEAN = 0.8
"""Smallest share of the cases whose errors lean the same way by half of `LEAN`."""

LEANING_CASES, LEANING_ELEMENTS = 12, 8
"""Fewest cases, and elements in each, that tell."""


class Compared(Struct, frozen=True):
    """The extent to which one output of a case was compared."""

    name: str
    count: int  # number of elements of the output
    # Number of elements that the tolerance, or an ``ignore`` policy, excludes from judgement
    no_verdict: int = 0
    nan: int = 0  # number of judged elements for which NaN is both expected and returned
    # True if the inputs contain neither NaN nor Inf. Has a meaning only if `nan` is above 0.
    finite_inputs: bool = True
    # Number of the elements in `no_verdict` for which the op returned NaN in place of a finite
    # value
    nan_unjudged: int = 0

    @property
    def unjudged(self) -> int:
        """Count the elements that give no evidence about the op."""
        if self.finite_inputs and self.nan > MOST_NAN * self.count:
            return self.no_verdict + self.nan
        return self.no_verdict

    @property
    def shown(self) -> int:
        """Count the elements that reports show as unjudged. If the inputs are finite, these include
        elements that are NaN as expected."""
        return self.no_verdict + (self.nan if self.finite_inputs else 0)

    @property
    def reason(self) -> str:
        """Return the reason why this output makes its case inconclusive; empty if it does not."""
        if self.unjudged <= MOST_UNJUDGED * self.count:
            return ""
        of = f"{self.unjudged} of {self.count} elements of {self.name!r}"
        if self.unjudged > self.no_verdict:
            return f"no verdict on {of}: the reference gives NaN there, on finite inputs"
        return f"no verdict on {of}, which is more than {MOST_UNJUDGED:.0%}"


def of_outputs(failed: bool, outputs: Sequence[Compared]) -> tuple[Verdict, tuple[str, ...]]:
    """Decide the verdict on one case, and list the reasons if it is inconclusive."""
    reasons = tuple(output.reason for output in outputs if output.reason)
    if not any(output.count for output in outputs):
        reasons = ("nothing to compare: the outputs have no elements",)
    compared = 0 if reasons else sum(output.count - output.unjudged for output in outputs)
    verdict = decide(failed, compared)
    return verdict, reasons if verdict is Verdict.INCONCLUSIVE else ()


class Elements(Struct, frozen=True, omit_defaults=True):
    """The facts about a case's compared elements that `Tally` needs."""

    count: int = always(0)
    no_verdict: int = always(0)
    finite: int = always(0)
    empty: tuple[str, ...] = always(())
    weak: tuple[WeakOutput, ...] = always(())
    blank: bool = False
    uncounted: bool = False
    lean: tuple[Lean, ...] = always(())

    @classmethod
    def of(cls, result: CheckResult) -> Elements:
        """Return the facts about the elements in a case's result."""
        stats = result.stats
        figures = stats.count, stats.num_no_verdict, stats.num_finite
        return cls(*figures, result.empty, result.weak, result.blank, result.uncounted, result.lean)


class Tally(Struct):
    """The cases of one op, usually in one dtype, counted as they come."""

    counts: dict[Verdict, int] = field(default_factory=dict)  # number of cases with each verdict
    # Numbers of output elements in all cases: all elements, elements without a verdict, and
    # elements judged by a finite expected value
    elements: int = 0
    no_verdict: int = 0
    finite: int = 0
    # Outputs that had no element in any case so far; None before the first case
    empty: set[str] | None = None
    # The outputs that were expected to have one and the same value in all cases so far, each with
    # this value. Cases in which an output has no elements do not count. None before the first case.
    constant: dict[str, float] | None = None
    # The outputs for which zeros would have passed in all cases so far. The value is True if any of
    # these cases expected an element other than zero. None before the first case.
    loose: dict[str, bool] | None = None
    # True if all cases so far that had output elements had only zeros and NaN as inputs; None
    # before the first such case
    blank: bool | None = None
    # True if the inputs of all cases so far were chosen by somebody instead of drawn
    chosen: bool = True
    # Number of cases without a verdict that say nothing about the op; see `CheckResult.uncounted`
    uncounted: int = 0
    # For each output, how the errors of the cases lean that have enough elements to tell
    lean: dict[str, list[Lean]] = field(default_factory=dict)
    _unseen: set[str] = field(default_factory=set)

    def add(self, result: CheckResult) -> None:
        self.count(result.verdict, Elements.of(result))

    def count(self, verdict: Verdict, elements: Elements, *, chosen: bool = False) -> None:
        """Count one more case, given its verdict and the facts in `elements`."""
        self.counts[verdict] = self.counts.get(verdict, 0) + 1
        if verdict in (Verdict.ERROR, Verdict.SKIPPED):
            return  # it has no outputs that could be counted
        self.uncounted += elements.uncounted and verdict is Verdict.INCONCLUSIVE
        self.elements += elements.count
        self.no_verdict += elements.no_verdict
        self.finite += elements.finite
        self.empty = set(elements.empty) if self.empty is None else self.empty & {*elements.empty}
        self.chosen = self.chosen and chosen
        if elements.count:
            self.blank = elements.blank and self.blank is not False
        self._add_weak(elements)
        for found in elements.lean:
            if found.count >= LEANING_ELEMENTS:
                self.lean.setdefault(found.name, []).append(found)

    def _add_weak(self, elements: Elements) -> None:
        """Update `constant` and `loose`, the outputs that show a weakness in every case so far. An
        output is removed if it does not show the weakness in the new case. A case in which an
        output has no elements does not count for that output."""
        if not (self.constant is None or self.constant or self.loose or self._unseen):
            return  # which no further case can change
        values = {w.name: w.value for w in elements.weak if w.value is not None}
        # Where only zeros are expected, zeros are right under any tolerance.
        zeros = {w.name: w.value != 0.0 for w in elements.weak if w.zeros}
        if self.constant is None or self.loose is None:
            self.constant, self.loose = values, zeros
            self._unseen = set(elements.empty)
            return
        empty = set(elements.empty)
        for name in [n for n in self.constant if n not in empty]:
            if values.get(name) != self.constant[name]:
                del self.constant[name]
        for name in [n for n in self.loose if n not in empty]:
            if name not in zeros:
                del self.loose[name]
        for name in self._unseen - empty:
            self.constant.update({name: values[name]} if name in values else {})
            self.loose.update({name: zeros[name]} if name in zeros else {})
        self.loose.update({n: True for n in self.loose if zeros.get(n)})
        self._unseen &= empty

    @property
    def always_the_same(self) -> dict[str, float]:
        """Map each output whose finite expected values are all equal, in all cases, to their value.
        The result is empty if only few elements were judged, because these may be equal by chance:
        relu turns every fourth pair of random numbers into two zeros."""
        return dict(self.constant or {}) if self.finite >= _TELLING_ELEMENTS else {}

    @property
    def passed_by_zeros(self) -> tuple[str, ...]:
        """Return the outputs whose explicit tolerance would let zeros pass in every case. Outputs
        that are expected to be zero in every case are left out."""
        return tuple(sorted(name for name, other in (self.loose or {}).items() if other))

    @property
    def leans(self) -> str:
        """Say of which output the errors lean one way in nearly all cases; empty if of none.
        Rounding to nearest averages out, and so does one rounding that all elements of a case
        share, over the cases; a wrong factor does not. An op whose casts truncate is none."""
        for name, found in sorted(self.lean.items()):
            middle = sorted(each.mean for each in found)[len(found) // 2]
            same = sum(each.mean * middle > LEAN * abs(middle) / 2 for each in found)
            cut = sum(each.cut for each in found) >= MOST_LEAN * len(found)
            enough = len(found) >= LEANING_CASES and abs(middle) > LEAN
            if enough and same >= MOST_LEAN * len(found) and not cut:
                side = "large" if middle > 0 else "small"
                return (
                    f"{name!r} is too {side} by {abs(middle):.2f} ulp on average, in {same} of "
                    f"{len(found)} cases: rounding averages out, a wrong factor does not (an op "
                    'that may round every step needs `precision = "input"`)'
                )
        return ""

    @property
    def cases(self) -> int:
        return sum(self.counts.values())

    @property
    def unjudged(self) -> float:
        return self.no_verdict / self.elements if self.elements else 0.0

    def verdict(self) -> tuple[Verdict, str]:
        """Return the verdict on all cases, and a reason that lies in no single case. Any failed
        case gives ``failed``; else any error gives ``error``. If all cases were skipped, the
        verdict is ``skipped``. Errors that lean one way in all cases give ``failed``, too."""
        if self.counts.get(Verdict.FAILED):
            return decide(True, self.finite), ""
        if self.counts.get(Verdict.ERROR):
            return Verdict.ERROR, ""
        if self.counts.get(Verdict.SKIPPED, 0) == self.cases:
            return Verdict.SKIPPED, ""
        leans = self.leans
        if leans:
            return decide(True, self.finite), leans
        reason = self._reason()
        return decide(False, 0 if reason else self.finite), reason

    def _reason(self) -> str:
        """Return the reason why an op does not pass although no case failed; empty if it passes."""
        passed = self.counts.get(Verdict.PASSED, 0)
        without = self.cases - passed - min(self.uncounted, passed)
        if self.elements == 0:
            return "nothing was compared: every output of every case is empty"
        if without > MOST_WITHOUT_VERDICT * self.cases:
            share = f"which is more than {MOST_WITHOUT_VERDICT:.0%}"
            return f"no verdict on {without} of {self.cases} cases, {share}"
        if self.finite == 0:
            return "nothing was compared with a finite value: the reference gives none"
        if self.empty:
            names = ", ".join(sorted(repr(name) for name in self.empty))
            return f"nothing was compared of {names}: empty in every case"
        return self._weakness()

    def _weakness(self) -> str:
        """Return the reason why passing these cases proves nothing; empty if there is none."""
        if self.passed_by_zeros:
            names = ", ".join(map(repr, self.passed_by_zeros))
            return f"the tolerance is larger than all that it judges: zeros for {names} would pass"
        if self.blank:
            return f"all inputs on which outputs were compared are {ZEROS}"
        constant = sorted((self.constant or {}).items())
        said = ", ".join(f"{value:g} for {name!r}" for name, value in constant)
        one_number_each = self.finite <= len(constant) and all(value for _, value in constant)
        if self.chosen and constant and not one_number_each:
            return f"inputs that were chosen, not drawn, give nothing but {said}"
        return ""


def weakness_alone(result: CheckResult) -> str:
    """Return the reason why a case that passed proves nothing alone; empty if there is none. The
    reason is an explicit tolerance so large that zeros would pass. In a run, such a case passes all
    the same, because other cases may prove more. If it is the only case that is judged, callers
    make its verdict inconclusive, or add a warning."""
    if result.verdict is not Verdict.PASSED or not any(output.zeros for output in result.weak):
        return ""
    tally = Tally()
    tally.add(result)
    return tally._weakness() if tally.passed_by_zeros else ""


# The place of a failure, with the actual and the expected value, as all reports word them.


def shown_values(failure: Failure) -> str:
    """Return the place of a failure and the values there; empty if the failure has no place. An
    element that the op did not write has a place but no values. One that breaks an invariant has no
    expected value, because nothing is compared with it."""
    if failure.index is None:
        return ""
    place = f"{failure.output or 'output'}{list(failure.index)}"
    if failure.actual is None and failure.expected is None:
        return f"first at {place}"
    if failure.expected is None:
        return f"{place}: actual {_as_written(failure.actual)}"
    actual, expected = map(_as_written, (failure.actual, failure.expected))
    return f"{place}: actual {actual}, expected {expected}"


def _as_written(value: float | None) -> str:
    return repr(value).removesuffix(".0")  # an integer's value, too, is kept as a float


# What the failing cases of an op have in common, as data: one condition that new cases confirmed.

CaseId = tuple[str, str]
"""Dtype and seed of a case; the seed is text, as JSON readers may round large numbers."""


def case_id(case: Case) -> CaseId:
    """Return the id, a case's dtype and seed, by which a cause lists the case."""
    return case.dtype, str(case.seed)


class Condition(Struct, frozen=True):
    """A statement about a case, such as ``N is above 16``; `subject` is a dim or an input."""

    kind: str
    subject: str
    value: int | float | str
    sentence: str


class Counts(Struct, frozen=True):
    """Numbers of new cases that meet the condition (inside) and that do not (outside)."""

    inside_failed: int
    inside: int
    outside_failed: int
    outside: int


class Cause(Struct, frozen=True):
    """What all failing cases at hand have in common, no passing one has, and new cases
    confirmed. `members` are the failing cases that the cause explains. The struct is also the
    JSON of reports."""

    sentence: str
    text: str
    conditions: tuple[Condition, ...]
    counts: Counts
    members: tuple[CaseId, ...] = ()
    stated: bool = True
