"""Measure how runs and fuzzing cover a workspace's ops, and find the gaps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from gpuemu_flow.cases.coverage import Coverage, Gap, Row
from gpuemu_flow.engine.workspace import Workspace
from gpuemu_flow.errors import StoreError
from gpuemu_flow.fuzz.subjects import dtypes_of, op_subject, select_ops
from gpuemu_flow.results.fuzz_model import CoverageReport
from gpuemu_flow.tasks.base import read_manifest
from gpuemu_flow.types import Case, Verdict

COVERAGE_KEY = "coverage:fuzz"


def fuzz_coverage(workspace: Workspace) -> Coverage:
    """Return the coverage of all fuzz runs so far."""
    record = workspace.cache.state.get(COVERAGE_KEY)
    try:
        return Coverage.from_json(record) if record is not None else Coverage()
    except (TypeError, ValueError):
        return Coverage()


def add_fuzz_coverage(workspace: Workspace, fresh: Coverage) -> None:
    """Add the coverage of one more fuzz run to the stored coverage."""
    merged = fuzz_coverage(workspace).merge(fresh)
    workspace.cache.state.put(COVERAGE_KEY, merged.to_json())


def measure_coverage(workspace: Workspace, ops: Iterable[str] = ()) -> CoverageReport:
    """Measure which combinations of op, dtype, shape class, layout and strategy were judged.

    Raises UsageError: ``unknown-op``.
    """
    coverage = fuzz_coverage(workspace)
    chosen = select_ops(workspace, ops)
    for spec in workspace.graph.tasks.values():
        if spec.stage == "compare" and spec.subject in chosen:
            with contextlib.suppress(StoreError, KeyError):
                manifest = read_manifest(workspace.cache.folder / spec.target, "compare")
                for item in manifest["cases"]:
                    verdict = Verdict(item["result"]["verdict"])
                    coverage.add(spec.subject, Case.from_json(item["case"]), verdict)
    rows: list[Row] = []
    gaps: list[Gap] = []
    for op in chosen:
        for dtype in dtypes_of(workspace, op):
            subject = op_subject(workspace, op, dtype, to_run=False)
            layouts, strategies = subject.layouts, subject.strategies
            rows.append(coverage.row(op, dtype, subject.schema, layouts, strategies))
            gaps += [
                gap
                for gap in coverage.gaps(op, subject.schema, [dtype], layouts, strategies)
                if " × " not in gap.aspect
            ]
    return CoverageReport(coverage, tuple(rows), tuple(gaps))
