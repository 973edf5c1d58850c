"""Run an op in the client's process on one case, and make the request that submits its output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpuemu_flow.client import calls
from gpuemu_flow.client.arrays import elements_changed
from gpuemu_flow.client.calls import Call
from gpuemu_flow.client.results import TestCase, ValidationResult, raised_result
from gpuemu_flow.in_place import with_changed_inputs
from gpuemu_flow.types import Json

RunOp = Callable[[dict[str, Any]], Any]


def try_op(
    op_name: str,
    case: TestCase,
    function: RunOp,
    kwargs: Mapping[str, Json],
    client: Mapping[str, Json],
) -> tuple[Call[ValidationResult], ValidationResult | None]:
    """Run an op on copies of a case's inputs.

    Returns
    -------
    Call
        Submits the output and the changes to the inputs, or the exception that the op raised.
    ValidationResult or None
        If the op raised an exception, the result to use in case the daemon refuses the call: not
        all daemons accept exceptions. None if the op returned an output.
    """
    # Submit the original inputs, even if the op changes its arrays.
    given = case.fresh_inputs()
    arrays = dict(given)
    about: dict[str, Any] = {"seed": case.seed, "client": client}
    try:
        output = function(given)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        call = calls.raised(op_name, case.inputs, text, kwargs, **about)
        return call, raised_result(op_name, case.seed, text)
    output = with_changed_inputs(output, arrays, case.outputs, case.mutates)
    about["modified"] = elements_changed(case.inputs, arrays)
    return calls.validate(op_name, case.inputs, output, kwargs, dtype=None, **about), None
