"""The output tensors behind a manifest: read from the blob store, made again when lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuemu_flow.judging.checks import FULL_CHECKS, PLAIN
from gpuemu_flow.runners.api import Request
from gpuemu_flow.tasks.base import Interrupted, StageContext, TaskSpec, program_of
from gpuemu_flow.tasks.execute import outcome_record
from gpuemu_flow.types import Case, Json


def heal_missing(
    spec: TaskSpec, context: StageContext, batch: Sequence[dict[str, Json]]
) -> list[dict[str, Json]]:
    """`batch` with every blob present and verified.

    A blob that was collected, deleted or damaged is made again by running its program on its
    case; a program that then gives other bytes keeps its new record, and is judged by it.

    Raises
    ------
    Interrupted
        When the run was cancelled.
    """
    healed = [dict(item) for item in batch]
    for role in ("op", "reference"):
        lost = [i for i in healed if context.cache.blobs.read(i[role]["blob"]) is None]
        if lost:
            _run_again(role, spec.settings[role], context, lost)
    return healed


def _run_again(
    role: str, maker: Mapping[str, Json], context: StageContext, lost: Sequence[dict[str, Json]]
) -> None:
    requests = [Request(Case.from_json(item["case"]), item[role]["input_dtype"]) for item in lost]
    outcomes = context.pool.run(
        program_of(maker),
        requests,
        # An op is watched as before: it may have damaged the file to be run without.
        checks=FULL_CHECKS if role == "op" else PLAIN,
        publish=context.cache.blobs.publish,
        cancel=context.cancel,
    )
    if len(outcomes) != len(lost):
        raise Interrupted
    for item, request, outcome in zip(lost, requests, outcomes, strict=True):
        again = outcome_record(request, outcome)
        item[role] = {**again, "violations": item[role]["violations"] or again["violations"]}
