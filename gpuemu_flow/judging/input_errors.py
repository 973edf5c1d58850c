"""The error of a case whose inputs cannot be made because the user's function failed."""

from __future__ import annotations

from gpuemu_flow.cases.generated_values import case_fault
from gpuemu_flow.runners.api import RunError
from gpuemu_flow.types import Case


def input_error(case: Case) -> RunError | None:
    """Return the error of the case's input that could not be made; None if all inputs were made."""
    fault = case_fault(case)
    if fault is None:
        return None
    return RunError(fault.slug, fault.message, fault.hint, file=fault.file, line=fault.line)
