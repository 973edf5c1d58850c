"""Cases that a message to a worker names by their seeds alone come out as they went in."""

from __future__ import annotations

import json
from dataclasses import replace

from runner_workspace import make_case

from gpuemu_flow.judging.given_cases import cases_from_json, cases_to_json


def test_cases_come_back_whatever_they_differ_by() -> None:
    first = make_case(0)
    spec = first.inputs[0]
    cases = [
        first,
        replace(first, seed=first.seed + 1),
        replace(first, seed=5, strategy="zeros"),
        replace(first, seed=5, index=3),
        replace(first, seed=5, inputs=(replace(spec, shape=(9, *spec.shape)), *first.inputs[1:])),
        replace(first, seed=(1 << 64) - 1),
    ]
    sent = json.loads(json.dumps(cases_to_json(cases)))
    assert list(cases_from_json(sent)) == cases
    assert [type(each) for each in sent] == [dict, int, dict, dict, dict, int]


def test_one_case_is_sent_whole() -> None:
    case = make_case(2)
    assert cases_to_json([case]) == [case.to_json()]
