"""Judge one case, or many together, by comparing the op's outputs with the reference's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from gpuemu_flow.judging.compare_functions import CompareError
from gpuemu_flow.judging.judge import Judge, refused
from gpuemu_flow.judging.verdicts import comparison_failed
from gpuemu_flow.numerics.compare import (
    MOST_CASES,
    MOST_ELEMENTS,
    Form,
    check_batch,
    form_of,
)
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.runners.api import RunError
from gpuemu_flow.types import Case, CheckResult, Json, Verdict

Arrays = Mapping[str, NDArray[Any]]

FEWEST = 3
"""Minimum number of cases for which comparing them together is faster than one by one."""


@dataclass(frozen=True)
class Ran:
    """A case on which both op and reference have run."""

    case: Case
    actual: Arrays
    expected: Arrays
    inputs: Arrays


def judge_cases(judge: Judge, ran: Sequence[Ran], *, explain: bool = True) -> list[CheckResult]:
    """Return the verdicts on several cases, equal to those of `judge_case`."""
    results = _passed_together(judge, ran)
    return [
        judge_case(judge, one.case, one.actual, one.expected, one.inputs, explain=explain)
        if result is None
        else result
        for one, result in zip(ran, results, strict=True)
    ]


def _passed_together(judge: Judge, ran: Sequence[Ran]) -> list[CheckResult | None]:
    """Compare cases of equal structure together, and return one item for each case.

    The item is the case's result if the case passed. It is None if the case must be judged alone.
    """
    results: list[CheckResult | None] = [None] * len(ran)
    forms: dict[Form, list[int]] = {}
    for number, one in enumerate(ran):
        policy = judge.shared_policy(one.case.dtype)
        if policy is None:
            continue
        form = form_of(one.case, one.actual, one.expected, one.inputs, policy)
        if form is not None:
            forms.setdefault(form, []).append(number)
    for form, numbers in forms.items():
        for start in range(0, len(numbers), MOST_CASES):
            some = numbers[start : start + MOST_CASES]
            if len(some) < FEWEST:
                continue
            for number, result in zip(
                some, _checked(judge, form, [ran[n] for n in some]), strict=True
            ):
                results[number] = result
    return results


def _checked(judge: Judge, form: Form, ran: Sequence[Ran]) -> list[CheckResult | None]:
    first, name = ran[0], form.name
    criteria = judge.criteria(first.case, first.expected, first.inputs, first.actual)
    contracts = criteria.contracts
    if contracts and not (
        contracts.of_form and refused(first.actual, first.expected, criteria) is None
    ):
        return [None] * len(ran)
    return check_batch(
        form,
        [one.actual[name] for one in ran],
        [one.expected[name] for one in ran],
        [one.inputs for one in ran],
        dtype=criteria.dtypes[name],
        tolerance=criteria.tolerance,
    )


class Verdicts:
    """Collects verdicts in the order of the cases; small cases wait until they are judged
    together.
    """

    def __init__(self, made_judge: Callable[[Arrays], Judge], *, explain: bool) -> None:
        self._made_judge = made_judge
        self._explain = explain
        self._results: list[CheckResult | None] = []
        self._waiting: list[tuple[int, Ran]] = []

    def skip(self) -> None:
        """Add a case that gets no verdict."""
        self._results.append(None)

    def put(self, result: CheckResult) -> None:
        """Add a verdict that is already known."""
        self._results.append(result)

    def add(self, ran: Ran) -> None:
        """Add a case to be judged."""
        small = _is_small(ran)
        if small:  # copy: the reference's next call may overwrite its results
            kept = {name: array.copy() for name, array in ran.expected.items()}
            ran = Ran(ran.case, ran.actual, kept, ran.inputs)
        self._waiting.append((len(self._results), ran))
        self._results.append(None)
        if not small or len(self._waiting) == MOST_CASES:
            self._judge()

    def finish(self) -> list[Json]:
        """Judge the waiting cases, and return all verdicts as JSON; None for skipped cases."""
        self._judge()
        return [None if result is None else result.to_json() for result in self._results]

    def _judge(self) -> None:
        if not self._waiting:
            return
        judge = self._made_judge(self._waiting[0][1].expected)
        found = judge_cases(judge, [ran for _, ran in self._waiting], explain=self._explain)
        for (number, _), result in zip(self._waiting, found, strict=True):
            self._results[number] = result
        self._waiting.clear()


def _is_small(ran: Ran) -> bool:
    """Tell whether a case's tensors are small enough to stay in the processor's cache."""
    size = 0
    for arrays in (ran.expected, ran.inputs):
        for array in arrays.values():
            size += array.size
    return size <= 2 * MOST_ELEMENTS


def judge_case(
    judge: Judge,
    case: Case,
    actual: Arrays,
    expected: Arrays,
    inputs: Arrays | None = None,
    *,
    explain: bool = True,
) -> CheckResult:
    """Return the verdict on one case's outputs; if `Judge.check` raises, return an error result."""
    try:
        return judge.check(case, actual, expected, inputs, explain=explain)
    except CompareError as error:
        return CheckResult(Verdict.ERROR, (error.failure,))
    except Exception as error:
        return comparison_failed(RunError("reference-failed", str(error)))
    except BaseException as error:  # the reference may raise anything
        text = f"{type(error).__name__}: {error}"
        return comparison_failed(RunError("reference-failed", text))
