"""Store the present results of a workspace as baselines, and compare results with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from gpuemu_flow import __version__
from gpuemu_flow.config.model_ops import OpConfig
from gpuemu_flow.engine import session
from gpuemu_flow.engine.events import Listener
from gpuemu_flow.engine.workspace import Workspace
from gpuemu_flow.errors import Problem, UsageError
from gpuemu_flow.reporting.client_baselines import of_clients
from gpuemu_flow.reporting.renamed_ops import (
    IDENTITY,
    identity_of,
    renamed_kernels,
    renamed_ops,
)
from gpuemu_flow.reporting.report import run_and_report
from gpuemu_flow.reporting.submissions import submitted_summaries
from gpuemu_flow.results.document import (
    CHANGED,
    GONE,
    MISSING,
    NEW,
    REGRESSION,
    UNCHANGED,
    BaselineDiff,
    ResultDiff,
)
from gpuemu_flow.results.model import Absence, OpResult, RunReport
from gpuemu_flow.store import baselines
from gpuemu_flow.store.baselines import Baseline, BaselineStore
from gpuemu_flow.store.failure_record import now
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import read_manifest
from gpuemu_flow.tasks.diff import compare_summaries, read_summary
from gpuemu_flow.tasks.params import LintParams, params_of
from gpuemu_flow.types import BAD, Json, Verdict

if TYPE_CHECKING:
    from gpuemu_flow.artifacts.diff import KernelDiff
    from gpuemu_flow.artifacts.metrics import KernelMetrics


def bring_up_to_date(
    workspace: Workspace, listener: Listener | None = None, *, to_compare: bool = False
) -> RunReport:
    """Run all stale tasks and report on them, for storing or comparing a baseline.

    Raises UsageError: ``nothing-to-compare`` for a workspace without ops, kernels and submissions.
    """
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
    known = BaselineStore(workspace.cache)
    replaced = known.put(baseline)
    keep = workspace.config.storage.max_baselines
    return StoredBaseline(baseline, replaced, known.trim(keep, baseline.tag))


def store(workspace: Workspace, tag: str, report: RunReport) -> StoredBaseline:
    """Store the present results as a baseline, which replaces one of the same name.

    Raises UsageError: ``baseline-bad-tag``.
    """
    kernels, results = _current(workspace, report)
    submitted, artifacts = of_clients(workspace)
    baseline = Baseline(
        tag=baselines.check_tag(tag),
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

    Raises UsageError: ``baseline-bad-file``, ``baseline-bad-tag``.
    """
    found = baselines.read_file(path)
    try:
        for entries in found.kernels.values():
            for entry in entries:
                _metrics(entry)
        for dtypes in found.results.values():
            for summary in dtypes.values():
                Verdict(summary["verdict"])
                float(summary["max_abs"])
                str(summary["cases_digest"])
                for cases in summary.get("case_verdicts", {}).values():
                    dict.fromkeys(map(str.encode, cases))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"its figures have another form ({type(error).__name__}: {error})"
        raise UsageError(Problem("baseline-bad-file", reason, "", str(path))) from None
    values = {**found.to_json(), "tag": baselines.check_tag(tag or found.tag)}
    baseline = Baseline.from_json(values)
    workspace.cache.create()
    return _put(workspace, baseline)


def diff(workspace: Workspace, baseline: Baseline, report: RunReport) -> BaselineDiff:
    """Compare the present results and kernels with a baseline.

    Ops and kernels that were renamed since the baseline was stored are matched.
    """
    kernels, results = _current(workspace, report)
    found = BaselineDiff(baseline)
    configured = {op.name: op for op in workspace.config.ops}
    if kernels or baseline.kernels:
        found.kernels += _kernel_diffs(workspace, baseline, kernels)
    threshold = workspace.config.policies.regression_threshold
    former = renamed_ops(baseline.results, configured)
    shown = {(r.op, r.dtype): r for r in report.results}
    for op in dict.fromkeys((*configured, *results, *baseline.results)):
        if op in former.values():
            continue
        old, new = baseline.results.get(former.get(op, op), {}), results.get(op, {})
        for dtype in dict.fromkeys((*new, *old)):
            gone = op not in configured or dtype not in configured[op].dtypes
            unjudged = GONE if gone else _unjudged(shown.get((op, dtype)))
            if not unjudged and _has_lost_program(configured[op], old.get(dtype)):
                unjudged = Verdict.SKIPPED.value
            one = _result(op, dtype, old.get(dtype), new.get(dtype), threshold, unjudged)
            found.results.append(replace(one, was=former.get(op, "")))
    return found


