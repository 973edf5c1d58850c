"""Stage ``reference``: run the trusted reference on every case, in float64 where it can.

Reads the cases, and the reference's script with all its imports. Float inputs are converted to
float64, so that a low-precision op is compared with an accurate result. If the reference fails on a
case in float64, it is run again in the dtype of the case. If this fails, too, its error is
recorded. One more run shows the dtypes that outputs should have: it takes the smallest of the
sample cases, and does not convert its inputs to float64. `judge.subject` implements
these rules; this stage stores the results.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence

from gpuemu_flow.judge.subject import (
    PLAIN,
    expected_dtypes,
    own_dtypes,
    probe_case,
    widens,
)
from gpuemu_flow.model.types import WIDE, Json, dtypes_to_try
from gpuemu_flow.store.discovered import Discovered
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import (
    StageContext,
    StageResult,
    TaskSpec,
    program_of,
    read_planned,
)
from gpuemu_flow.tasks.params import ReferenceParams, params_of
from gpuemu_flow.tasks.parts.execute import BatchOutcomes, execute
from gpuemu_flow.workers.api import Request, was_given_up

STAGE = stages.REFERENCE
VERSION = stages.VERSIONS[STAGE]


def run(spec: TaskSpec, context: StageContext, code: Mapping[str, str]) -> StageResult:
    """Run the reference on the cases that have no result yet."""
    program = program_of(spec.settings)
    asked = params_of(ReferenceParams, spec.params).dtype
    cases, samples = read_planned(spec, context)

    def execute_all(requests: Sequence[Request]) -> BatchOutcomes:
        return execute(
            spec,
            context,
            program=program,
            code=code,
            requests=requests,
            checks=PLAIN,
        )

    runs: list[BatchOutcomes] = []
    records: dict[int, dict[str, Json]] = {}
    expected: dict[str, list[str]] = {}
    refused = cases
    for input_dtype in dtypes_to_try(widened=widens(spec.dtype, asked)):
        if refused:
            requests = [Request(case, input_dtype) for case in refused]
            probes = [Request(probe_case(samples))] if input_dtype == WIDE else []
            found = execute_all([*requests, *probes])
            runs.append(found)
            outcomes = found.outcomes[: len(requests)]
            of_cases = found.records()[: len(requests)]
            records.update({record["index"]: record for record in of_cases})
            if probes:
                probe = found.outcomes[-1]
                if was_given_up(probe):
                    runs.append(execute_all(probes))
                    probe = runs[-1].outcomes[0]
                expected = expected_dtypes(probe, outcomes, spec.dtype)
            elif not expected:
                ran = next((o for o in outcomes if o.ok), outcomes[0])
                expected = own_dtypes(ran, spec.dtype)
            pairs = zip(refused, outcomes, strict=True)
            refused = [case for case, outcome in pairs if not outcome.ok]
    content = {
        "stage": STAGE,
        "version": VERSION,
        "outcomes": [records[case.index] for case in cases],
        "expected_dtypes": expected,
    }
    return StageResult(
        content,
        complete=all(record["ok"] for record in records.values()),
        executed=any(r.executed for r in runs),
        values={
            "cases": len(records),
            "executed": sum(r.executed for r in runs),
            "duration_s": sum(r.duration_s for r in runs),
        },
        discovered=functools.reduce(operator.or_, (r.used for r in runs), Discovered()),
    )
