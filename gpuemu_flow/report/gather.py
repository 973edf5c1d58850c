"""Extend the result of a run to a complete report."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path

from msgspec.structs import replace

from gpuemu_flow import __version__
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.config.model import OpConfig
from gpuemu_flow.judge.results import CaseVerdict, Regression, RunReport
from gpuemu_flow.lint.ptx.model import PlainPtx, plain_ptx
from gpuemu_flow.lint.ptx.parser import read_body, read_ptx
from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.errors import StoreError
from gpuemu_flow.model.syntax import parse_python
from gpuemu_flow.model.types import Case, CheckResult, CodePlace, Failure, Json, Verdict
from gpuemu_flow.report.document import FileLine, Report
from gpuemu_flow.store.cache import artifact_path
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import CodeParams, TaskSpec, params_of, read_result

MAX_SOURCE_BYTES = 4 << 20


def gather(
    workspace: Workspace,
    report: Report,
    environ: Mapping[str, str] = os.environ,
) -> Report:
    """Complete a report: add all cases, and the locations of failures."""
    run = report.run
    base = repository(workspace.root, environ)
    prefix = workspace.root.relative_to(base).as_posix()
    return replace(
        report,
        project=workspace.config.project.name,
        project_version=workspace.config.project.version,
        created=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        version=__version__,
        cases=tuple(checked_cases(workspace, run)),
        places=op_places(workspace, run, report.regressions, base),
        kernel_places=kernel_places(workspace, base),
        prefix="" if prefix == "." else prefix,
        commit=_commit(base),
    )


def checked_cases(workspace: Workspace, run: RunReport) -> list[CaseVerdict]:
    """Return the verdict on every case of a report, in the order of the report. Of the cases that
    clients submitted, only the failing ones are returned."""
    tasks, relocate = workspace.graph.tasks, Relocator(workspace)
    found = []
    for result in run.results:
        spec = tasks.get(f"{stages.COMPARE}:{result.op}:{result.dtype}")
        cases: list[Json] = []
        if spec is not None and result.cases:
            try:
                cases = read_result(workspace.cache, spec.name, stages.COMPARE)["cases"]
            except StoreError:
                cases = []
        for c in cases:
            checked = convert(c["result"], CheckResult, strict=False)
            checked = checked if spec is None else relocate(spec, checked)
            found.append(CaseVerdict(result.op, convert(c["case"], Case), checked))
        if not cases:
            found += result.failures
    return found


def repository(root: Path, environ: Mapping[str, str]) -> Path:
    checkout = environ.get("GITHUB_WORKSPACE") or environ.get("CI_PROJECT_DIR") or ""
    if checkout and root.is_relative_to(Path(checkout).resolve()):
        return Path(checkout).resolve()
    for folder in (root, *root.parents):
        if (folder / ".git").exists():
            return folder
    return root


def _commit(repository: Path) -> str:
    if not (repository / ".git").exists():
        return ""
    asked = ["git", "-C", str(repository), "log", "-1", "--format=%h %D"]
    try:
        told = subprocess.run(asked, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    commit, _, names = told.stdout.strip().partition(" ")
    branch = names.partition(",")[0].removeprefix("HEAD -> ").removeprefix("HEAD")
    return f"{commit} on {branch}" if branch else commit


def op_places(
    workspace: Workspace, run: RunReport, worse: Iterable[Regression], base: Path
) -> dict[str, FileLine]:
    """Map each op that did not pass, or whose results changed, to its location. This is the
    location of the op's source or, if that is unknown, of the op's table in the configuration."""
    wanted = {r.op for r in run.results if r.verdict is not Verdict.PASSED}
    wanted |= {change.op for change in run.changes}
    wanted |= {regression.op for regression in worse}
    return {
        op.name: FileLine(*place_of_op(op, workspace.config_path, base))
        for op in workspace.config.ops
        if op.name in wanted
    }


def kernel_places(workspace: Workspace, base: Path) -> dict[str, FileLine]:
    """Map each configured kernel to the location of its source, or else of its artifact."""
    found = {}
    for kernel in workspace.config.kernels:
        source = next((p for p in (kernel.source, kernel.ptx, kernel.cubin) if p), None)
        if source is not None:
            found[kernel.name] = FileLine(relative(source, base))
    return found


def place_of_op(op: OpConfig, config: Path, base: Path) -> tuple[str, int]:
    """Return file and line of an op's source or, if that is unknown, of its table."""
    program = op.op
    if program is not None and program.path is not None:
        line = _definition(program.path, program.function) if program.function else 1
        if line:
            return relative(program.path, base), line
    file = config.parent / op.file if op.file else config
    return relative(file, base), max(op.line, 1)


