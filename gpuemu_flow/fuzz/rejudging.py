"""Judge recorded inputs again, in a setting in which the failure may occur."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from gpuemu_flow.judging.case_evaluator import CaseEvaluator, EvaluatedCase
from gpuemu_flow.judging.subject import FULL_CHECKS
from gpuemu_flow.judging.verdicts import reason
from gpuemu_flow.runners.api import Checks
from gpuemu_flow.store.failures import FailureRecord
from gpuemu_flow.types import BAD, Case, CheckResult

Arrays = Mapping[str, NDArray[Any]]

_WATCHED = (
    "OutOfBoundsRead",
    "InputModified",
    "NonDeterministic",
    "OutputNotWritten",
    "OutOfBoundsWrite",
    "MisalignedAccess",
    "UninitializedRead",
    "DataRace",
    "BarrierMisuse",
    "KernelTrap",
)


CONFIRMED_BY = 5
"""Number of runs in a setting that must agree to confirm it."""

DIFFERS = "results differ between equal calls: it fails in some of them only"


class FailureSetting(enum.Enum):
    """A setting in which a failure occurs; the member's value is a sentence to show to the user."""

    ALONE = ""
    AFTER_DECOY = "shows only after a call on other inputs of the same shapes: the op keeps state"
    GUARDED = "shows only between guard zones: the op reads or writes beyond its inputs"
    AS_RUN = "shows only with all the checks that `run` makes"


def judge_in(
    setting: FailureSetting,
    evaluator: CaseEvaluator,
    case: Case,
    inputs: Arrays,
    record: FailureRecord,
) -> EvaluatedCase:
    """Judge inputs once, in a given setting."""
    watched = record.kind in _WATCHED
    checks = Checks(inputs_unchanged=True, repeat=True) if watched else Checks()
    if setting is FailureSetting.AS_RUN:
        checks = FULL_CHECKS
    else:
        decoy, guards = setting is FailureSetting.AFTER_DECOY, setting is FailureSetting.GUARDED
        checks = replace(checks, decoy=decoy, guards=guards)
    return evaluator.judge_arrays(case, inputs, checks)


def told_by_setting(setting: FailureSetting, fails: Callable[[FailureSetting], bool]) -> str:
    """Confirm by new runs the setting in which a failure occurs, and return a sentence about it."""
    if setting is FailureSetting.ALONE:
        return ""
    for _ in range(CONFIRMED_BY - 1):
        if fails(FailureSetting.ALONE) or not fails(setting):
            return DIFFERS
    return str(setting.value)


def recorded_reason(record: FailureRecord) -> str:
    """Return the reason why the recorded case did not pass; see `judging.verdicts.reason`."""
    first = next(iter(CheckResult.from_json(record.result).failures), None)
    return reason(first) if first is not None else record.kind


def shows_all(record: FailureRecord, result: CheckResult) -> bool:
    """Tell whether a result has the recorded verdict, and every reason that was recorded for it."""
    recorded = CheckResult.from_json(record.result)
    reasons = {reason(failure) for failure in result.failures}
    wanted = {reason(failure) for failure in recorded.failures}
    if not wanted:  # the record does not tell how it failed
        return result.verdict in BAD
    return result.verdict is recorded.verdict and wanted <= reasons


def fails_alike(record: FailureRecord, result: CheckResult) -> bool:
    """Tell whether a result has the recorded verdict, and the main recorded reason for it."""
    reasons = {reason(failure) for failure in result.failures}
    return result.verdict.value == record.verdict and recorded_reason(record) in reasons
