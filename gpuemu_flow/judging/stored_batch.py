"""Judge stored cases, inside a worker; see `stored`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpuemu_flow.judging.compare_functions import CompareFunctions
from gpuemu_flow.judging.judge import Judge
from gpuemu_flow.judging.judge_service import judge_case
from gpuemu_flow.judging.subject import CompareParams
from gpuemu_flow.runners import blobs
from gpuemu_flow.runners.jobs import Evaluator
from gpuemu_flow.types import Case, Json


def judge_batch(payload: Mapping[str, Json], evaluator: Evaluator) -> list[dict[str, Json]]:
    """Judge a batch of cases whose outputs are in the blob store."""
    samples = [Case.from_json(case) for case in payload["samples"]]
    settings = CompareParams.from_json(payload["compare"])
    functions = CompareFunctions(evaluator.program)
    judge = Judge(settings, payload["expected_dtypes"], samples, evaluator, functions=functions)
    places = payload["blobs"]
    results = []
    for item in payload["cases"]:
        case = Case.from_json(item["case"])
        actual, expected = (
            blobs.read(Path(places[item[role]["blob"]])) for role in ("op", "reference")
        )
        results.append(judge_case(judge, case, actual, expected).to_json())
    return results
