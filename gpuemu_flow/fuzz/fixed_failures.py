"""Recorded failures that are fixed: their cases passed when they were last judged."""

from __future__ import annotations

from collections.abc import Iterable

from gpuemu_flow.engine.workspace import Workspace
from gpuemu_flow.errors import StoreError
from gpuemu_flow.fuzz.code_state import code_changed
from gpuemu_flow.store.failures import GENERATED, FailureRecord
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import read_manifest
from gpuemu_flow.types import Case, Verdict

_CaseKey = tuple[int, str]


def fixed_ids(workspace: Workspace, records: Iterable[FailureRecord]) -> set[str]:
    """Return the ids of the failures whose cases passed when they last ran.

    A failure counts as fixed if its case passed in `reproduce` or in the last run, after code or
    configuration had changed. If the case passed without a change, the failure is intermittent. If
    a later edit breaks a fixed case again, only the next run finds that.
    """
    passed: dict[tuple[str, str], set[_CaseKey]] = {}
    found = set()
    for record in records:
        if record.mended:
            found.add(record.id)
        elif record.source in GENERATED:
            where = (record.op, record.dtype)
            if where not in passed:
                passed[where] = _passed(workspace, *where)
            key = _key(Case.from_json(record.case))
            if key in passed[where] and code_changed(workspace, record):
                found.add(record.id)
    return found


def _passed(workspace: Workspace, op: str, dtype: str) -> set[_CaseKey]:
    """Return the cases of an op and dtype that passed in the last run."""
    spec = workspace.graph.tasks.get(f"{stages.COMPARE}:{op}:{dtype}")
    if spec is None or spec.name not in workspace.snapshot.current:
        return set()
    try:
        manifest = read_manifest(workspace.cache.folder / spec.target, stages.COMPARE)
    except StoreError:
        return set()
    return {
        _key(Case.from_json(item["case"]))
        for item in manifest["cases"]
        if item["result"]["verdict"] == Verdict.PASSED.value
    }


def _key(case: Case) -> _CaseKey:
    return case.seed, case.to_text()
