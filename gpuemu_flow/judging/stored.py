"""Judge cases whose outputs are in the blob store, for the stages of ``run``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event

from msgspec import Struct

from gpuemu_flow.judging.subject import CompareParams
from gpuemu_flow.judging.verdicts import (
    comparison_failed,
    with_printed,
    with_violations,
    without_outputs,
)
from gpuemu_flow.observed import Observation
from gpuemu_flow.runners.api import Program, RunError, error_from_json
from gpuemu_flow.runners.attempt import JobFailedError
from gpuemu_flow.runners.pool import Pool
from gpuemu_flow.types import Case, CheckResult, Json, failure_from_json

WORKER = "gpuemu_flow.judging.stored_batch:judge_batch"
EVALUATIONS = 20
OVERHEAD_SECONDS = 300.0


class StoredCase(Struct, frozen=True):
    """One case, and the recorded outcomes of op and reference on it."""

    case: Case
    op: Mapping[str, Json]
    reference: Mapping[str, Json]

    def without_outputs(self) -> CheckResult | None:
        """Return the verdict if a program gave no outputs; see `verdicts.without_outputs`."""
        return without_outputs(_error_of(self.reference), _error_of(self.op))

    def verdict(self, compared: CheckResult) -> CheckResult:
        """Return the result of the comparison, completed by the runner's findings about the op."""
        violations = [failure_from_json(violation) for violation in self.op["violations"]]
        result = with_violations(compared, violations)
        return with_printed(result, str(self.op.get("printed", "")))

    def to_json(self) -> dict[str, Json]:
        """Return the JSON that `stored_batch.judge_batch` reads."""
        return {"case": self.case.to_json(), "op": self.op, "reference": self.reference}


def _error_of(record: Mapping[str, Json]) -> RunError | None:
    return None if record["ok"] else error_from_json(record["error"])


class StoredJudge(Struct, frozen=True):
    """Judges the cases of one op and dtype, in workers that have loaded the reference.

    If a worker has been used before, its results count only if all cases of the batch passed.
    Otherwise a fresh worker judges the batch again.
    """

    pool: Pool
    reference: Program
    compare: CompareParams
    expected_dtypes: Mapping[str, list[str]]
    samples: Sequence[Case]
    locate: Callable[[str], Path]
    cancel: Event
    on_observed: Callable[[Observation], None]

    def judge(self, batch: Sequence[StoredCase]) -> list[CheckResult]:
        """Judge cases; a batch whose worker fails is judged case by case.

        Raises CancelledRunError.
        """
        results = {stored.case.index: stored.without_outputs() for stored in batch}
        there = [stored for stored in batch if results[stored.case.index] is None]
        for stored, compared in zip(there, self._compare(there), strict=True):
            results[stored.case.index] = stored.verdict(compared)
        return [result for result in results.values() if result is not None]

    def _compare(self, batch: Sequence[StoredCase]) -> list[CheckResult]:
        if not batch:
            return []
        # The envelope evaluates the reference some 16 times per case.
        patience = self.reference.patience(max(stored.case.nbytes for stored in batch))
        try:
            answers = self.pool.call(
                self.reference,
                WORKER,
                {
                    "samples": [case.to_json() for case in self.samples],
                    "blobs": {
                        digest: str(self.locate(digest))
                        for stored in batch
                        for digest in (stored.op["blob"], stored.reference["blob"])
                    },
                    "compare": self.compare.to_json(),
                    "expected_dtypes": self.expected_dtypes,
                    "cases": [stored.to_json() for stored in batch],
                },
                seconds=OVERHEAD_SECONDS + len(batch) * EVALUATIONS * patience,
                cancel=self.cancel,
                on_observed=self.on_observed,
            )
            return [CheckResult.from_json(answer) for answer in answers]
        except JobFailedError as failed:
            if len(batch) > 1:
                return [result for stored in batch for result in self._compare([stored])]
            return [comparison_failed(failed.error)]
