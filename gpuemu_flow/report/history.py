"""What a run leaves: one row of what was checked, and what a clean run rests on.

After a run in which everything passed, the next plain ``run`` is answered from the latter.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field

from gpuemu_flow.build import stamps
from gpuemu_flow.build.files import NUMERIC_PACKAGES, Stamp, glob_folders, stamp_of
from gpuemu_flow.build.stamps import ABSENT, FILE, FOLDER, LINK, LOOK, VARIABLE, Row, row_of
from gpuemu_flow.judge.results import STANDING, OpResult, RunReport
from gpuemu_flow.model.decoding import plain
from gpuemu_flow.model.types import Json, Verdict
from gpuemu_flow.report import text
from gpuemu_flow.store.cache import WorkspaceCache
from gpuemu_flow.tasks import stages
from gpuemu_flow.workers.sandbox.spec import lacks

if TYPE_CHECKING:
    from gpuemu_flow.build.session import RunOutcome
    from gpuemu_flow.build.workspace import Workspace

ROW = "run:"
MAX_RUNS = 100
VERSION = 1


def append(cache: WorkspaceCache, report: RunReport, when: float | None = None) -> None:
    """Add a row with a run's results, except those of skipped ops; drop what is too old. Nothing is
    added if there are no results, or if the run was interrupted. Raises StoreError: The row cannot
    be written."""
    results = _shorts(report)
    if not results or report.interrupted:
        return
    moment = round(when or time.time(), 3)
    row: dict[str, Json] = {"version": VERSION, "time": moment}
    if report.drawn_seed is not None:
        row["drawn_seed"] = report.drawn_seed
    row["results"] = results
    cache.state.put(f"{ROW}{moment:017.3f}", row)
    cache.state.delete_many(sorted(cache.state.keys_from(ROW))[:-MAX_RUNS])


def ends_with(cache: WorkspaceCache, report: RunReport) -> bool:
    last = () if report.executed else rows(cache)[-1:]
    return any(isinstance(row, dict) and row.get("results") == _shorts(report) for row in last)


def rows(cache: WorkspaceCache) -> list[Json]:
    return [cache.state.get(key) for key in sorted(cache.state.keys_from(ROW))]


def _shorts(report: RunReport) -> list[list[Json]]:
    return [_short(r) for r in report.results if r.verdict is not Verdict.SKIPPED]


def _short(result: OpResult) -> list[Json]:
    return [
        result.op,
        result.dtype,
        result.verdict.value,
        plain(result.max_abs),
        plain(result.tolerance_used),
    ]


def checked_since(cache: WorkspaceCache, begin: float) -> set[tuple[str, str]]:
    """Return the ops and dtypes that runs since `begin` checked, or found to be up to date."""
    found: set[tuple[str, str]] = set()
    for row in rows(cache):
        with suppress(ValueError, KeyError, TypeError):
            if row["version"] == VERSION and float(row["time"]) >= begin:
                found.update((str(op), str(dtype)) for op, dtype, *_ in row["results"])
    return found


# Store what a clean run rests on.


def save_if_clean(workspace: Workspace, outcome: RunOutcome, report: RunReport) -> None:
    """Let the next plain ``run`` answer at once until something changes. Nothing is stored
    unless every task is current and every result passed, nor if an input changed during the run.
    Neither if the sandbox is incomplete, since a system with a complete sandbox must not reuse
    the results."""
    standing = [p for p in report.problems if p.slug in STANDING]
    sound = report.exit_code == 0 and len(standing) == len(report.problems)
    whole = outcome.everything and outcome.all_current(workspace) and workspace.has_plain_cases
    if not (sound and whole) or lacks(workspace.snapshot.basis.sandbox):
        return
    rows = _rests_on(workspace)
    entries = workspace.snapshot.files.entries.values()
    _settle(workspace, (*(row[2:6] for row in rows), *(stamp for stamp, _ in entries)))
    lines = [text.up_to_date_line(report), *(text.printable(str(p)) for p in standing)]
    # After taking the stamps: a change before that would otherwise count as already judged.
    if workspace.is_as_judged:
        workspace.save_clean(rows, "\n".join(lines))


def _rests_on(workspace: Workspace) -> list[Row]:
    """Return what the results rest on besides the files in the snapshot's table."""
    root, join = str(workspace.root), os.path.join
    basis, graph = workspace.snapshot.basis, workspace.graph
    needed = workspace.snapshot.observed.needed(workspace.inputs)
    kernels = _InputsOfKernels.of(workspace)
    unseen = {
        package
        for spec in graph.tasks.values()
        if spec.wavers and spec.stage not in stages.OBSERVED
        for package in spec.packages
    }
    records = filter(None, map(_record_file, sorted(unseen)))
    files: dict[str, Stamp | None] = {
        path: stamp_of(path) for path in (*_package_files(), *records)
    }
    files.update((name, stamp_of(name) if digest else None) for name, digest in basis.config)
    files.update({**kernels.tools, **workspace.watched})
    listed = {
        *kernels.folders,
        *(f for p, _ in basis.globs for f in glob_folders(workspace.root, p)),
    }
    folders: dict[str, Stamp | None] = {str(folder): stamp_of(folder) for folder in listed}
    folders.update(needed.folders)
    absent = {*needed.absent, *kernels.absent, *(join(root, path) for path in basis.absent)}
    absent.update(path for path, stamp in (*files.items(), *folders.items()) if stamp is None)
    links = {**needed.links, **dict(basis.links)}
    looks = {**dict(basis.looks), **needed.looks}
    variables = {**needed.variables, **kernels.variables}
    return [
        *(row_of(FILE, path, stamp) for path, stamp in files.items() if stamp is not None),
        *(row_of(FOLDER, path, stamp) for path, stamp in folders.items() if stamp is not None),
        *(row_of(ABSENT, path) for path in absent),
        *(row_of(LINK, path, state=target) for path, target in links.items()),
        *(row_of(LOOK, path, state=seen) for path, seen in looks.items()),
        *(row_of(VARIABLE, name, state=digest) for name, digest in variables.items()),
    ]


