"""Linting on request: the configured kernels by way of the task graph, and files by themselves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpuemu_flow.artifacts.lint import unknown_rules
from gpuemu_flow.artifacts.measure import Artifact, Measurement, measure
from gpuemu_flow.artifacts.policy import Policy
from gpuemu_flow.artifacts.rules import RULES_BY_ID
from gpuemu_flow.artifacts.rules.reference import explain
from gpuemu_flow.engine import session
from gpuemu_flow.engine.compile_kernels import kernel_policy
from gpuemu_flow.engine.events import Listener
from gpuemu_flow.engine.report import build_report
from gpuemu_flow.engine.workspace import Workspace
from gpuemu_flow.errors import Problem, UsageError, did_you_mean
from gpuemu_flow.reports.model import KernelResult, RunReport, TaskCounts
from gpuemu_flow.store.keys import digest_bytes
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.build_kernel import allowances
from gpuemu_flow.tasks.lint import (
    Linted,
    choose,
    lint_views,
    load_measurement,
    measure_key,
    save_measurement,
)
from gpuemu_flow.types import Verdict

MAX_FILE_BYTES = 1 << 30
SUFFIXES = (".ptx", ".cubin")


@dataclass
class _Pair:
    """PTX and cubin of one name."""

    ptx: Path | None = None
    cubin: Path | None = None
    extra: list[Path] = field(default_factory=list)


def explain_rule(name: str) -> str:
    """One lint rule as Markdown.

    Raises
    ------
    UsageError
        ``unknown-rule``, with the nearest name.
    """
    rule = RULES_BY_ID.get(name)
    if rule is None:
        hint = did_you_mean(name, tuple(RULES_BY_ID))
        raise UsageError(Problem("unknown-rule", f"no lint rule {name!r}", hint))
    return explain(rule)


def open_workspace() -> Workspace | None:
    """The workspace that the current folder lies in; None when there is none.

    Raises
    ------
    ConfigError
        When there is one and its configuration is wrong.
    """
    try:
        return Workspace()
    except UsageError as error:
        if error.slug == "config-not-found":
            return None
        raise


def lint_workspace(
    workspace: Workspace, names: Sequence[str], listener: Listener | None = None
) -> RunReport:
    """Build and lint the configured kernels, or those named, as far as that is not current.

    Parameters
    ----------
    names : sequence of str
        Configured kernels, or entries of their artifacts; none means all.

    Raises
    ------
    UsageError
        ``unknown-kernel``, with the nearest name.
    """
    graph = workspace.graph
    lints = [spec for spec in graph.tasks.values() if spec.stage == stages.LINT]
    configured = {spec.subject for spec in lints}
    skipped = {skip.op for skip in graph.skips if not skip.dtype}
    entries = [name for name in names if name not in configured | skipped]
    words = tuple(spec.name for spec in lints if not names or entries or spec.subject in names)
    if not words:
        skips = [s for s in graph.skips if not s.dtype and (not names or s.op in names)]
        if entries:
            raise _unknown(entries, configured | skipped)
        results = [KernelResult(s.op, "", Verdict.SKIPPED, reason=s.reason) for s in skips]
        return RunReport(TaskCounts(skipped=len(skips)), (), (), kernels=tuple(results))
    outcome = session.run(workspace, session.RunOptions(words=words), listener)
    report = build_report(workspace, outcome)
    if not names:
        missing = [s for s in graph.skips if not s.dtype]
        kernels = [KernelResult(s.op, "", Verdict.SKIPPED, reason=s.reason) for s in missing]
        return replace(report, kernels=(*report.kernels, *kernels))
    return replace(report, kernels=tuple(_named(report.kernels, names, configured | skipped)))


def _named(
    results: Iterable[KernelResult], names: Sequence[str], configured: set[str]
) -> Iterator[KernelResult]:
    results = list(results)
    known = {str(entry["name"]) for result in results for entry in result.entries}
    unknown = [name for name in names if name not in configured | known]
    if unknown:
        raise _unknown(unknown, configured | known)
    for result in results:
        if result.kernel in names:
            yield result
            continue
        entries = tuple(entry for entry in result.entries if entry["name"] in names)
        if entries:
            failed = any(entry["verdict"] == Verdict.FAILED.value for entry in entries)
            verdict = Verdict.FAILED if failed else Verdict.PASSED
            yield replace(result, entries=entries, verdict=verdict, reason="")


def _unknown(names: Iterable[str], known: Iterable[str]) -> UsageError:
    words = tuple(sorted(known))
    return UsageError(
        *(Problem("unknown-kernel", f"no kernel {n!r}", did_you_mean(n, words)) for n in names)
    )


def lint_files(
    paths: Sequence[Path], names: Sequence[str], workspace: Workspace | None
) -> RunReport:
    """Lint PTX and cubin files; those that differ only in the suffix belong together.

    Parameters
    ----------
    paths : sequence of Path
    names : sequence of str
        Only entries of these names.
    workspace : Workspace or None
        For ``[policies]`` and the cache of measurements.

    Raises
    ------
    UsageError
        ``unknown-kernel`` when no file has an entry of one of `names`; ``lint-bad-file`` for a
        file that cannot be read or has another suffix.
    """
    pairs = _pairs(paths)
    policy = Policy() if workspace is None else kernel_policy(workspace.config.policies, None)
    results, problems = [], dict.fromkeys(unknown_rules(policy))
    known: set[str] = set()
    for pair in pairs:
        found = _measure_files(pair, workspace)
        known |= {view.name for view in found.kernels}
        linted = Linted(problems=list(found.problems))
        views = [v for v in found.kernels if v.name in names] if names else found.kernels
        if names and found.kernels and not views:
            continue
        sources = {v.place.source_file for v in views} | {
            f.place.source_file for v in views for items in v.findings.values() for f in items
        }
        comments = allowances(sorted(filter(None, sources)), Path.cwd())
        lint_views(choose(views, ""), policy, linted, comments)
        problems.update(dict.fromkeys(linted.problems))
        errors = [problem.message for problem in linted.problems if not problem.warning]
        shown = str(pair.ptx or pair.cubin)
        reason = (errors[0] if errors else "") if linted.verdict is Verdict.ERROR else ""
        entries = tuple(linted.to_json())
        results.append(KernelResult(shown, "", linted.verdict, reason, entries=entries))
    unknown = [name for name in names if name not in known]
    if unknown and known:
        raise _unknown(unknown, known)
    if workspace is not None:
        workspace.cache.close()
    return RunReport(TaskCounts(), (), (), tuple(problems), kernels=tuple(results))


def _pairs(paths: Sequence[Path]) -> list[_Pair]:
    pairs: dict[Path, _Pair] = {}
    bad = []
    for path in dict.fromkeys(paths):
        if path.suffix not in SUFFIXES:
            hint = "give .ptx and .cubin files; a .cu file is built as one of [[kernels]]"
            bad.append(Problem("lint-bad-file", "is no .ptx or .cubin file", hint, str(path)))
        elif not path.is_file():
            bad.append(Problem("lint-bad-file", "there is no such file", "", str(path)))
        else:
            pair = pairs.setdefault(path.with_suffix(""), _Pair())
            if path.suffix == ".ptx":
                pair.ptx = path
            else:
                pair.cubin = path
    if bad:
        raise UsageError(*bad)
    return list(pairs.values())


def _measure_files(pair: _Pair, workspace: Workspace | None) -> Measurement:
    data = {"ptx": _bytes(pair.ptx), "cubin": _bytes(pair.cubin)}
    file = str(pair.ptx or pair.cubin)
    artifact = Artifact(file, ptx=data["ptx"], cubin=data["cubin"])
    if workspace is None:
        return measure(artifact)
    digests = {name: None if d is None else digest_bytes(d) for name, d in data.items()}
    workspace.cache.create()
    key = measure_key({**digests, "file": file})
    known = load_measurement(workspace.cache.actions, key)
    if known is None:
        known = measure(artifact)
        save_measurement(workspace.cache.actions, key, known)
    return known


def _bytes(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            reason = f"is larger than {MAX_FILE_BYTES >> 20} MiB"
            raise UsageError(Problem("lint-bad-file", reason, "", str(path)))
        return path.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(Problem("lint-bad-file", reason, "", str(path))) from None


def names_of_sources(workspace: Workspace, files: Sequence[Path]) -> list[str]:
    """Configured kernels whose source is one of the files.

    Raises
    ------
    UsageError
        ``lint-bad-file`` for a file that is no kernel's source.
    """
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


@contextlib.contextmanager
def closing(workspace: Workspace | None) -> Iterator[Workspace | None]:
    """Close a workspace's cache at the end, whatever happens."""
    try:
        yield workspace
    finally:
        if workspace is not None:
            workspace.cache.close()
