"""Map each request type of protocol v1 to its handler and its thread pool."""

from __future__ import annotations

from collections.abc import Callable

from gpuemu_flow.daemon import artifacts, ci, failing, fuzzing, issuing, records, validating
from gpuemu_flow.daemon.fields import Fields, invalid
from gpuemu_flow.daemon.jobs import Job
from gpuemu_flow.daemon.service import Service
from gpuemu_flow.errors import did_you_mean
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import Json

QUICK, TENSORS, REFERENCE, LONG = "quick", "tensors", "reference", "long"


def pool_sizes(references: int) -> dict[str, int]:
    """Return the number of threads of each pool.

    `references` is the number of references that may run at once.
    """
    return {QUICK: 2, TENSORS: 2, REFERENCE: max(4, 2 * references), LONG: 4}


Handler = Callable[[Service, Fields, Job], dict[str, Json]]


@dataclass(frozen=True)
class RequestKind:
    """A type of request."""

    pool: str
    handler: Handler


def _shutdown(service: Service, _fields: Fields, _job: Job) -> dict[str, Json]:
    service.stop.set()
    return {"type": "Ok"}


REQUESTS: dict[str, RequestKind] = {  # a ping is answered by the server itself
    "Shutdown": RequestKind(QUICK, _shutdown),
    "ValidateOp": RequestKind(REFERENCE, validating.validate_op),
    "GetResult": RequestKind(QUICK, records.get_result),
    "ListResults": RequestKind(QUICK, records.list_results),
    "StoreBaseline": RequestKind(QUICK, records.store_baseline),
    "CompareBaseline": RequestKind(QUICK, records.compare_baseline),
    "FuzzOp": RequestKind(LONG, fuzzing.fuzz_op),
    "Reproduce": RequestKind(TENSORS, failing.reproduce_failure),
    "Minimize": RequestKind(LONG, failing.minimize),
    "ListFailures": RequestKind(QUICK, failing.list_failures),
    "LintKernel": RequestKind(QUICK, artifacts.lint_kernel),
    "StoreArtifact": RequestKind(QUICK, artifacts.store_artifact),
    "StoreArtifactBaseline": RequestKind(QUICK, artifacts.store_baseline),
    "DiffArtifactBaseline": RequestKind(QUICK, artifacts.diff_baseline),
    "GetArtifact": RequestKind(QUICK, artifacts.get_artifact),
    "ListArtifacts": RequestKind(QUICK, artifacts.list_artifacts),
    "RunCi": RequestKind(LONG, ci.run_ci),
    "GetCiSummary": RequestKind(QUICK, ci.get_ci_summary),
    "GetTestCase": RequestKind(TENSORS, issuing.get_test_case),
    "GetTestBatch": RequestKind(TENSORS, issuing.get_test_batch),
    "SubmitOutput": RequestKind(REFERENCE, validating.validate_op),
    "SubmitOutputs": RequestKind(REFERENCE, validating.submit_outputs),
}


def pool_of(kind: str) -> str:
    """Return the pool of a request type. Unknown types go to ``quick``, which refuses them."""
    known = REQUESTS.get(kind)
    return QUICK if known is None else known.pool


def handle(service: Service, message: dict[str, Json], job: Job) -> dict[str, Json]:
    """Answer one request."""
    fields = Fields(message, service.exchange)
    known = REQUESTS.get(fields.type)
    if known is None:
        hint = did_you_mean(fields.type, tuple(REQUESTS))
        raise invalid(f"there is no request {fields.type!r}; {hint}")
    return known.handler(service, fields, job)