class _InputsOfKernels(Struct, frozen=True):
    """Inputs of the compilation of kernels, besides the files of their tasks."""

    tools: Mapping[str, Stamp | None] = field(default_factory=dict)
    absent: Sequence[str] = ()
    folders: Sequence[Path] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, workspace: Workspace) -> _InputsOfKernels:
        """Collect the inputs from the workspace's snapshot, which recorded them."""
        kernels = workspace.snapshot.basis.kernels
        if kernels is None:
            return cls()
        includes = [found for _, _, found in kernels.includes]
        return cls(
            {path: None if stamp is None else tuple(stamp) for path, stamp in kernels.tool_files},
            [str(workspace.root / path) for found in includes for path in found["absent"]],
            [workspace.root / path for found in includes for path in found["folders"]],
            {"PATH": stamps.variable_digest(os.environ, "PATH")},
        )


def _settle(workspace: Workspace, seen: Iterable[Sequence[int]]) -> None:
    """Wait until the file system's clock has passed the newest stamp (mtime and ctime come first).
    A file changed twice within one tick of that clock (4 ms is common) would look unchanged."""
    newest = max((s for stamp in seen for s in stamp[:2]), default=0)
    probe = workspace.cache.staging / f"clock-{os.getpid()}"
    try:
        for _ in range(100):
            workspace.cache.files.touch(probe)
            if probe.stat().st_mtime_ns > newest:
                break
            time.sleep(0.001)
    finally:
        workspace.cache.files.remove(probe)


def _package_files() -> list[str]:
    found = []
    for name in NUMERIC_PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin:
            found.append(spec.origin)
    return found


def _record_file(package: str) -> str:
    import importlib.metadata  # noqa: PLC0415

    try:
        files = importlib.metadata.distribution(package).files or ()
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return ""
    return next((str(file.locate()) for file in files if file.name == "RECORD"), "")
