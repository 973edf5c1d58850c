"""Make sure that the output tensors that results name exist; compute lost ones again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from gpuemu_flow.judge.subject import FULL_CHECKS, PLAIN
from gpuemu_flow.judge.verdicts import StoredCase
from gpuemu_flow.model.types import Json
from gpuemu_flow.tasks.base import Interrupted, StageContext, TaskSpec, program_of
from gpuemu_flow.tasks.parts.execute import outcome_record
from gpuemu_flow.workers.api import Request


def heal_missing(
    spec: TaskSpec, context: StageContext, batch: Sequence[StoredCase]
) -> list[StoredCase]:
    """Restore the lost outputs of cases, and return the cases with the records of their outputs. A
    missing or damaged blob is fetched from a shared cache, or else made again by running the
    program on the case. If the program then gives other bytes, the record names the new output.
    Raises Interrupted: The run was cancelled."""
    healed = {stored.case.index: stored for stored in batch}
    for role in ("op", "reference"):
        lost = [
            stored
            for stored in healed.values()
            if context.cache.blobs.read(getattr(stored, role)["blob"]) is None
        ]
        if lost and context.shared is not None:
            context.shared.fetch_blobs(getattr(stored, role)["blob"] for stored in lost)
            lost = [
                stored
                for stored in lost
                if context.cache.blobs.read(getattr(stored, role)["blob"]) is None
            ]
        if lost:
            healed.update(_run_again(role, spec.settings[role], context, lost))
    return list(healed.values())


def _run_again(
    role: str, maker: Mapping[str, Json], context: StageContext, lost: Sequence[StoredCase]
) -> dict[int, StoredCase]:
    records = [getattr(stored, role) for stored in lost]
    requests = [
        Request(stored.case, record["input_dtype"])
        for stored, record in zip(lost, records, strict=True)
    ]
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
    found = {}
    for stored, old, request, outcome in zip(lost, records, requests, outcomes, strict=True):
        new = outcome_record(request, outcome)
        new["violations"] = old["violations"] or new["violations"]
        found[stored.case.index] = (
            replace(stored, op=new) if role == "op" else replace(stored, reference=new)
        )
    return found
