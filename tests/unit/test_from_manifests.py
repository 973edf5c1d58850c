"""Results that are read from manifests: one that cannot be read is an error with its reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuemu_flow.judging.params import CompareParams
from gpuemu_flow.results.from_manifests import ReportBuilder
from gpuemu_flow.store.workspace_cache import WorkspaceCache
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import StageParams, TaskSpec
from gpuemu_flow.tasks.params import LintParams
from gpuemu_flow.types import Verdict

LINT = LintParams(entry="", arch="sm_80", policy={}, threads=0, versions=[1, 1])


def task(stage: str, params: StageParams) -> TaskSpec:
    return TaskSpec(
        name=f"{stage}:it", stage=stage, version="", subject="it", dtype="float32", sources=(),
        inputs=(), params=params, settings={}, target=f"tasks/{stage}/it.json",
    )  # fmt: skip


@pytest.mark.parametrize("status", ["ran", "restored", "current", "failed", "pending", ""])
def test_a_manifest_that_cannot_be_read(tmp_path: Path, status: str) -> None:
    cache = WorkspaceCache(tmp_path / ".gpuemu-cache")
    cache.create()
    compare = task(stages.COMPARE, CompareParams(tolerance="auto", tolerances={}))
    lint = task(stages.LINT, LINT)
    for spec in (compare, lint):
        path = cache.folder / spec.target
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{")
    tasks = {compare.name: compare, lint.name: lint}
    builder = ReportBuilder(cache, tasks, dict.fromkeys(tasks, status))
    result, kernel = builder.op_result(compare), builder.kernel_result(lint)
    if status in ("ran", "restored", "current"):
        assert result is not None
        assert result.verdict is Verdict.ERROR
        assert "cache-manifest" in result.reason
        assert kernel is not None
        assert kernel[0].verdict is Verdict.ERROR
        assert "cache-manifest" in kernel[0].reason
    else:
        assert result is None
        assert kernel is None
