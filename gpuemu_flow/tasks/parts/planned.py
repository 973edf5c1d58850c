"""Read the cases that stage ``generate`` planned, as data, without importing numpy."""

from __future__ import annotations

from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import StageContext, TaskSpec, read_manifest
from gpuemu_flow.types import Case


def read_planned(spec: TaskSpec, context: StageContext) -> tuple[list[Case], list[Case]]:
    """Read the cases of an op and dtype.

    Returns
    -------
    cases : list of Case
        The cases to run and judge.
    samples : list of Case
        The cases that serve to find the op's traits; see `cases.plan`.
    """
    source = next(i for i in spec.inputs if i.role == stages.GENERATE)
    manifest = read_manifest(context.cache.folder / source.path, stages.GENERATE)
    cases, samples = (
        [Case.from_json(case) for case in manifest[which]] for which in ("cases", "samples")
    )
    return cases, samples