def _definition(path: Path, function: str) -> int:
    try:
        if path.stat().st_size > MAX_SOURCE_BYTES:
            return 0
        if path.suffix in (".cu", ".cuh"):
            text = path.read_text(encoding="utf-8", errors="replace")
            head = rf'(?:__global__|extern\s+"C")[^;{{}}]*\b{re.escape(function)}\s*\('
            found = re.search(head, text)
            return text.count("\n", 0, found.end()) + 1 if found else 1
        tree = parse_python(path.read_bytes(), str(path))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return 0
    return next(_lines_of(tree, function), 0)


def _lines_of(tree: ast.Module, function: str) -> Iterator[int]:
    for node in ast.walk(tree):
        if (
            isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            and node.name == function
        ):
            yield node.lineno


def relative(path: Path, base: Path) -> str:
    resolved = path if path.is_absolute() else base / path
    try:
        return resolved.relative_to(base).as_posix()
    except ValueError:
        return resolved.as_posix()


# Correct the line numbers in cached findings, which are wrong after comments were edited.


Lines = Mapping[int, tuple[str, int]]
"""File and line of the source, by the line of the PTX."""


class Relocator:
    """Updates the line numbers of findings in compiled kernels to those of the last build."""

    def __init__(self, workspace: Workspace) -> None:
        self._folder = workspace.cache.folder
        self._root = f"{workspace.root}/"
        self._tasks = workspace.graph.tasks

    def __call__(self, compare: TaskSpec, result: CheckResult) -> CheckResult:
        """Return a case's result, with the present line numbers in its findings."""
        if not any(failure.finding is not None for failure in result.failures):
            return result
        path = self._ptx_of(compare)
        if path is None:
            return result
        moved = tuple(self._moved(failure, path) for failure in result.failures)
        return replace(result, failures=moved)

    def _ptx_of(self, compare: TaskSpec) -> Path | None:
        for op in (s.task for s in compare.inputs if s.role == stages.OP):
            for code in (s.task for s in self._tasks[op].inputs if s.role == stages.CODE):
                spec = self._tasks[code]
                arch = params_of(CodeParams, spec.params).arch
                return artifact_path(self._folder, spec.subject, arch, "ptx")
        return None

    def _moved(self, failure: Failure, path: Path) -> Failure:
        if failure.finding is None:
            return failure
        try:
            plain, lines = _read(path, path.stat().st_mtime_ns)
        except OSError:
            return failure

        def now(place: CodePlace) -> CodePlace:
            file, line = lines.get(plain.line(place.code), (place.file, place.line))
            if file.startswith("/"):
                file = os.path.normpath(file)  # nvcc leaves .. in it
            return replace(place, file=file.removeprefix(self._root), line=line)

        return Failure.of_kernel(failure.kind, failure.finding.moved(now))


@lru_cache(maxsize=8)
def _read(path: Path, _changed: int) -> tuple[PlainPtx, Lines]:
    data = path.read_bytes()
    lines: dict[int, tuple[str, int]] = {}
    for function in read_ptx(data, str(path)).functions():
        module, body = function.module, read_body(function)
        for instruction in body.instructions:
            place = body.location_of(instruction)
            if place is not None:
                file = module.files.get(place.file, "")
                lines[module.source.line_of(instruction.offset)] = (file, place.line)
    return plain_ptx(data), lines
