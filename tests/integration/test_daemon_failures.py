"""Requests about recorded failures that one seed does not tell apart."""

from __future__ import annotations

import numpy as np
import pytest
from daemon_workspace import Served

from gpuemu_flow.client import Client, ClientError


@pytest.fixture
def client(daemon: Served) -> Client:
    return daemon.client(timeout_ms=600_000)


@pytest.mark.parametrize(
    "differs", ["dtype", *(pytest.param(each, marks=pytest.mark.ci) for each in ("op", "case"))]
)
def test_one_of_several_failures_of_a_seed_is_named_by_its_id(client: Client, differs: str) -> None:
    failed = []
    for number in range(2):
        op = ("softmax", "double")[number if differs == "op" else 0]
        dtype = ("float32", "float16")[number if differs == "dtype" else 0]
        seed = {"dtype": 71, "op": 72, "case": 73}[differs]
        schema = {
            "name": op,
            "dims": [{"name": "N", "candidates": [5 + number]}],
            "inputs": [{"name": "x", "dims": ["N"]}],
            "output": {"name": "y", "dims": ["N"]},
        }
        own = schema if differs == "case" else None
        (case,) = client.get_test_batch(op, 1, seed=seed, dtypes=[dtype], op_schema=own)
        output = case.inputs["x"] + 1
        failed.append((case, client.submit_output(op, case.inputs, output, case.seed)))
    (case, first), (other, second) = failed
    assert first.failure_id != second.failure_id
    assert case.seed == other.seed
    for call in (client.reproduce, client.minimize):
        with pytest.raises(ClientError, match=f"2 failures have the seed {case.seed}") as raised:
            call(case.seed)
        assert raised.value.code == "InvalidRequest"
        for one in (first, second):
            assert f"{one.failure_id} ({one.op_name} {one.repro_info.dtype})" in str(raised.value)
    for given, result in failed:
        found = client.reproduce(result.failure_id)
        assert found.result.failure_id == result.failure_id
        np.testing.assert_array_equal(found.inputs["x"], given.inputs["x"])
    with pytest.raises(ClientError, match="'00000000'") as raised:
        client.reproduce("00000000")
    assert raised.value.code == "NotFound"
