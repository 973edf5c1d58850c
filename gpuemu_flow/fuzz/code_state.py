"""Tell whether code and configuration have changed since a failure was seen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.fuzz.subjects import dtypes_of, op_names, tasks_of
from gpuemu_flow.judge.subject import Subject
from gpuemu_flow.model.errors import StoreError
from gpuemu_flow.model.observed import Observation
from gpuemu_flow.model.types import Case, Verdict
from gpuemu_flow.store.failures import GENERATED, FailureRecord, FailureStore
from gpuemu_flow.store.keys import digest_json
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import read_manifest

CODE = "code"
"""Key under which a record's provenance holds the digest of code and configuration."""


def code_key(workspace: Workspace, op: str, dtype: str) -> str:
    """Return a digest of the present code and configuration of an op and its reference.

    The digest is empty for an op that the workspace does not run in that dtype.
    """
    if op not in op_names(workspace) or dtype not in dtypes_of(workspace, op):
        return ""
    tasks = tasks_of(workspace.graph, op, dtype)
    states = workspace.states()
    found = []
    for spec in (tasks.op, tasks.reference, tasks.compare):
        parts = states.static_parts(spec)
        built = {role: digest for role, digest in parts.input.items() if stages.is_made(role)}
        found.append([parts.stage, dict(parts.code), parts.params, dict(parts.env), built])
    return digest_json(found)


def has_changed(
    workspace: Workspace,
    record: FailureRecord,
    subject: Subject,
    observed: Mapping[str, Observation],
) -> bool:
    """Tell whether code or configuration has, or may have, changed since a failure was recorded.

    A failure that no longer occurs counts as fixed only if there was such a change.
    """
    if code_changed(workspace, record):
        return True
    since = _nanoseconds(record.time)
    lookup = workspace.inputs
    return any(
        lookup.moved(lookup.discover(seen, subject.program(who).given), since)
        for who, seen in observed.items()
    )


def code_changed(workspace: Workspace, record: FailureRecord) -> bool:
    """Tell whether code or configuration differs from that with which a failure was recorded.

    Only the code that is known without running the op is compared. For a record without a digest,
    the result is True: it was written by an earlier version of this package, and the package is
    part of the code.
    """
    provenance = record.provenance if isinstance(record.provenance, Mapping) else {}
    known = provenance.get(CODE)
    return known is None or known != code_key(workspace, record.op, record.dtype)


def _nanoseconds(text: str) -> int:
    """Convert a record's time to nanoseconds since the epoch; 0 if it is malformed."""
    try:
        parsed = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return 0
    return int(parsed.timestamp() * 1e9)


_CaseKey = tuple[int, str]


def fixed_ids(workspace: Workspace, records: Iterable[FailureRecord]) -> set[str]:
    """Return the ids of the failures whose cases passed when they last ran.

    A failure counts as fixed if its case passed in `reproduce` or in the last run, after code or
    configuration had changed. If the case passed without a change, the failure is intermittent. If
    a later edit breaks a fixed case again, only the next run finds that.
    """
    passed: dict[tuple[str, str], set[_CaseKey]] = {}
    found = set()
    store, records = FailureStore(workspace.cache), list(records)
    known = {record.id for record in records}
    wanted = {one.minimized_from for one in records if one.minimized_from} - known
    originals = [one for one in store if one.id in wanted] if wanted else []
    for record in (*records, *originals):
        if record.mended:
            found.add(record.id)
        elif record.source in GENERATED:
            where = (record.op, record.dtype)
            if where not in passed:
                passed[where] = _passed(workspace, *where)
            key = _key(Case.from_json(record.case))
            if key in passed[where] and code_changed(workspace, record):
                found.add(record.id)
    return found | {record.id for record in records if record.minimized_from in found}


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
