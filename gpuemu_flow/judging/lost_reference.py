"""Judge a case that ends the reference's process, step by step.

When the reference's process ends while a case is judged in one go, nobody can tell which step ended
it: the call in float64, the call in the case's own dtype, the look at the dtypes of its outputs, or
an evaluation that the comparison made. Each of these means something different.
"""

from __future__ import annotations

from gpuemu_flow.judging.judge_requests import JudgeRequest, PreparedBatch, Setup
from gpuemu_flow.judging.verdicts import comparison_failed, without_outputs
from gpuemu_flow.runners.api import RunError
from gpuemu_flow.runners.attempt import Attempt
from gpuemu_flow.runners.session import ProgramSession
from gpuemu_flow.types import CheckResult


def ask_expected(
    reference: ProgramSession, setup: Setup, about: PreparedBatch, *, bring: bool
) -> tuple[Attempt, JudgeRequest]:
    """Run the reference on a case in float64, or in its own dtype if float64 kills the process.

    A reference that only raises in float64 is given its own dtype by the service itself.

    Returns
    -------
    attempt : Attempt
    request : JudgeRequest
        With the outputs, if the attempt is good and `bring` is True.
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
    """Make a request that may probe output dtypes; if the process ends, repeat it unprobed."""
    attempt = reference.ask(request)
    if attempt.ended and setup.probes:
        setup.probes = False
        attempt = reference.ask(request)
        setup.probes = attempt.ended  # then it was not the probe
    return attempt


def judge_in_steps(
    reference: ProgramSession, setup: Setup, request: JudgeRequest, op: RunError | None
) -> CheckResult | None:
    """Judge a case step by step, each with a process of the reference that may end.

    Parameters
    ----------
    reference : ProgramSession
    setup : Setup
        The request's setup; its `probes` may change.
    request : JudgeRequest
        The request that lost its process.
    op : RunError or None
        Reason why the op has no outputs.

    Returns
    -------
    CheckResult or None
        Reason why there is no comparison; None where `request` has its results by now.
    """
    attempt, _ = ask_expected(reference, setup, request.about, bring=False)
    early = without_outputs(attempt.outcome.error, op)
    if early is not None:
        return early
    attempt = _with_probe_or_without(reference, setup, request)
    error = attempt.outcome.error
    return None if error is None else comparison_failed(error)
