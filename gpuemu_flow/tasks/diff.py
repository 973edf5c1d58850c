"""Stage ``diff``: what changed for an op since its last results.

Reads the comparisons of all its dtypes, and its own last manifest. Writes the current summary,
the one before it, and the differences: a verdict that got worse, an error that grew.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpuemu_flow.store.keys import digest_json
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import StageContext, StageResult, TaskSpec, read_manifest
from gpuemu_flow.tasks.params import DiffParams, params_of
from gpuemu_flow.tasks.parts.changes import read_previous, write_changes
from gpuemu_flow.types import Case, Json, Verdict, number_from_json

STAGE = stages.DIFF
_ABSOLUTE_SLACK = 1e-10  # an error that grew from nothing to this is still nothing


def run(spec: TaskSpec, context: StageContext) -> StageResult:
    """Compare an op's summaries with those of the run before."""
    current = {
        source.role.partition(":")[2]: read_summary(context.cache.folder / source.path)
        for source in spec.inputs
    }
    target = context.cache.folder / spec.target
    previous = read_previous(target, STAGE)
    threshold = params_of(DiffParams, spec.params).regression_threshold
    changes = [
        change
        for dtype, summary in current.items()
        for change in compare_summaries(dtype, previous.get(dtype), summary, threshold)
    ]
    regressions = sum(change["kind"] == "regression" for change in changes)
    digest = write_changes(target, STAGE, current, previous, changes)
    return StageResult(digest, values={"regressions": regressions})


def read_summary(path: Path) -> dict[str, Json]:
    """Read a comparison's summary, and the cases that it covers."""
    manifest = read_manifest(path, stages.COMPARE)
    cases = [Case.from_json(item["case"]).identity() for item in manifest["cases"]]
    return {**manifest["summary"], "cases_digest": digest_json(cases)}


def compare_summaries(
    dtype: str, old: Mapping[str, Json] | None, new: Mapping[str, Json], threshold: float
) -> list[dict[str, Json]]:
    """Return the differences between two summaries of one dtype.

    A verdict that is no longer ``passed`` is a regression. On the same cases, an error that exceeds
    the old one by more than `threshold` (a fraction) has grown; the reverse is an improvement.
    """
    if old is None:
        return [{"kind": "new", "dtype": dtype, "what": "op", "old": None, "new": new["verdict"]}]
    passed = Verdict.PASSED.value
    if old["verdict"] != new["verdict"]:
        kind = "improvement" if new["verdict"] == passed else "change"
        if old["verdict"] == passed:
            kind = "regression"
        return [
            {
                "kind": kind,
                "dtype": dtype,
                "what": "verdict",
                "old": old["verdict"],
                "new": new["verdict"],
            }
        ]
    if new["verdict"] != passed or old.get("cases_digest") != new["cases_digest"]:
        return []
    before, after = number_from_json(old["max_abs"]), number_from_json(new["max_abs"])
    grown = not after <= before * (1 + threshold) + _ABSOLUTE_SLACK
    shrunk = after < before / (1 + threshold) - _ABSOLUTE_SLACK
    if not grown and not shrunk:
        return []
    return [
        {
            "kind": "growth" if grown else "improvement",
            "dtype": dtype,
            "what": "max_abs",
            "old": old["max_abs"],
            "new": new["max_abs"],
        }
    ]
