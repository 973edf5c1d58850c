"""Lint configured kernels by the task graph, and PTX and cubin files without configuration."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from gpuemu_flow.build import session
from gpuemu_flow.build.compile_kernels import kernel_policy, tool_files
from gpuemu_flow.build.graph import Listener
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.judge.results import KernelResult, RunReport, TaskCounts
from gpuemu_flow.lint.kernel import KernelPolicy, KernelView
from gpuemu_flow.lint.measure import Artifact, Measurement, measure
from gpuemu_flow.lint.rules import RULES_BY_ID, explain
from gpuemu_flow.lint.toolchain import MachineCode, Toolchain, find_tools
from gpuemu_flow.model.errors import Problem, StoreError, UsageError, did_you_mean
from gpuemu_flow.model.types import Json, Verdict
from gpuemu_flow.model.verdicts import decide
from gpuemu_flow.report.report import run_and_report
from gpuemu_flow.store.cache import JsonStore, open_user_cache
from gpuemu_flow.store.keys import digest_bytes
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.build_kernel import allowances
from gpuemu_flow.tasks.compilers import Assembled, ToolSandbox, assemble, disassemble
from gpuemu_flow.tasks.lint import (
    Linted,
    lint_views,
    load_measurement,
    measure_key,
    save_measurement,
)
from gpuemu_flow.workers.sandbox.fence import NOTHING, Fence


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


# Lint PTX and cubin files without a configuration; cache the measurements.

MAX_FILE_BYTES = 1 << 30
SUFFIXES = (".ptx", ".cubin")


class _Pair(Struct):
    """The files of one kernel: a PTX file, a cubin, or both with the same stem."""

    ptx: Path | None = None
    cubin: Path | None = None

    @property
    def name(self) -> str:
        return str(self.ptx or self.cubin)


def lint_files(
    paths: Sequence[Path],
    names: Sequence[str],
    workspace: Workspace | None,
    *,
    listing: bool = False,
) -> RunReport:
    """Lint PTX and cubin files; files that differ only in the suffix belong to the same kernel. A
    PTX file without a cubin is assembled with ptxas, if available, to get exact figures.
    Measurements are cached in the workspace's cache or, without a workspace, in the user's cache.
    Raises UsageError: ``unknown-kernel`` if no file has an entry with one of `names`; ``lint-bad-
    file`` if a file cannot be read or has another suffix."""
    pairs = _pairs(paths)
    policy = KernelPolicy() if workspace is None else kernel_policy(workspace.config.policies, None)
    results: list[KernelResult] = []
    empty: list[tuple[_Pair, Linted]] = []
    problems: dict[Problem, None] = {}
    known: set[str] = set()
    tools = ("ptxas", "nvdisasm") if listing else ("ptxas",)
    configured = {} if workspace is None else workspace.config.execution.tools
    with _measurements(workspace) as store:
        measurer = _Measurer(store, tools, configured, workspace)
        for pair in pairs:
            found = measurer.measure(pair)
            here = {view.name for view in found.kernels}
            known |= here
            if names and here and here.isdisjoint(names):
                continue
            linted = _lint(found, names, policy)
            if "artifact-no-kernels" in {p.slug for p in linted.problems}:
                linted.problems = [p for p in linted.problems if not p.warning]
                empty.append((pair, linted))
                continue
            problems.update(dict.fromkeys(linted.problems))
            results.append(_result(pair, linted))
    for pair, linted in empty:
        # One of the files of a glob, such as one with device functions alone, is passed over.
        problems.update((replace(p, warning=bool(results)), None) for p in linted.problems)
        if not known:
            results.append(_result(pair, linted))
    unknown = [name for name in names if name not in known]
    if unknown and known:
        raise unknown_kernels(unknown, known)
    return RunReport(TaskCounts(), (), (), tuple(problems), kernels=tuple(results))


def _lint(found: Measurement, names: Sequence[str], policy: KernelPolicy) -> Linted:
    linted = Linted(problems=list(found.problems))
    views = [view for view in found.kernels if not names or view.name in names]
    lint_views(views, policy, linted, allowances(_sources(views), Path.cwd()))
    return linted


def _sources(views: Iterable[KernelView]) -> list[str]:
    files = set()
    for view in views:
        places = [view.place]
        places += [f.place for found in view.findings.values() for f in found if f.place]
        files |= {file for place in places for file in (place.source_file, place.call_file)}
    return sorted(filter(None, files))


def _result(pair: _Pair, linted: Linted) -> KernelResult:
    errors = [problem.message for problem in linted.problems if not problem.warning]
    reason = (errors[0] if errors else "") if linted.verdict is Verdict.ERROR else ""
    return KernelResult(pair.name, "", linted.verdict, reason, entries=tuple(linted.records))


def _pairs(paths: Sequence[Path]) -> list[_Pair]:
    pairs: dict[Path, _Pair] = {}
    bad = []
    for path in dict.fromkeys(paths):
        hint = "correct the path; relative ones start at the current folder"
        if path.suffix not in SUFFIXES:
            hint = "give .ptx and .cubin files; a .cu file is built as one of [[kernels]]"
            bad.append(Problem("lint-bad-file", "is no .ptx or .cubin file", hint, str(path)))
        elif not path.is_file():
            bad.append(Problem("lint-bad-file", "there is no such file", hint, str(path)))
        else:
            pair = pairs.setdefault(path.with_suffix(""), _Pair())
            if path.suffix == ".ptx":
                pair.ptx = path
            else:
                pair.cubin = path
    if bad:
        raise UsageError(*bad)
    return list(pairs.values())


@contextlib.contextmanager
def _measurements(workspace: Workspace | None) -> Iterator[JsonStore | None]:
    """Yield the store of measurements, or None if no folder is writable; close it at the end."""
    if workspace is not None:
        workspace.cache.create()
        try:
            yield workspace.cache.actions
        finally:
            workspace.cache.close()
        return
    cache = open_user_cache()
    try:
        yield None if cache is None else cache.actions
    finally:
        if cache is not None:
            cache.close()


class _Measurer:
    """Measures kernels, each given as a PTX file, a cubin or both. If the same tools have already
    measured files of the same bytes, the stored result is returned."""

    def __init__(
        self,
        store: JsonStore | None,
        names: tuple[str, ...],
        configured: Mapping[str, str],
        workspace: Workspace | None,
    ) -> None:
        self._store = store
        self._root = None if workspace is None else workspace.root
        self._fence = _fence(workspace)
        self._names = names
        self._configured = configured
        self._tool_files = tool_files(names, configured)

    @cached_property
    def _chain(self) -> Toolchain:
        """Return the installed tools. The search for the tools runs each of them, so it is not made
        before the first use."""
        return find_tools(self._configured, names=self._names, root=self._root)

    def measure(self, pair: _Pair) -> Measurement:
        """Return the figures and findings of all kernels of a pair."""
        ptx, cubin = _bytes(pair.ptx), _bytes(pair.cubin)
        digests = [None if data is None else digest_bytes(data) for data in (ptx, cubin)]
        # The key has the state of the tools' files, so no tool runs to find a measurement.
        identity: Json = {"files": digests, "name": pair.name, "tools": self._tool_files}
        key = measure_key(identity)
        known = None if self._store is None else load_measurement(self._store, key)
        if known is not None:
            return known
        found, complete = self._make(pair.name, ptx, cubin)
        if self._store is not None and complete:
            with contextlib.suppress(StoreError):  # a full disk only means to measure again
                save_measurement(self._store, key, found)
        return found

    def _tool_sandbox(self, folder: Path) -> ToolSandbox | None:
        """Return a sandbox in which tools can write only to `folder`; None for no sandbox. It is
        needed since the tools read untrusted files."""
        tool_sandbox = self._fence.around(NOTHING, "", emulated=False)
        return None if tool_sandbox is None else ToolSandbox(folder, to_builtins(tool_sandbox))

    def _make(self, name: str, ptx: bytes | None, cubin: bytes | None) -> tuple[Measurement, bool]:
        """Measure with the installed tools; return the result, and True if it may be stored."""
        never, tools = threading.Event(), self._chain.tools
        made: Assembled | None = None
        sass: MachineCode | Problem | None = None
        with tempfile.TemporaryDirectory(prefix="gpuemu-lint-") as temporary:
            folder = Path(temporary)
            tool_sandbox = self._tool_sandbox(folder)
            if ptx is not None and cubin is None:
                made = assemble(ptx, name, "", tools.get("ptxas", []), folder, never, tool_sandbox)
                cubin = None if made is None else made.cubin
            if cubin is not None:
                sass = disassemble(
                    cubin, name, tools.get("nvdisasm", []), folder, never, tool_sandbox
                )
        artifact = Artifact(
            name,
            ptx=ptx,
            cubin=cubin,
            sass=sass if isinstance(sass, MachineCode) else None,
            unmet_bounds={} if made is None else made.unmet_bounds,
        )
        found = measure(artifact)
        found.problems += [replace(problem, warning=True) for problem in self._chain.problems]
        if made is not None:
            found.problems += made.problems
        if isinstance(sass, Problem):
            found.problems.append(sass)
        return found, made is None or not made.stopped


def _fence(workspace: Workspace | None) -> Fence:
    """Return the sandbox factory for tools, configured by the workspace if there is one."""
    if workspace is None:
        return Fence("auto", Path.cwd())
    wanted = workspace.config.sandbox
    writable, hidden = (tuple(map(str, paths)) for paths in (wanted.writable, wanted.hidden))
    return Fence(wanted.mode, workspace.root, writable, hidden=hidden, apart=wanted.apart)


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
