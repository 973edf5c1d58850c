"""Stage ``compare``: compare the op's outputs with the reference's; give each case a verdict.

Reads the results of ``generate``, ``op`` and ``reference``. For the tolerance ``auto``, it also
runs the reference again, in float64 and in float32. Writes the verdict, the failures and the error
statistics of each case, and a summary.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from gpuemu_flow.judge.subject import CompareParams, Subject
from gpuemu_flow.judge.verdicts import StoredCase, summarise
from gpuemu_flow.model.errors import CancelledRunError
from gpuemu_flow.model.observed import Observation
from gpuemu_flow.model.types import (
    Case,
    CheckResult,
    Json,
    Verdict,
)
from gpuemu_flow.store.discovered import SeenInputs
from gpuemu_flow.store.keys import digest_json
from gpuemu_flow.store.workspace_cache import WorkspaceCache
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import (
    Interrupted,
    Progress,
    StageContext,
    StageResult,
    TaskSpec,
    program_of,
    read_planned,
    read_result,
)
from gpuemu_flow.tasks.params import params_of
from gpuemu_flow.tasks.parts.outputs import heal_missing
from gpuemu_flow.workers.api import Program

if TYPE_CHECKING:
    from gpuemu_flow.store.remote.shared import SharedCache

STAGE = stages.COMPARE
VERSION = stages.VERSIONS[STAGE]
BATCH = 32  # cases per message to a worker: enough to hide the round trip, few enough to see move


def run(spec: TaskSpec, context: StageContext, code: Mapping[str, str]) -> StageResult:
    """Judge the cases of one op and dtype, except cases with a cached verdict."""
    begin = time.perf_counter()
    cases, samples = read_planned(spec, context)
    manifests = {
        source.role: read_result(context.cache, source.task, source.role)
        for source in spec.inputs
        if source.role in (stages.OP, stages.REFERENCE)
    }
    expected_dtypes = manifests["reference"]["expected_dtypes"]
    pairs = _pairs(cases, manifests["op"]["outcomes"], manifests["reference"]["outcomes"])
    static = digest_json(
        [
            STAGE,
            spec.version,
            spec.params,
            dict(code),
            expected_dtypes,
            {**context.environment, **context.packages},
            [case.identity() for case in samples],  # they say what kind of op it is
        ]
    )
    sources = frozenset(str(context.root / path) for path in spec.sources)
    program = program_of(spec.settings["reference"])
    inputs = SeenInputs(
        context.cache.actions,
        static,
        context.inputs,
        context.inputs.discover(Observation(files=sources), program.given),
        force=context.force,
    )
    results: dict[int, CheckResult] = {}
    parts: dict[int, list[Json]] = {}
    todo: list[StoredCase] = []
    for stored in pairs:
        index = stored.case.index
        early = stored.without_outputs()
        if early is not None:
            results[index] = early
            continue
        parts[index] = about = [stored.case.identity(), stored.op, stored.reference]
        known = inputs.find(functools.partial(_known, context.cache, about))
        if known is not None:
            results[index] = known
        else:
            todo.append(stored)
    is_shared = False
    if todo and context.shared is not None and not context.force:
        is_shared = _take_shared(context, context.shared, inputs, program, parts, results)
        todo = [stored for stored in todo if stored.case.index not in results]
    context.on_progress(Progress(spec.name, len(results), len(cases), 0))
    if todo:
        context.about_to_run()
        _judge(spec, context, todo, samples, manifests, parts=parts, inputs=inputs, results=results)
    if context.shared is not None and context.shared.writes and not is_shared:
        _share(context, context.shared, inputs, program, parts, results)
    verdicts = [(case, results[case.index]) for case in cases]
    summary = summarise(verdicts)
    content = {
        "stage": STAGE,
        "version": VERSION,
        "cases": [{"case": c.to_json(), "result": r.to_json()} for c, r in verdicts],
        "summary": summary,
    }
    return StageResult(
        content,
        complete=all(r.verdict is not Verdict.ERROR for r in results.values()),
        executed=bool(todo),
        values={
            "verdict": summary["verdict"],
            "cases": len(cases),
            "executed": len(todo),
            "duration_s": time.perf_counter() - begin,
        },
        discovered=inputs.used,
    )


def _pairs(
    cases: Sequence[Case], ops: Sequence[Json], references: Sequence[Json]
) -> list[StoredCase]:
    by_index = {record["index"]: record for record in ops}
    expected = {record["index"]: record for record in references}
    return [StoredCase(case, by_index[case.index], expected[case.index]) for case in cases]


def cached_verdict(cache: WorkspaceCache, key: str) -> CheckResult | None:
    """Return a case's verdict from the action cache; None if it is missing or damaged."""
    record = cache.actions.get(key)
    if record is None:
        return None
    try:
        return CheckResult.from_json(record)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _known(cache: WorkspaceCache, about: list[Json], shared: str) -> CheckResult | None:
    return cached_verdict(cache, digest_json([shared, *about]))


