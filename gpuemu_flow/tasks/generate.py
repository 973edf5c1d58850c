"""Stage ``generate``: from an op's schema and a seed to the list of its cases.

Reads nothing but the configuration. Writes the cases as data; no tensor is made or hashed here,
for every worker makes them from the case, bit for bit the same.
"""

from __future__ import annotations

from gpuemu_flow.cases.op_schema import schema_from_json
from gpuemu_flow.cases.plan import plan_cases
from gpuemu_flow.cases.samples import op_samples
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import (
    StageContext,
    StageResult,
    TaskSpec,
    read_manifest,
    write_manifest,
)
from gpuemu_flow.tasks.params import GenerateParams, params_of
from gpuemu_flow.types import Case

STAGE = stages.GENERATE
VERSION = stages.VERSIONS[STAGE]


def run(spec: TaskSpec, context: StageContext) -> StageResult:
    """Plan the cases of one op and dtype."""
    params = params_of(GenerateParams, spec.params)
    schema = schema_from_json(spec.settings["schema"])
    cases = plan_cases(
        schema,
        seed=params.seed,
        dtype=spec.dtype,
        count=params.count,
        strategies=params.strategies,
        layouts=params.layouts,
    )
    samples = op_samples(
        schema,
        seed=params.samples_seed,
        dtype=spec.dtype,
        strategies=params.strategies,
        layouts=params.layouts,
    )
    content = {
        "stage": STAGE,
        "version": VERSION,
        "cases": [case.to_json() for case in cases],
        "samples": [case.to_json() for case in samples],
    }
    digest = write_manifest(context.cache.folder / spec.target, content)
    return StageResult(digest, values={"cases": len(cases)})


def read_cases(spec: TaskSpec, context: StageContext) -> list[Case]:
    """The cases that a later stage of the same op and dtype works on."""
    return _read(spec, context, "cases")


def read_samples(spec: TaskSpec, context: StageContext) -> list[Case]:
    """The cases by which a later stage finds out the op's nature; see `cases.samples`."""
    return _read(spec, context, "samples")


def _read(spec: TaskSpec, context: StageContext, which: str) -> list[Case]:
    source = next(i for i in spec.inputs if i.role == STAGE)
    manifest = read_manifest(context.cache.folder / source.path, STAGE)
    return [Case.from_json(case) for case in manifest[which]]
