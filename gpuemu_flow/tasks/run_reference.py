"""Stage ``reference``: run the trusted reference on every case, in float64 where it can.

Reads the cases and the reference's script with all it imports. Float inputs are widened to
float64, exactly, so that a low-precision op is compared with an unrounded result. A case that the
reference refuses in float64 is run again in its own dtype; if that fails too, its error is the one
that counts. One more run of the smallest case in its own dtype tells which dtypes the outputs
should have.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence

from gpuemu_flow.judging.reference_dtypes import WIDE, expected_dtypes, widens
from gpuemu_flow.runners.api import Checks, Request
from gpuemu_flow.store.discovered import Discovered
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import StageContext, StageResult, TaskSpec, program_of, write_manifest
from gpuemu_flow.tasks.execute import Execution, execute
from gpuemu_flow.tasks.generate import read_cases
from gpuemu_flow.types import Json

STAGE = stages.REFERENCE
VERSION = stages.VERSIONS[STAGE]


def run(spec: TaskSpec, context: StageContext, code: Mapping[str, str]) -> StageResult:
    """Run the reference on the cases that have no result yet."""
    program = program_of(spec.settings)
    cases = read_cases(spec, context)

    def execute_all(requests: Sequence[Request]) -> Execution:
        return execute(
            spec,
            context,
            program=program,
            code=code,
            requests=requests,
            checks=Checks(inputs_unchanged=False),
        )

    runs: list[Execution] = []
    records: dict[int, dict[str, Json]] = {}
    expected: dict[str, list[str]] = {}
    if cases:
        if widens(spec.dtype, spec.params["dtype"]):
            probe = execute_all([Request(min(cases, key=lambda case: case.numel))])
            wide = execute_all([Request(case, WIDE) for case in cases])
            runs += [probe, wide]
            refused = [c for c, o in zip(cases, wide.outcomes, strict=True) if not o.ok]
            records.update({r["index"]: r for r in wide.records()})
            expected = expected_dtypes(probe.outcomes[0], wide.outcomes, spec.dtype)
        else:
            refused = cases
        if refused:
            native = execute_all([Request(case) for case in refused])
            runs.append(native)
            records.update({r["index"]: r for r in native.records()})
    content = {
        "stage": STAGE,
        "version": VERSION,
        "outcomes": [records[case.index] for case in cases],
        "expected_dtypes": expected,
    }
    return StageResult(
        write_manifest(context.cache.folder / spec.target, content),
        complete=all(record["ok"] for record in records.values()),
        executed=any(r.executed for r in runs),
        values={
            "cases": len(records),
            "executed": sum(r.executed for r in runs),
            "duration_s": sum(r.duration_s for r in runs),
        },
        discovered=functools.reduce(operator.or_, (r.used for r in runs), Discovered()),
    )
