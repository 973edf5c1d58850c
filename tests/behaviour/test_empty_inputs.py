"""Sizes of 0 are tried where a schema allows them; what the reference refuses is no case."""

from __future__ import annotations

import pytest
from many_ops import Op, Ran, run_once

REFUSES = "if not x.size:\n    raise ValueError('nothing')\n"
OPEN = 'dims = { N = { max = 64 }, D = [4] }\ninputs = { x = ["N", "D"] }\noutput = ["N"]'
ALLOWED = OPEN.replace("{ max", "{ min = 0, max")
LISTED = OPEN.replace("{ max = 64 }", "[0, 5, 9]")
BOUNDED = OPEN.replace("{ max", "{ min = 1, max")


def summing(schema: str, op: str = "", reference: str = "", verdict: str = "passed") -> Op:
    """A sum over rows; op and reference may refuse empty inputs."""
    bodies = (f"{refusing}return x.sum(1)" for refusing in (op, reference))
    return Op("x", *bodies, schema, "cases = 24", verdict=verdict)


OPS = {
    "refused_without_min": summing(OPEN, REFUSES, verdict="error"),
    "refused_from_0": summing(ALLOWED, REFUSES, verdict="error"),
    "refused_of_a_list": summing(LISTED, REFUSES, verdict="error"),
    "no_case_of_it": summing(BOUNDED, REFUSES),
    "right": summing(OPEN),
    "reference_refuses": summing(OPEN, REFUSES, REFUSES),
    "reference_alone_refuses": summing(LISTED, reference=REFUSES),
    "reference_refuses_all": summing(OPEN, reference="raise ValueError('no')\n", verdict="error"),
    "largest": Op(
        "x", "return x.max(keepdims=True)", "return x.max(keepdims=True)",
        OPEN.replace('output = ["N"]', "output = [1, 1]"), "cases = 24",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_once(tmp_path_factory, "empty-inputs", OPS, "cases = 24")


@pytest.mark.ci
@pytest.mark.parametrize("name", OPS)
def test_empty_inputs_are_cases_of_ops_that_take_them(name: str, ran: Ran) -> None:
    verdicts = {result["verdict"] for result in ran.results[name]}
    said = [note for failure in ran.failures.get(name, []) for note in failure["notes"]]
    assert verdicts == {OPS[name].verdict}, (ran.results[name], said)
    if name in ("reference_refuses", "reference_alone_refuses", "largest"):
        assert any("refuses empty inputs" in note for note in said), said
