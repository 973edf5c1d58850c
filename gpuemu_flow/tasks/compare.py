"""Stage ``compare``: hold the op's outputs against the reference's and give each case a verdict.

Reads the manifests of ``generate``, ``op`` and ``reference``, and the reference's source where the
tolerance follows from it: ``auto`` evaluates it, and its float32 shadow, anew. Writes a verdict,
the failures and the error statistics per case, and their summary.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any

from gpuemu_flow.errors import CancelledRunError
from gpuemu_flow.judging.summary import summarise
from gpuemu_flow.judging.verdicts import (
    comparison_failed,
    with_printed,
    with_violations,
    without_outputs,
)
from gpuemu_flow.observed import Observation
from gpuemu_flow.runners.api import RunError, error_from_json
from gpuemu_flow.runners.attempt import JobFailedError
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
    read_manifest,
    write_manifest,
)
from gpuemu_flow.tasks.generate import read_cases, read_samples
from gpuemu_flow.tasks.outputs import heal_missing
from gpuemu_flow.types import (
    Case,
    CheckResult,
    Json,
    Verdict,
    failure_from_json,
)

STAGE = stages.COMPARE
VERSION = stages.VERSIONS[STAGE]
WORKER = "gpuemu_flow.judging.judge:judge_batch"
EVALUATIONS = 20
OVERHEAD_SECONDS = 300.0
BATCH = 32  # cases per message to a worker: enough to hide the round trip, few enough to see move


def run(spec: TaskSpec, context: StageContext, code: Mapping[str, str]) -> StageResult:
    """Judge every case of one op and dtype that has no verdict yet."""
    begin = time.perf_counter()
    cases, samples = read_cases(spec, context), read_samples(spec, context)
    manifests = {
        source.role: read_manifest(context.cache.folder / source.path, source.role)
        for source in spec.inputs
    }
    expected_dtypes = manifests["reference"]["expected_dtypes"]
    pairs = _pairs(cases, manifests["op"]["outcomes"], manifests["reference"]["outcomes"])
    static = digest_json(
        [
            STAGE,
            spec.version,
            spec.params.to_json(),
            dict(code),
            expected_dtypes,
            {**context.environment, **context.packages},
            [case.identity() for case in samples],  # they say what kind of op it is
        ]
    )
    sources = frozenset(str(context.root / path) for path in spec.sources)
    inputs = SeenInputs(
        context.cache.actions,
        static,
        context.inputs,
        context.inputs.discover(Observation(files=sources), {}),
        force=context.force,
    )
    results: dict[int, CheckResult] = {}
    parts: dict[int, list[Json]] = {}
    todo: list[dict[str, Json]] = []
    for case, op, reference in pairs:
        early = without_outputs(_error_of(reference), _error_of(op))
        if early is not None:
            results[case.index] = early
            continue
        parts[case.index] = about = [case.identity(), op, reference]
        known = inputs.find(functools.partial(_known, context.cache, about))
        if known is not None:
            results[case.index] = known
        else:
            todo.append({"case": case.to_json(), "op": op, "reference": reference})
    context.on_progress(Progress(spec.name, len(results), len(cases), 0))
    _judge(
        spec,
        context,
        todo,
        cases=cases,
        samples=samples,
        expected_dtypes=expected_dtypes,
        parts=parts,
        inputs=inputs,
        results=results,
    )
    verdicts = [(case, results[case.index]) for case in cases]
    summary = summarise(verdicts)
    content = {
        "stage": STAGE,
        "version": VERSION,
        "cases": [{"case": c.to_json(), "result": r.to_json()} for c, r in verdicts],
        "summary": summary,
    }
    return StageResult(
        write_manifest(context.cache.folder / spec.target, content),
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
) -> list[tuple[Case, dict[str, Any], dict[str, Any]]]:
    by_index = {record["index"]: record for record in ops}
    expected = {record["index"]: record for record in references}
    return [(case, by_index[case.index], expected[case.index]) for case in cases]


def _error_of(record: Mapping[str, Json]) -> RunError | None:
    return None if record["ok"] else error_from_json(record["error"])


def cached_verdict(cache: WorkspaceCache, key: str) -> CheckResult | None:
    """The verdict that the action cache holds; None when it holds none that is sound."""
    record = cache.actions.get(key)
    if record is None:
        return None
    try:
        return CheckResult.from_json(record)
    except (KeyError, TypeError, ValueError):
        return None


def _known(cache: WorkspaceCache, about: list[Json], shared: str) -> CheckResult | None:
    return cached_verdict(cache, digest_json([shared, *about]))


def _judge(
    spec: TaskSpec,
    context: StageContext,
    todo: Sequence[dict[str, Json]],
    *,
    cases: Sequence[Case],
    samples: Sequence[Case],
    expected_dtypes: Mapping[str, Json],
    parts: Mapping[int, list[Json]],
    inputs: SeenInputs,
    results: dict[int, CheckResult],
) -> None:
    """Send the cases to workers, batch by batch, and keep each verdict as it comes."""
    common = {
        "samples": [case.to_json() for case in samples],
        "blobs": str(context.cache.blobs.folder),
        "compare": spec.params.to_json(),
        "expected_dtypes": expected_dtypes,
    }
    fresh = 0
    for start in range(0, len(todo), BATCH):
        if context.cancel.is_set():
            raise Interrupted
        batch = heal_missing(spec, context, todo[start : start + BATCH])
        answers = _ask(spec, context, common, batch, inputs)
        shared = inputs.key() if context.unchanged() else None
        for item, judged in zip(batch, answers, strict=True):
            index = item["case"]["index"]
            violations = [failure_from_json(v) for v in item["op"]["violations"]]
            result = with_violations(judged, violations)
            result = with_printed(result, str(item["op"].get("printed", "")))
            if result.verdict is not Verdict.ERROR and shared is not None:
                context.cache.actions.put(digest_json([shared, *parts[index]]), result.to_json())
            results[index] = result
        fresh += len(batch)
        context.on_progress(Progress(spec.name, len(results), len(cases), fresh))


def _ask(
    spec: TaskSpec,
    context: StageContext,
    common: Mapping[str, Json],
    batch: Sequence[dict[str, Json]],
    inputs: SeenInputs,
) -> list[CheckResult]:
    """Verdicts of a worker; a batch whose worker fails is asked again case by case."""
    program = program_of(spec.settings["reference"])
    # The envelope evaluates the reference some 16 times per case.
    largest = max(Case.from_json(item["case"]).nbytes for item in batch)
    seconds = OVERHEAD_SECONDS + len(batch) * EVALUATIONS * program.patience(largest)
    try:
        answers = context.pool.call(
            program,
            WORKER,
            {**common, "cases": list(batch)},
            seconds=seconds,
            cancel=context.cancel,
            on_observed=lambda seen: inputs.learn("reference", seen, program.env),
        )
        return [CheckResult.from_json(answer) for answer in answers]
    except CancelledRunError:
        raise Interrupted from None
    except JobFailedError as failed:
        if len(batch) > 1:
            return [r for item in batch for r in _ask(spec, context, common, [item], inputs)]
        return [comparison_failed(failed.error)]
