"""Stage ``diff``: what changed for an op since its last results.

Reads the comparisons of all its dtypes, and its own last manifest. Writes the current summary,
the one before it, and the differences: a verdict that got worse, an error that grew.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuemu_flow.errors import StoreError
from gpuemu_flow.tasks.base import (
    StageContext,
    StageResult,
    TaskSpec,
    read_manifest,
    write_manifest,
)
from gpuemu_flow.types import Json, Verdict, number_from_json

STAGE = "diff"
VERSION = 1
_ABSOLUTE_SLACK = 1e-10  # an error that grew from nothing to this is still nothing


def run(spec: TaskSpec, context: StageContext) -> StageResult:
    """Compare an op's summaries with those of the run before."""
    current = {
        source.role.partition(":")[2]: read_manifest(context.cache.folder / source.path, "compare")[
            "summary"
        ]
        for source in spec.inputs
    }
    target = context.cache.folder / spec.target
    try:
        previous = read_manifest(target, STAGE)["current"]
    except (StoreError, KeyError):
        previous = {}
    changes = [
        change
        for dtype, summary in current.items()
        for change in _changes(
            dtype, previous.get(dtype), summary, spec.params["regression_threshold"]
        )
    ]
    content = {
        "stage": STAGE,
        "version": VERSION,
        "current": current,
        "previous": previous,
        "changes": changes,
    }
    regressions = sum(change["kind"] == "regression" for change in changes)
    return StageResult(write_manifest(target, content), values={"regressions": regressions})


def _changes(
    dtype: str, old: Mapping[str, Json] | None, new: Mapping[str, Json], threshold: float
) -> list[dict[str, Json]]:
    """Differences between two summaries of one dtype.

    An error figure regresses when it exceeds the old one by more than `threshold` (a fraction);
    it improves when the reverse holds.
    """
    if old is None:
        return [{"kind": "new", "dtype": dtype, "what": "op", "old": None, "new": new["verdict"]}]
    found = []
    if old["verdict"] != new["verdict"]:
        better = new["verdict"] == Verdict.PASSED.value
        found.append(
            {
                "kind": "improvement" if better else "regression",
                "dtype": dtype,
                "what": "verdict",
                "old": old["verdict"],
                "new": new["verdict"],
            }
        )
    before, after = number_from_json(old["max_abs"]), number_from_json(new["max_abs"])
    grown = not after <= before * (1 + threshold) + _ABSOLUTE_SLACK
    shrunk = after < before / (1 + threshold) - _ABSOLUTE_SLACK
    if old["cases"] == new["cases"] and (grown or shrunk):
        found.append(
            {
                "kind": "regression" if grown else "improvement",
                "dtype": dtype,
                "what": "max_abs",
                "old": old["max_abs"],
                "new": new["max_abs"],
            }
        )
    return found
