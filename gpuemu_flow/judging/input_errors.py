"""Error of a case for which the user's function failed to make an input."""

from __future__ import annotations

from gpuemu_flow.cases.generated_values import case_fault
from gpuemu_flow.runners.api import RunError
from gpuemu_flow.types import Case


def input_error(case: Case) -> RunError | None:
    """Return the error of an input of the case that could not be made; None if all were made."""
    fault = case_fault(case)
    if fault is None:
        return None
    return RunError(fault.slug, fault.message, fault.hint, file=fault.file, line=fault.line)
