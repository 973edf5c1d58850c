"""Record failures that the daemon found, so that all commands can use them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.daemon.service import Service
from gpuemu_flow.fuzz.code_state import CODE, code_key
from gpuemu_flow.fuzz.wire_ops import SUBMITTED, WireSubject
from gpuemu_flow.runners import blobs
from gpuemu_flow.store.failures import FailureRecord
from gpuemu_flow.types import Case, CheckResult, Json, Shape


def record_failure(
    service: Service,
    subject: WireSubject,
    case: Case,
    result: CheckResult,
    inputs: Mapping[str, NDArray[Any]],
    *,
    output_shapes: Mapping[str, Shape],
    fuzz_config: Json,
) -> str:
    """Record a failing case with its inputs, and return its id."""
    programs = subject.subject
    workspace = service.configured().workspace
    runs_here = programs.op.kind != SUBMITTED
    code = {CODE: code_key(workspace, programs.name, case.dtype)} if runs_here else {}
    record = FailureRecord.of(
        programs.name,
        case,
        result,
        source="daemon",
        provenance={
            **programs.to_json(),
            **code,
            "fuzz_config": fuzz_config,
            "output_shapes": {name: list(shape) for name, shape in output_shapes.items()},
        },
        environment=workspace.environment,
    )
    values = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
    with service.failures_lock:
        return service.failures.add(record, blobs.encode(values))
