"""Stop running a program's cases after several timeouts in a row."""

from __future__ import annotations

from collections.abc import Sequence

from gpuemu_flow.runners.api import Outcome, RunError

TIMEOUT = "op-timeout"
NOT_RUN_SLUG = "op-not-run"
MOST_TIMEOUTS = 3
"""Number of timeouts in a row after which to give up; a loaded machine may cause one or two."""


def gives_up(outcomes: Sequence[Outcome]) -> bool:
    """Tell whether the last cases all timed out, so that no further case should be run."""
    last = outcomes[-MOST_TIMEOUTS:]
    slugs = {"" if outcome.error is None else outcome.error.slug for outcome in last}
    return len(last) == MOST_TIMEOUTS and slugs <= {TIMEOUT, NOT_RUN_SLUG}


def was_given_up(outcome: Outcome) -> bool:
    """Tell whether a case was not run because the cases before it timed out."""
    return outcome.error is not None and outcome.error.slug == NOT_RUN_SLUG


def not_run(index: int, seconds: float) -> Outcome:
    """Return the outcome of a case that is not run because earlier cases timed out."""
    message = f"not run: {MOST_TIMEOUTS} cases in a row had no result after {seconds:g} s each"
    hint = "fix what hangs, or raise `timeout` of the op if it really needs longer"
    return Outcome(index, ok=False, error=RunError(NOT_RUN_SLUG, message, hint))
