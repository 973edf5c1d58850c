"""Read the cases that stage ``generate`` planned, as data, without importing numpy."""

from __future__ import annotations

from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import StageContext, TaskSpec, read_manifest
from gpuemu_flow.types import Case


def read_cases(spec: TaskSpec, context: StageContext) -> list[Case]:
    """Read the cases that a later stage of the same op and dtype works on."""
    return _read(spec, context, "cases")


def read_samples(spec: TaskSpec, context: StageContext) -> list[Case]:
    """Read the cases from which a later stage finds out the op's traits; see `cases.samples`."""
    return _read(spec, context, "samples")


def _read(spec: TaskSpec, context: StageContext, which: str) -> list[Case]:
    source = next(i for i in spec.inputs if i.role == stages.GENERATE)
    manifest = read_manifest(context.cache.folder / source.path, stages.GENERATE)
    return [Case.from_json(case) for case in manifest[which]]
