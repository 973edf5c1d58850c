"""Parameters of every stage survive being written down, and nothing else is taken for them."""

from __future__ import annotations

import json

import pytest

from gpuemu_flow.judge.subject import CompareParams
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.params import (
    BuildParams,
    GenerateParams,
    StageParams,
    params_from_json,
    params_of,
)

BUILD = BuildParams(kind="cuda", arch="sm_80", tools=[["nvcc", "12"]], unusable=[], flags=["-O3"])
COMPARE = CompareParams("auto", {"float32": {"atol": 1.0, "rtol": 0.0}}, invariants=("finite",))


@pytest.mark.parametrize(("stage", "given"), [("build", BUILD), ("compare", COMPARE)])
def test_what_is_written_is_read_again(stage: str, given: StageParams) -> None:
    written = json.loads(json.dumps(given.to_json()))
    assert params_from_json(stage, written) == given
    assert params_from_json(stage, written).to_json() == written


@pytest.mark.parametrize("stage", stages.VERSIONS)
@pytest.mark.parametrize("junk", [{"junk": 1}, {}, [], None, 3, "text", {1: 2}])
def test_junk_is_refused(stage: str, junk: object) -> None:
    with pytest.raises((TypeError, KeyError)):
        params_from_json(stage, junk)  # type: ignore[arg-type]


def test_parameters_of_another_stage_are_refused() -> None:
    assert params_of(BuildParams, BUILD) is BUILD
    with pytest.raises(TypeError, match="BuildParams in place of GenerateParams"):
        params_of(GenerateParams, BUILD)


def test_an_unknown_stage_is_refused() -> None:
    with pytest.raises(KeyError):
        params_from_json("bake", BUILD.to_json())