def _take_shared(
    context: StageContext,
    shared: SharedCache,
    inputs: SeenInputs,
    program: Program,
    parts: Mapping[int, list[Json]],
    results: dict[int, CheckResult],
) -> bool:
    """Add to `results` the verdicts that a shared cache has for the inputs' present contents.

    Return True if the shared cache has the verdict of every case.
    """
    for names in shared.sets(inputs.place, program.given.names):
        key = inputs.key_of(names)
        whole = shared.fetch([digest_json([key, *about]) for about in parts.values()])
        before = len(results)
        for index, about in parts.items():
            if index not in results:
                known = _known(context.cache, about, key)
                if known is not None:
                    results[index] = known
        if len(results) > before:
            inputs.add(names)
        if all(index in results for index in parts):
            return whole
    return False


def _share(
    context: StageContext,
    shared: SharedCache,
    inputs: SeenInputs,
    program: Program,
    parts: Mapping[int, list[Json]],
    results: Mapping[int, CheckResult],
) -> None:
    """Store the verdicts in a shared cache, except those of cases that ended in an error.

    Nothing is stored if an input changed, or if the reference may have used unobserved inputs.
    """
    names = inputs.names
    if names.untracked or not parts or not context.unchanged() or inputs.moved():
        return
    key = inputs.key_of(names)
    keys = {index: digest_json([key, *about]) for index, about in parts.items()}
    found = {keys[n]: results[n] for n in keys if results[n].verdict is not Verdict.ERROR}
    shared.store_set(inputs.place, names, program.given.names)
    shared.store(list(keys.values()), {key: each.to_json() for key, each in found.items()}, [])


def _judge(
    spec: TaskSpec,
    context: StageContext,
    todo: Sequence[StoredCase],
    samples: Sequence[Case],
    manifests: Mapping[str, Json],
    *,
    parts: Mapping[int, list[Json]],
    inputs: SeenInputs,
    results: dict[int, CheckResult],
) -> None:
    """Judge the cases in batches; store the verdicts of each batch before the next one begins."""
    # Brings numpy, which the stages before have loaded while their workers started.
    from gpuemu_flow.judge.reference_evaluator import ReferenceEvaluator  # noqa: PLC0415

    op, reference = (program_of(spec.settings[role]) for role in (stages.OP, stages.REFERENCE))
    compare = params_of(CompareParams, spec.params)
    subject = Subject(spec.subject, spec.dtype, op, reference, compare, samples)
    allowed = manifests[stages.REFERENCE]["expected_dtypes"]
    total, fresh = len(results) + len(todo), 0
    there = []
    for stored in heal_missing(spec, context, todo):
        early = stored.without_outputs()  # if a program that ran again gave no outputs this time
        if early is None:
            there.append(stored)
        else:
            results[stored.case.index] = early
            fresh += 1
    try:
        with ExitStack() as stack:
            judge = ReferenceEvaluator(
                context.pool, subject, stack, context.cancel, allowed=allowed
            )
            for start in range(0, len(there), BATCH):
                if context.cancel.is_set():
                    raise Interrupted
                batch = there[start : start + BATCH]
                judged = judge.judge_stored(batch, context.cache.blobs.path)
                inputs.learn("reference", judge.observed()["reference"], reference.given)
                shared = inputs.key() if context.unchanged() else None
                for stored, result in zip(batch, judged, strict=True):
                    index = stored.case.index
                    if result.verdict is not Verdict.ERROR and shared is not None:
                        key = digest_json([shared, *parts[index]])
                        context.cache.actions.put(key, result.to_json())
                    results[index] = result
                fresh += len(batch)
                context.on_progress(Progress(spec.name, len(results), total, fresh))
    except CancelledRunError:
        raise Interrupted from None
