"""Stage ``compare``: compare the op's outputs with the reference's; give each case a verdict.

Reads the results of ``generate``, ``op`` and ``reference``. For the tolerance ``auto``, it also
runs the reference again, in float64 and in float32. Writes the verdict, the failures and the error
statistics of each case, and a summary.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from msgspec.structs import replace

from gpuemu_flow.judge.known import KnownResults, read_verdict
from gpuemu_flow.judge.protocol import ReferenceFacts
from gpuemu_flow.judge.subject import CompareParams, Subject
from gpuemu_flow.judge.verdicts import StoredCase, summarise, without_vain_keys
from gpuemu_flow.model.decoding import plain
from gpuemu_flow.model.errors import CancelledRunError
from gpuemu_flow.model.types import Case, CheckResult, Json, Observation, Verdict
from gpuemu_flow.store.keys import digest_json, digest_record
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import (
    Interrupted,
    Progress,
    StageContext,
    StageResult,
    TaskSpec,
    params_of,
    program_of,
    read_planned,
)
from gpuemu_flow.tasks.programs import with_outputs, with_tensors
from gpuemu_flow.workers.api import Program
from gpuemu_flow.workers.supervise import BatchSize

STAGE = stages.COMPARE
VERSION = stages.VERSIONS[STAGE]
BATCH = 32  # cases per message to a worker: enough to hide the round trip, few enough to see move


def run(spec: TaskSpec, context: StageContext, code: Mapping[str, str]) -> StageResult:
    """Judge the cases of one op and dtype, except cases with a cached verdict."""
    begin = time.perf_counter()
    cases, samples = read_planned(spec, context)
    made_before = {
        source.role: context.result(source.task, source.role)
        for source in spec.inputs
        if source.role in (stages.OP, stages.REFERENCE)
    }
    expected_dtypes = made_before["reference"]["expected_dtypes"]
    pairs = _pairs(cases, made_before["op"]["outcomes"], made_before["reference"]["outcomes"])
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
    sources = Observation(files=frozenset(str(context.root / path) for path in spec.sources))
    given = program_of(spec.settings["reference"]).given
    known = KnownResults(
        context.cache.actions,
        static,
        context.inputs,
        context.inputs.discover(sources, given),
        read=read_verdict,
        write=plain,
        force=context.force,
        unchanged=context.unchanged,
    )
    results: dict[int, CheckResult] = {}
    abouts: dict[int, str] = {}
    for stored in pairs:
        index = stored.case.index
        early = stored.without_outputs()
        if early is not None:
            results[index] = early
            continue
        about = stored.case.identity(), stored.op, stored.reference
        abouts[index] = digest_record(about)
    results.update(known.find_all(abouts))
    if len(results) < len(cases) and not context.force:
        known.fetch(context.shared, given, abouts, results)
    todo = [stored for stored in pairs if stored.case.index not in results]
    context.on_progress(Progress(spec.name, len(results), len(cases), 0))
    if todo:
        try:
            _judge(spec, context, todo, samples, made_before, known, abouts, results)
        finally:
            known.flush()
    good = {n: results[n] for n in abouts if results[n].verdict is not Verdict.ERROR}
    known.share(context.shared, given, abouts, good)
    verdicts = without_vain_keys([(case, results[case.index]) for case in cases])
    summary = summarise(verdicts)
    content = {
        "stage": STAGE,
        "version": VERSION,
        "cases": [{"case": c, "result": plain(r)} for c, r in verdicts],
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
        discovered=known.inputs.used,
    )


def _pairs(
    cases: Sequence[Case], ops: Sequence[Json], references: Sequence[Json]
) -> list[StoredCase]:
    by_index = {record["index"]: record for record in ops}
    expected = {record["index"]: record for record in references}
    return [StoredCase(case, by_index[case.index], expected[case.index]) for case in cases]


def _judge(
    spec: TaskSpec,
    context: StageContext,
    todo: Sequence[StoredCase],
    samples: Sequence[Case],
    made_before: Mapping[str, Json],
    known: KnownResults[CheckResult],
    abouts: Mapping[int, str],
    results: dict[int, CheckResult],
) -> None:
    """Judge the cases in batches, and keep the verdicts."""
    # Brings numpy, which the stages before have loaded while their workers started.
    from gpuemu_flow.judge.case_evaluator import CaseEvaluator  # noqa: PLC0415

    op, reference = (program_of(spec.settings[role]) for role in (stages.OP, stages.REFERENCE))
    compare = params_of(CompareParams, spec.params)
    subject = Subject(spec.subject, spec.dtype, op, reference, compare, samples)
    allowed = made_before[stages.REFERENCE]["expected_dtypes"]
    total, fresh = len(results) + len(todo), 0
    left = []
    for stored in with_outputs(spec, context, todo):
        early = stored.without_outputs()  # if a program that ran again gave none this time
        if early is None:
            left.append(stored)
        else:
            results[stored.case.index] = early
            fresh += 1
    # Loading a reference may take seconds, and only cases that do not pass need it.
    spared = [] if compare.needs_reference(spec.dtype) else [_not_called(reference)]
    try:
        for program in (*spared, reference):
            batches, left = _batches(left), []
            with ExitStack() as stack:
                judge = CaseEvaluator(
                    context.pool,
                    replace(subject, reference=program),
                    stack,
                    context.cancel,
                    facts=ReferenceFacts(allowed=allowed),
                )
                for batch in batches:
                    if context.cancel.is_set():
                        raise Interrupted
                    given = with_tensors(context, batch)
                    judged = judge.judge_stored(given)
                    if program is reference:
                        known.learn(judge.observed()["reference"], reference.given)
                    for (stored, _), result in zip(given, judged, strict=True):
                        if program is not reference and result.verdict is not Verdict.PASSED:
                            left.append(stored)
                            continue
                        fresh += 1
                        results[stored.case.index] = result
                        if result.verdict is not Verdict.ERROR:
                            known.put(abouts[stored.case.index], result)
                    context.on_progress(Progress(spec.name, len(results), total, fresh))
    except CancelledRunError:
        raise Interrupted from None


def _batches(stored: Sequence[StoredCase]) -> list[list[StoredCase]]:
    """Split cases into those that one message names: a few, whose tensors are not too large."""
    batches: list[list[StoredCase]] = []
    total = 0
    for one in stored:
        size = one.case.nbytes + one.op["size"] + one.reference["size"]
        total += size
        if not batches or len(batches[-1]) == BATCH or total > BatchSize.MAX_BYTES:
            batches.append([])
            total = size
        batches[-1].append(one)
    return batches


def _not_called(reference: Program) -> Program:
    """Return a function of Python's, in whose worker cases that pass are judged."""
    return Program(
        "callable",
        root=reference.root,
        input_names=(),
        module="operator",
        function="index",
        env=reference.env,
        env_names=reference.env_names,
        timeout=reference.timeout,
    )
