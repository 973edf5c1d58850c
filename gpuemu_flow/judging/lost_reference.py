"""Judge a case step by step, after judging it in one request ended the reference's process.

If the process ends while a case is judged in one request, it is unknown which step ended it: the
call in float64, the call in the case's own dtype, the probe of the output dtypes, or an evaluation
for the comparison. The verdict depends on this step.
"""

from __future__ import annotations

from gpuemu_flow.judging.judge_requests import JudgeRequest, PreparedBatch, Setup
from gpuemu_flow.judging.verdicts import comparison_failed, without_outputs
from gpuemu_flow.runners.api import RunError
from gpuemu_flow.runners.attempt import Attempt
from gpuemu_flow.runners.work import ProgramSession
from gpuemu_flow.types import CheckResult


def ask_expected(
    reference: ProgramSession, setup: Setup, about: PreparedBatch, *, bring: bool
) -> tuple[Attempt, JudgeRequest]:
    """Run the reference on a case in float64, or in the case's dtype if float64 ends the process.

    If the reference only raises an exception in float64, the judge service itself runs it again in
    the case's dtype.
    """
    attempt, request = _ask(reference, setup, about, bring=bring)
    if not attempt.ended:
        return attempt, request
    attempt, request = _ask(reference, setup, about, bring=False)
    if attempt.ended and setup.widens and about.widens:
        about.widens = False
        attempt, request = _ask(reference, setup, about, bring=False)
    if not bring or not attempt.outcome.ok:
        return attempt, request
    request.bring = True
    return _with_probe_or_without(reference, setup, request), request


def _ask(
    reference: ProgramSession, setup: Setup, about: PreparedBatch, *, bring: bool
) -> tuple[Attempt, JudgeRequest]:
    request = JudgeRequest(setup, about, method="expected")
    request.bring = bring
    return reference.ask(request), request


def _with_probe_or_without(
    reference: ProgramSession, setup: Setup, request: JudgeRequest
) -> Attempt:
    """Make a request; if the process ends, repeat the request without probing output dtypes."""
    attempt = reference.ask(request)
    if attempt.ended and setup.probes:
        setup.probes = False
        attempt = reference.ask(request)
        setup.probes = attempt.ended  # if so, the probe was not the reason
    return attempt


def judge_in_steps(
    reference: ProgramSession, setup: Setup, request: JudgeRequest, op: RunError | None
) -> CheckResult | None:
    """Judge a case step by step; the reference's process may end in any of the steps."""
    attempt, _ = ask_expected(reference, setup, request.about, bring=False)
    early = without_outputs(attempt.outcome.error, op)
    if early is not None:
        return early
    attempt = _with_probe_or_without(reference, setup, request)
    error = attempt.outcome.error
    if error is not None:
        request.results, request.facts = [comparison_failed(error)], setup.facts
        request.changed = request.find_changes()
    return None
