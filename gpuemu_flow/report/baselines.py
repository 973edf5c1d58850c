"""Store the present results of a workspace as baselines, and compare results with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, ValidationError, structs
from msgspec.structs import replace

from gpuemu_flow import __version__
from gpuemu_flow.build import session
from gpuemu_flow.build.compile_kernels import kernel_policy
from gpuemu_flow.build.graph import Listener
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.config.model import OpConfig, ProgramRef
from gpuemu_flow.judge.results import Absence, OpResult, RunReport
from gpuemu_flow.lint.diff import ChangeJudgement, diff_kernels
from gpuemu_flow.lint.kernel import KernelMetrics
from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.errors import Problem, UsageError
from gpuemu_flow.model.types import BAD, Json, Verdict
from gpuemu_flow.report.document import (
    CHANGED,
    GONE,
    MISSING,
    NEW,
    REGRESSION,
    UNCHANGED,
    BaselineDiff,
    ResultDiff,
)
from gpuemu_flow.report.report import run_and_report
from gpuemu_flow.report.submissions import submitted_results, submitted_summaries
from gpuemu_flow.store import baselines
from gpuemu_flow.store.baselines import (
    ArtifactMetrics,
    ArtifactStore,
    Baseline,
    BaselineStore,
    SubmittedResult,
)
from gpuemu_flow.store.failures import now
from gpuemu_flow.store.keys import digest_json
from gpuemu_flow.store.results import FOLDER, ResultStore, StoredResult
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import LintParams, params_of, read_result
from gpuemu_flow.tasks.diff import compare_summaries, read_summary

if TYPE_CHECKING:
    from gpuemu_flow.lint.diff import KernelDiff


def bring_up_to_date(
    workspace: Workspace, listener: Listener | None = None, *, to_compare: bool = False
) -> RunReport:
    """Run all stale tasks and report on them, for storing or comparing a baseline. Raises
    UsageError: ``nothing-to-compare`` for a workspace without ops, kernels and submissions."""
    _, report = run_and_report(workspace, session.RunOptions(), listener)
    known = any(r.cases or (to_compare and r.absence is Absence.OUTDATED) for r in report.results)
    if not workspace.graph.tasks and not known:
        message = "the configuration has no op or kernel that can be run here"
        raise UsageError(Problem("nothing-to-compare", message))
    return report


class StoredBaseline(Struct, frozen=True):
    """The outcome of storing a baseline."""

    baseline: Baseline
    replaced: bool
    dropped: tuple[str, ...]


def _put(workspace: Workspace, baseline: Baseline) -> StoredBaseline:
    baselines.check_tag(baseline.tag)
    known = BaselineStore(workspace.cache)
    replaced = known.put(baseline)
    keep = workspace.config.storage.max_baselines
    return StoredBaseline(baseline, replaced, known.trim(keep, baseline.tag))


def store(workspace: Workspace, tag: str, report: RunReport) -> StoredBaseline:
    """Store the present results as a baseline, which replaces one of the same name. Raises
    UsageError: ``baseline-bad-tag``."""
    kernels, results = _current(workspace, report)
    submitted, artifacts = of_clients(workspace)
    baseline = Baseline(
        tag=tag,
        created=now(),
        tool=__version__,
        environment=dict(workspace.environment),
        kernels=kernels,
        results=results,
        submitted=submitted,
        artifacts=artifacts,
    )
    return _put(workspace, baseline)


def import_file(workspace: Workspace, path: Path, tag: str) -> StoredBaseline:
    """Import an exported baseline under the name `tag`; if it is empty, under the exported name.
    Raises UsageError: ``baseline-bad-file``, ``baseline-bad-tag``."""
    found = baselines.read_file(path)
    try:
        for entries in found.kernels.values():
            for entry in entries:
                convert(entry, KernelMetrics)
        for dtypes in found.results.values():
            for summary in dtypes.values():
                Verdict(summary["verdict"])
                float(summary["max_abs"])
                str(summary["cases_digest"])
                for cases in summary.get("case_verdicts", {}).values():
                    dict.fromkeys(map(str.encode, cases))
    except (KeyError, TypeError, ValueError, AttributeError, ValidationError) as error:
        reason = f"its figures have another form ({type(error).__name__}: {error})"
        raise UsageError(Problem("baseline-bad-file", reason, "", str(path))) from None
    baseline = replace(found, tag=tag or found.tag)
    workspace.cache.create()
    return _put(workspace, baseline)


def diff(workspace: Workspace, baseline: Baseline, report: RunReport) -> BaselineDiff:
    """Compare the present results and kernels with a baseline."""
    kernels, results = _current(workspace, report)
    found = BaselineDiff(baseline)
    configured = {op.name: op for op in workspace.config.ops}
    if kernels or baseline.kernels:
        found.kernels += _kernel_diffs(workspace, baseline, kernels)
    threshold = workspace.config.policies.regression_threshold
    shown = {(r.op, r.dtype): r for r in report.results}
    for op in dict.fromkeys((*configured, *results, *baseline.results)):
        old, new = baseline.results.get(op, {}), results.get(op, {})
        for dtype in dict.fromkeys((*new, *old)):
            gone = op not in configured or dtype not in configured[op].dtypes
            unjudged = GONE if gone else _unjudged(shown.get((op, dtype)))
            if not unjudged and _has_lost_program(configured[op], old.get(dtype)):
                unjudged = Verdict.SKIPPED.value
            one = _result(op, dtype, old.get(dtype), new.get(dtype), threshold, unjudged)
            found.results.append(one)
    return found


def _kernel_diffs(
    workspace: Workspace, baseline: Baseline, kernels: Mapping[str, list[Json]]
) -> Iterator[tuple[str, KernelDiff]]:
    policies = {
        kernel.name: kernel_policy(workspace.config.policies, kernel)
        for kernel in workspace.config.kernels
    }
    for name in dict.fromkeys((*kernels, *baseline.kernels)):
        policy = policies.get(name)
        diffs = diff_kernels(
            convert(baseline.kernels.get(name, ()), list[KernelMetrics]),
            convert(kernels.get(name, ()), list[KernelMetrics]),
            forbidden=policy.forbidden_instructions if policy is not None else (),
        )
        gone = name not in policies
        yield from ((name, _gone(one) if gone else one) for one in diffs)


def _gone(kernel: KernelDiff) -> KernelDiff:
    """Return the comparison of a kernel that is no longer configured, which is a regression."""
    judgement = ChangeJudgement(REGRESSION, "kernel", "it is not configured any more")
    return structs.replace(kernel, is_regression=True, judgements=(*kernel.judgements, judgement))


def _has_lost_program(op: OpConfig, old: Mapping[str, Json] | None) -> bool:
    return op.op is None and old is not None and old.get(IDENTITY) not in (None, identity_of(op))


def _unjudged(result: OpResult | None) -> str:
    """Return the verdict on an op without cases if it may be a regression; else an empty text. It
    may be a regression if the check ended in an error, or if the results are outdated."""
    if result is None or result.cases:
        return ""
    back = result.verdict is Verdict.ERROR or result.absence is Absence.OUTDATED
    return result.verdict.value if back else ""


def _result(
    op: str,
    dtype: str,
    old: Mapping[str, Json] | None,
    new: Mapping[str, Json] | None,
    threshold: float,
    unjudged: str,
) -> ResultDiff:
    """Compare an old and a new summary of an op in one dtype; a missing summary is None."""
    if new is None:
        before = None if old is None else old["verdict"]
        worse = unjudged and before == Verdict.PASSED.value
        status, after = (REGRESSION, unjudged) if worse else (MISSING, None)
        return ResultDiff(op, dtype, status, "verdict", before, after)
    if old is None:
        status = REGRESSION if Verdict(new["verdict"]) in BAD else NEW
        return ResultDiff(op, dtype, status, "verdict", None, new["verdict"])
    changes = compare_summaries(dtype, old, new, threshold)
    if not changes:
        return ResultDiff(op, dtype, UNCHANGED)
    (change,) = changes
    if change["what"] == stages.OTHER_CASES:
        return ResultDiff(op, dtype, CHANGED)
    kind = str(change["kind"])
    status = {"growth": REGRESSION, "change": CHANGED}.get(kind, kind)
    return ResultDiff(op, dtype, status, change["what"], change["old"], change["new"])


def _current(
    workspace: Workspace, report: RunReport
) -> tuple[dict[str, list[Json]], dict[str, dict[str, Json]]]:
    kernels: dict[str, list[Json]] = {}
    results: dict[str, dict[str, Json]] = {}
    judged = {(r.op, r.dtype) for r in report.results if r.cases}
    linted = {(k.kernel, k.arch) for k in report.kernels if k.entries}
    for spec in workspace.graph.tasks.values():
        if spec.stage == stages.COMPARE and (spec.subject, spec.dtype) in judged:
            identity = {IDENTITY: identity_of(workspace.config.op(spec.subject))}
            summary = read_summary(read_result(workspace.cache, spec.name, stages.COMPARE))
            results.setdefault(spec.subject, {})[spec.dtype] = {**summary, **identity}
        elif (
            spec.stage == stages.LINT
            and (spec.subject, params_of(LintParams, spec.params).arch) in linted
        ):
            metrics = read_result(workspace.cache, spec.name, stages.LINT)["metrics"]
            kernels.setdefault(spec.subject, []).extend(metrics)
    for (op, dtype), summary in submitted_summaries(workspace, report.results).items():
        identity = {IDENTITY: identity_of(workspace.config.op(op))}
        results.setdefault(op, {})[dtype] = {**summary, **identity}
    return kernels, results


IDENTITY = "identity"
"""Key under which a stored summary has its op's identity; see `identity_of`."""


