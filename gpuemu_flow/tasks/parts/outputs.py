"""Find the output tensors that results name: in memory, in the cache, or by running again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gpuemu_flow.judge.subject import FULL_CHECKS, PLAIN
from gpuemu_flow.judge.verdicts import StoredCase
from gpuemu_flow.model.errors import Problem, StoreError
from gpuemu_flow.model.types import Json
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import Interrupted, StageContext, TaskSpec, program_of
from gpuemu_flow.tasks.parts.execute import keep_outputs, outcome_record
from gpuemu_flow.workers.api import Request

if TYPE_CHECKING:
    from gpuemu_flow.judge.judge_requests import GivenCase
    from gpuemu_flow.tasks.parts.tensors import Arrays


def with_outputs(
    spec: TaskSpec, context: StageContext, stored: Sequence[StoredCase]
) -> list[StoredCase]:
    """Return cases whose outputs exist. Those that are nowhere, not even in a shared cache, are
    made again: if these are other bytes, the case's record names them. Nothing of the pool may be
    held meanwhile, as running needs a worker of it. Raises Interrupted: The run was cancelled."""
    cases = list(stored)
    for role in (stages.OP, stages.REFERENCE):

        def lost(among: Iterable[int], role: str = role) -> list[int]:
            return [n for n in among if _found(context, getattr(cases[n], role)["blob"]) is None]

        missing = lost(range(len(cases)))
        if missing and context.shared is not None:
            context.shared.fetch_blobs(getattr(cases[n], role)["blob"] for n in missing)
            missing = lost(missing)
        again = _run_again(role, spec.settings[role], context, [cases[n] for n in missing])
        for n, one in zip(missing, again, strict=True):
            cases[n] = one
    return cases


def with_tensors(
    context: StageContext, batch: Sequence[StoredCase]
) -> list[tuple[StoredCase, GivenCase]]:
    """Return cases with their tensors. Raises StoreError: outputs were lost a moment ago."""
    from gpuemu_flow.judge.judge_requests import GivenCase  # noqa: PLC0415 - loads numpy

    draw = context.tensors.drawing([one.case for one in batch])
    given = []
    for one in batch:
        actual, expected = (_found(context, record["blob"]) for record in (one.op, one.reference))
        if actual is None or expected is None:
            message = "outputs of a case were deleted or damaged while it was judged"
            raise StoreError(Problem("cache-result", message, "run again"))
        given.append((one, GivenCase(one.case, draw(one.case), actual, expected=expected)))
    return given


def _found(context: StageContext, digest: str) -> Arrays | None:
    from gpuemu_flow.workers.blobs import BlobError, decode  # noqa: PLC0415 - loads numpy

    outputs = context.tensors.outputs(digest)
    if outputs is None and digest:
        data = context.cache.blobs.read(digest)
        if data is None:
            return None
        try:
            outputs = decode(data)
        except BlobError:
            return None
        context.tensors.keep_outputs(digest, outputs)
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
