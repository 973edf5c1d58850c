"""Lint the configured kernels through the task graph; find kernels by name or source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from gpuemu_flow.build import session
from gpuemu_flow.build.graph import Listener
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.judge.results import KernelResult, RunReport, TaskCounts
from gpuemu_flow.lint.rules import RULES_BY_ID, explain
from gpuemu_flow.model.errors import Problem, UsageError, did_you_mean
from gpuemu_flow.model.types import Verdict
from gpuemu_flow.model.verdicts import decide
from gpuemu_flow.report.report import run_and_report
from gpuemu_flow.tasks import stages


def explain_rule(name: str) -> str:
    """Return the description of a lint rule as Markdown. Raises UsageError: ``unknown-rule``, with
    the most similar known name."""
    rule = RULES_BY_ID.get(name)
    if rule is None:
        hint = did_you_mean(name, tuple(RULES_BY_ID))
        raise UsageError(Problem("unknown-rule", f"no lint rule {name!r}", hint))
    return explain(rule)


def open_workspace() -> Workspace | None:
    """Return the workspace that contains the current folder; None if there is none. Raises
    ConfigError: There is a workspace, and its configuration is invalid."""
    try:
        return Workspace()
    except UsageError as error:
        if error.slug == "config-not-found":
            return None
        raise


def lint_workspace(
    workspace: Workspace, names: Sequence[str], listener: Listener | None = None
) -> RunReport:
    """Bring the lints of kernels up to date, and report on them. Raises UsageError:
    ``unknown-kernel``, with the most similar known name."""
    graph = workspace.graph
    lints = [spec for spec in graph.tasks.values() if spec.stage == stages.LINT]
    configured = {spec.subject for spec in lints}
    skipped = {skip.op for skip in graph.skips if not skip.dtype}
    entries = [name for name in names if name not in configured | skipped]
    words = tuple(spec.name for spec in lints if not names or entries or spec.subject in names)
    if not words:
        skips = [s for s in graph.skips if not s.dtype and (not names or s.op in names)]
        if entries:
            raise unknown_kernels(entries, configured | skipped)
        results = [KernelResult(s.op, "", Verdict.SKIPPED, reason=s.reason) for s in skips]
        return RunReport(TaskCounts(skipped=len(skips)), (), (), kernels=tuple(results))
    _, report = run_and_report(workspace, session.RunOptions(words=words), listener)
    if not names:
        missing = [s for s in graph.skips if not s.dtype]
        kernels = [KernelResult(s.op, "", Verdict.SKIPPED, reason=s.reason) for s in missing]
        return replace(report, kernels=(*report.kernels, *kernels))
    return replace(report, kernels=tuple(_named(report.kernels, names, configured | skipped)))


def _named(
    results: Iterable[KernelResult], names: Sequence[str], configured: set[str]
) -> Iterator[KernelResult]:
    results = list(results)
    known = {entry.name for result in results for entry in result.entries}
    unknown = [name for name in names if name not in configured | known]
    if unknown:
        raise unknown_kernels(unknown, configured | known)
    for result in results:
        if result.kernel in names:
            yield result
            continue
        entries = tuple(entry for entry in result.entries if entry.name in names)
        if entries:
            verdicts = {entry.verdict for entry in entries}
            judged = len(entries) if verdicts <= {Verdict.PASSED, Verdict.FAILED} else 0
            verdict = decide(Verdict.FAILED in verdicts, judged)
            yield replace(result, entries=entries, verdict=verdict, reason="")


def unknown_kernels(names: Iterable[str], known: Iterable[str]) -> UsageError:
    """Return the error for unknown names of kernels, with the most similar known names."""
    words = tuple(sorted(known))
    return UsageError(
        *(Problem("unknown-kernel", f"no kernel {n!r}", did_you_mean(n, words)) for n in names)
    )


def names_of_sources(workspace: Workspace, files: Sequence[Path]) -> list[str]:
    """Return the names of the configured kernels whose source or artifact is one of the files.
    Raises UsageError: ``lint-bad-file`` for a file that belongs to no kernel."""
    names: list[str] = []
    bad = []
    for path in files:
        wanted = path.resolve()
        found = [
            kernel.name
            for kernel in workspace.config.kernels
            if wanted in {p.resolve() for p in (kernel.source, kernel.ptx, kernel.cubin) if p}
        ]
        if not found:
            hint = "name it as source of one of [[kernels]]; .ptx and .cubin files need none"
            bad.append(Problem("lint-bad-file", "is the source of no kernel", hint, str(path)))
        names += found
    if bad:
        raise UsageError(*bad)
    return names