def _kernel_diffs(
    workspace: Workspace, baseline: Baseline, kernels: Mapping[str, list[Json]]
) -> Iterator[tuple[str, KernelDiff]]:
    """Compare the entry functions of all kernels with a baseline."""
    from gpuemu_flow.artifacts.diff import diff_kernels  # noqa: PLC0415
    from gpuemu_flow.graph.compile_kernels import kernel_policy  # noqa: PLC0415

    policies = {
        kernel.name: kernel_policy(workspace.config.policies, kernel)
        for kernel in workspace.config.kernels
    }
    former = renamed_kernels(baseline.kernels, kernels)
    for name in dict.fromkeys((*kernels, *baseline.kernels)):
        if name in former.values():
            continue
        policy = policies.get(name)
        diffs = diff_kernels(
            [_metrics(entry) for entry in baseline.kernels.get(former.get(name, name), ())],
            [_metrics(entry) for entry in kernels.get(name, ())],
            forbidden=policy.forbidden_instructions if policy is not None else (),
        )
        gone = name not in policies
        yield from ((name, _gone(one) if gone else one) for one in diffs)


def _gone(kernel: KernelDiff) -> KernelDiff:
    """Return the comparison of a kernel that is no longer configured, which is a regression."""
    from gpuemu_flow.artifacts.diff import ChangeJudgement  # noqa: PLC0415

    judgement = ChangeJudgement(REGRESSION, "kernel", "it is not configured any more")
    return replace(kernel, judgements=(*kernel.judgements, judgement))


def _has_lost_program(op: OpConfig, old: Mapping[str, Json] | None) -> bool:
    """Tell whether only clients can run an op that had a program when the baseline was stored."""
    return op.op is None and old is not None and old.get(IDENTITY) not in (None, identity_of(op))


def _unjudged(result: OpResult | None) -> str:
    """Return the verdict on an op without cases if it may be a regression; else an empty text.

    It may be a regression if the check ended in an error, or if the results are outdated.
    """
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
    """Return a report's kernel figures and op summaries in the form that a baseline stores."""
    folder = workspace.cache.folder
    kernels: dict[str, list[Json]] = {}
    results: dict[str, dict[str, Json]] = {}
    judged = {(r.op, r.dtype) for r in report.results if r.cases}
    linted = {(k.kernel, k.arch) for k in report.kernels if k.entries}
    for spec in workspace.graph.tasks.values():
        path = folder / spec.target
        if spec.stage == stages.COMPARE and (spec.subject, spec.dtype) in judged:
            identity = {IDENTITY: identity_of(workspace.config.op(spec.subject))}
            results.setdefault(spec.subject, {})[spec.dtype] = {**read_summary(path), **identity}
        elif (
            spec.stage == stages.LINT
            and (spec.subject, params_of(LintParams, spec.params).arch) in linted
        ):
            metrics = read_manifest(path, stages.LINT)["metrics"]
            kernels.setdefault(spec.subject, []).extend(metrics)
    for (op, dtype), summary in submitted_summaries(workspace, report.results).items():
        identity = {IDENTITY: identity_of(workspace.config.op(op))}
        results.setdefault(op, {})[dtype] = {**summary, **identity}
    return kernels, results


def _metrics(entry: Mapping[str, Any]) -> KernelMetrics:
    """Return the figures of a kernel from their stored form.

    Raises KeyError, TypeError, ValueError: The entry does not have the expected form.
    """
    from gpuemu_flow.artifacts.metrics import KernelMetrics  # noqa: PLC0415

    metrics = KernelMetrics.from_json(entry)
    numbers: Sequence[object] = (
        metrics.registers, metrics.spill_instructions, metrics.spill_bytes, metrics.stack_bytes,
        metrics.local_bytes, metrics.shared_bytes, metrics.instructions, metrics.max_live,
        metrics.dynamic_shared_bytes, metrics.barriers, metrics.predicated_instructions,
        *metrics.families.values(), *metrics.opcodes.values(), *metrics.calls.values(),
        *(metrics.sass_opcodes or {}).values(),
    )  # fmt: skip
    if not all(value is None or (isinstance(value, int) and value >= 0) for value in numbers):
        raise ValueError("a figure is no count")
    words = (metrics.name, metrics.arch, metrics.metric_source, metrics.tool_version,
             metrics.ptx_target, metrics.sass_tool)  # fmt: skip
    if not all(isinstance(word, str) for word in words):
        raise ValueError("a name is no text")
    return metrics