def identity_of(op: OpConfig) -> str:
    """Return a digest of an op's programs and input names; it is equal in every checkout."""
    return digest_json([_shown(op.op), _shown(op.reference), list(op.input_names)])


def _shown(program: ProgramRef | None) -> Json:
    if program is None:
        return None
    argv = list(program.portable_argv)
    place = program.relative, program.module, program.function, program.kernel
    return [program.kind, *place, argv]


# Store results and kernel figures that clients of the daemon submitted, as part of a baseline.


def store_submitted(workspace: Workspace, tag: str, latest: Iterable[StoredResult]) -> int:
    """Store the clients' newest results in a baseline, and leave its other parts unchanged.
    Summaries of the ops that only clients run are stored, too, so that ``diff`` compares them."""
    submitted = as_submitted(latest)
    counted = submitted_results(workspace, workspace.graph.skips)
    results: dict[str, dict[str, Json]] = {}
    for (op, dtype), summary in submitted_summaries(workspace, counted.values()).items():
        results.setdefault(op, {})[dtype] = summary
    before = _baseline(workspace, tag)
    _put(workspace, replace(before, submitted=submitted, results={**before.results, **results}))
    return len(submitted)


def store_artifacts(workspace: Workspace, tag: str, figures: Mapping[str, ArtifactMetrics]) -> None:
    _put(workspace, replace(_baseline(workspace, tag), artifacts=figures))


