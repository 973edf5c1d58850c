"""Find the output tensors that results name: in memory, in the cache, or by running again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gpuemu_flow.judge.subject import FULL_CHECKS, PLAIN
from gpuemu_flow.judge.verdicts import StoredCase
from gpuemu_flow.model.types import Json
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import Interrupted, StageContext, TaskSpec, program_of
from gpuemu_flow.tasks.parts.execute import keep_outputs, outcome_record
from gpuemu_flow.workers.api import Request

if TYPE_CHECKING:
    from gpuemu_flow.judge.judge_requests import GivenCase
    from gpuemu_flow.tasks.parts.tensors import Arrays


def with_tensors(
    spec: TaskSpec, context: StageContext, batch: Sequence[StoredCase]
) -> list[tuple[StoredCase, GivenCase]]:
    """Return cases with their tensors. Outputs that are nowhere, not even in a shared cache, are
    made again: if these are other bytes, the case's record names them. Raises Interrupted: The run
    was cancelled."""
    from gpuemu_flow.judge.judge_requests import GivenCase  # noqa: PLC0415 - loads numpy

    cases, both = list(batch), []
    for role in (stages.OP, stages.REFERENCE):
        found = [_found(context, getattr(one, role)["blob"]) for one in cases]
        lost = [n for n, outputs in enumerate(found) if outputs is None]
        if lost and context.shared is not None:
            context.shared.fetch_blobs(getattr(cases[n], role)["blob"] for n in lost)
            for n in lost:
                found[n] = _found(context, getattr(cases[n], role)["blob"])
            lost = [n for n in lost if found[n] is None]
        again = _run_again(role, spec.settings[role], context, [cases[n] for n in lost])
        for n, one in zip(lost, again, strict=True):
            cases[n], found[n] = one, _found(context, getattr(one, role)["blob"])
        both.append([outputs or {} for outputs in found])
    draw = context.tensors.drawing([one.case for one in cases])
    return [
        (one, GivenCase(one.case, draw(one.case), actual, expected=expected))
        for one, actual, expected in zip(cases, *both, strict=True)
    ]


def _found(context: StageContext, digest: str) -> Arrays | None:
    from gpuemu_flow.workers.blobs import BlobError, decode  # noqa: PLC0415 - loads numpy

    outputs = context.tensors.outputs(digest)
    if outputs is None and digest:
        data = context.cache.blobs.read(digest)
        try:
            outputs = None if data is None else decode(data)
        except BlobError:
            return None
    return outputs


def _run_again(
    role: str, maker: Mapping[str, Json], context: StageContext, lost: Sequence[StoredCase]
) -> list[StoredCase]:
    if not lost:
        return []
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
        keep=lambda outputs: keep_outputs(context, outputs),
        draw=context.tensors.drawing([stored.case for stored in lost]),
        cancel=context.cancel,
    )
    context.cache.blobs.flush()
    if len(outcomes) != len(lost):
        raise Interrupted
    found = []
    for stored, old, request, outcome in zip(lost, records, requests, outcomes, strict=True):
        new = outcome_record(request, outcome)
        new["violations"] = old["violations"] or new["violations"]
        found.append(replace(stored, op=new) if role == "op" else replace(stored, reference=new))
    return found