def of_clients(
    workspace: Workspace,
) -> tuple[tuple[SubmittedResult, ...], dict[str, ArtifactMetrics]]:
    """Return the clients' newest results and their kernel figures, for a complete baseline."""
    folder = workspace.config.results_folder(workspace.cache.folder)
    submitted: tuple[SubmittedResult, ...] = ()
    if (folder / FOLDER).exists():
        results = ResultStore(workspace.cache, folder, max_results=0)
        try:
            submitted = as_submitted(results.latest().values())
        finally:
            results.close()
    artifacts = ArtifactStore(workspace.cache)
    try:
        return submitted, artifacts.everything()
    finally:
        artifacts.close()


def as_submitted(latest: Iterable[StoredResult]) -> tuple[SubmittedResult, ...]:
    return tuple(
        SubmittedResult(
            stored.op, stored.seed, stored.judged.verdict is Verdict.PASSED, stored.judged.max_abs
        )
        for stored in latest
    )


def _baseline(workspace: Workspace, tag: str) -> Baseline:
    """Return baseline `tag`, or a new empty one if there is none."""
    environment = dict(workspace.environment)
    try:
        known = BaselineStore(workspace.cache).get(tag)
    except UsageError:
        return Baseline(
            tag=tag, created=now(), tool=__version__, environment=environment, kernels={},
            results={}, of_run=False,
        )  # fmt: skip
    return replace(known, created=now(), tool=__version__, environment=environment)
