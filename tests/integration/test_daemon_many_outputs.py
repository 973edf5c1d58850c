"""Test that outputs submitted in one request are judged and stored as those submitted alone."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from daemon_workspace import Served, normal, softmax
from numpy.typing import NDArray

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.client import ClientError, TestCase, ValidationResult
from gpuemu_flow.fuzzing import TestCase as FuzzCase
from gpuemu_flow.services.daemon.submissions import AT_ONCE
from gpuemu_flow.store.results import PRUNE_SLACK, ResultStore

Tensor = NDArray[Any]
DIFFERENT_BY_NATURE = {"timestamp", "duration_ms", "failure_id"}


def facts(result: ValidationResult) -> dict[str, object]:
    return {name: result[name] for name in result if name not in DIFFERENT_BY_NATURE}


def cases_of(served: Served, count: int, seed: int) -> list[TestCase]:
    with served.client() as client:
        return client.get_test_batch(
            "softmax", count, seed=seed, dtypes=["float32", "float16", "bfloat16"]
        )


def test_verdicts_and_figures_are_those_of_single_submissions(daemon: Served) -> None:
    cases = cases_of(daemon, 10, seed=3)
    outputs = [softmax(case.inputs["x"]) for case in cases]
    outputs[5] = cases[5].inputs["x"]  # wrong
    outputs[7] = outputs[7][..., :-1]  # of a wrong shape
    outputs[9] = outputs[9].astype("float64")
    with daemon.client() as client:
        together = client.submit_outputs("softmax", cases, outputs)
        alone = [
            client.submit_output("softmax", case.inputs, output, case.seed)
            for case, output in zip(cases, outputs, strict=True)
        ]
    assert [facts(result) for result in together] == [facts(result) for result in alone]
    verdicts = {result["verdict"] for result in together}
    assert {"passed", "failed", "error"} <= verdicts
    for one, other in zip(together, alone, strict=True):
        recorded = one["verdict"] in ("failed", "error")
        assert bool(one.failure_id) == bool(other.failure_id) == recorded


def test_results_are_on_disk_when_they_are_acknowledged(unserved: Served) -> None:
    unserved.start()
    with unserved.client() as client:
        cases = client.get_test_batch("softmax", 12, seed=5, dtypes=["float32"])
        outputs = [softmax(case.inputs["x"]) for case in cases]
        client.submit_outputs("softmax", [case.seed for case in cases], outputs)
        unserved.kill()
    unserved.start()
    with unserved.client() as client:
        kept = client.list_results(100)
    assert [result["seed"] for result in kept] == [case.seed for case in reversed(cases)]
    assert all(result.passed for result in kept)


def test_cases_that_an_earlier_daemon_handed_out_are_known_among_others(unserved: Served) -> None:
    unserved.start()
    with unserved.client() as client:
        cases = client.get_test_batch("softmax", 4, seed=6, dtypes=["bfloat16"])
        unserved.kill()
    unserved.start()
    inputs = cases[0].inputs
    given = [*cases, TestCase(seed=77, inputs={"x": inputs["x"].astype("float32")})]
    with unserved.client() as client:
        results = client.submit_outputs(
            "softmax", given, [softmax(case.inputs["x"]) for case in given]
        )
    assert all(result.passed for result in results)
    assert [bool(result["repro_info"]) for result in results] == [True] * 4 + [False]


def test_nothing_is_stored_where_one_case_cannot_be_read(daemon: Served) -> None:
    x = normal(2, 4)
    data = base64.b64encode(x.tobytes()).decode()
    tensor = {"shape": [2, 4], "strides": [4, 1], "dtype": "float32", "data": data}
    good = {"seed": 1, "inputs": {"x": tensor}, "output": tensor}
    with daemon.client() as client:
        before = len(client.list_results(1000))
        for cases, text in (
            ([good, 3], "cases[1] must be an object"),
            ([good, {**good, "seed": -1}], "cases[1]: seed must lie"),
            ([good, {**good, "inputs": {"y": tensor}}], "cases[1]: inputs.y"),
            ([{**good, "output": {**tensor, "data": "AAAA"}}], "cases[0]: output of shape"),
            ({}, "cases must be an array"),
            ([{}] * 10_001, "more than 10000"),
        ):
            reply = daemon.ask({"type": "SubmitOutputs", "op_name": "softmax", "cases": cases})
            assert reply["type"] == "Error", reply
            assert text in reply["message"]
        case = TestCase(seed=1, inputs={"x": x})
        fault = "0 outputs were given for 1 cases of softmax"
        with pytest.raises(ClientError, match=fault) as raised:
            client.submit_outputs("softmax", [case], [])
        assert raised.value.problems[0].slug == "client-outputs-count"
        with pytest.raises(ClientError, match="no output"):
            client.submit_outputs("softmax", [case], [None])
        assert client.submit_outputs("softmax", [], []) == []
        with pytest.raises(ClientError, match="nope"):
            client.submit_outputs("nope", [], [])
        for wrong in ("softmax", 3, {"x": x}):
            with pytest.raises(ClientError, match="the outputs of softmax are of type") as raised:
                client.submit_outputs("softmax", [case], wrong)
            assert raised.value.problems[0].slug == "client-outputs-count"
        assert len(client.list_results(1000)) == before


def test_outputs_may_come_from_a_generator(daemon: Served) -> None:
    cases = cases_of(daemon, 3, seed=8)
    with daemon.client() as client:
        outputs = (softmax(case.inputs["x"]) for case in cases)
        assert len(client.submit_outputs("softmax", iter(cases), outputs)) == 3


@pytest.mark.parametrize(
    "wrong", [{"seed": 1}, "1", 1.0, True, None, FuzzCase(1, (2,), "float32", "contiguous")]
)
def test_what_is_no_case_is_named(daemon: Served, wrong: Any) -> None:
    x = normal(2, 4)
    case = TestCase(seed=1, inputs={"x": x})
    with daemon.client() as client, pytest.raises(ClientError) as raised:
        client.submit_outputs("softmax", [case, wrong], [softmax(x)] * 2)
    problem = raised.value.problems[0]
    assert problem.slug == "client-not-a-case"
    assert problem.message.startswith("cases[1] of softmax is of type ")
    assert problem.message.endswith(type(wrong).__name__)
    assert "get_test_batch" in problem.hint


def test_a_tensor_that_cannot_be_sent_is_named_with_its_case(daemon: Served) -> None:
    x = normal(2, 4)
    with daemon.client() as client:
        for case, output in (
            (TestCase(seed=7, inputs={"x": x}), "text"),
            (TestCase(seed=7, inputs=None), x),  # type: ignore[arg-type]  # what is refused
        ):
            with pytest.raises(ClientError, match="the case with the seed 7: '") as raised:
                client.submit_outputs("softmax", [case], [output])
            assert raised.value.problems[0].slug == "client-not-a-tensor"


def test_seeds_may_be_integers_of_numpy(daemon: Served) -> None:
    with daemon.client() as client:
        (case,) = client.get_test_batch("softmax", 1, seed=1 << 62, dtypes=["float32"])
        seeds = np.array([case.seed], np.uint64)
        (result,) = client.submit_outputs("softmax", seeds, [softmax(case.inputs["x"])])
    assert result.passed and result.seed == case.seed


@pytest.mark.parametrize(
    "wrap",
    [
        tuple,
        list,
        lambda outputs: (outputs[0],),
        lambda outputs: {"output": outputs},
        lambda outputs: [outputs, outputs],
    ],
)
def test_several_outputs_without_names_are_not_stacked_to_one(
    daemon: Served, wrap: Callable[[list[Tensor]], Any]
) -> None:
    """Two of shape [2] would be taken for one of shape [2, 2]."""
    x = normal(2)
    several = wrap([x, x])
    with daemon.client() as client:
        case = client.get_test_case("softmax", seed=4)
        for call in (
            lambda: client.validate_op("softmax", {"x": x}, several),
            lambda: client.submit_output("softmax", case.inputs, several, case.seed),
            lambda: client.submit_outputs("softmax", [case], [several]),
            lambda: client.fuzz_op_client_side("softmax", run_op=lambda _: several, iterations=1),
        ):
            with pytest.raises(ClientError) as raised:
                call()
            assert raised.value.problems[0].slug == "client-several-outputs"
            assert "by the names" in raised.value.problems[0].hint


def test_a_list_of_tensors_is_no_input(daemon: Served) -> None:
    """One of shape [2] would be taken for one of shape [1, 2], which softmax takes as well."""
    x = normal(2)
    with daemon.client() as client:
        for wrong in ([x], (x, x), [[x]], np.array([x, None], object)[:1].tolist()):
            case = TestCase(seed=4, inputs={"x": wrong})  # type: ignore[dict-item]  # what is refused
            for call in (
                lambda case: client.validate_op("softmax", case.inputs, softmax(x[None])),
                lambda case: client.submit_output("softmax", case.inputs, softmax(x[None]), 4),
                lambda case: client.submit_outputs("softmax", [case], [softmax(x[None])]),
            ):
                with pytest.raises(ClientError, match=r"'x' is a .* with tensors in it") as raised:
                    call(case)
                assert raised.value.problems[0].slug == "client-several-tensors"
        numbers = [[1.0, 2.0], [3.0, np.float32(4.0)]]
        y = softmax(np.array(numbers, np.float64))
        assert client.validate_op("softmax", {"x": numbers}, y).passed


def test_a_reference_that_fails_on_one_case_leaves_no_other_unjudged(daemon: Served) -> None:
    good = normal(3, 4)
    bad = good.copy()
    bad[0, 0] = 15
    crash = good.copy()
    crash[0, 0] = 14
    with daemon.client() as client:
        for wrong in (bad, crash):
            cases = [
                TestCase(seed=n, inputs={"x": wrong if n == 2 else good}, shape=(3, 4),
                         dtype="float32", layout="contiguous", layouts={})
                for n in range(4)
            ]  # fmt: skip
            before = len(client.list_results(1000))
            with pytest.raises(ClientError) as raised:
                client.submit_outputs("hostile", cases, [good * 2] * 4)
            assert raised.value.code == "ReferenceScriptFailed"
            assert len(client.list_results(1000)) == before
            rest = [case for case in cases if case.seed != 2]
            results = client.submit_outputs("hostile", rest, [good * 2, good * 3, good * 2])
            assert [result["verdict"] for result in results] == ["passed", "failed", "passed"]


FORGER = """
    import gpuemu_flow.judge.judge_service as service

    def reference(x):
        if x.flat[0] == 16:  # from here on, this process writes answers that are none
            service.to_builtins = lambda *_, **__: {"results": [{}]}
        return x * 2
    """


@pytest.mark.ci
def test_trouble_in_one_of_several_messages_to_the_worker_stays_its_own(unserved: Served) -> None:
    """An answer of the worker's that is none costs the verdict of one case alone."""
    served = unserved
    served.write("scripts/forger.py", FORGER)
    config = (served.root / "gpuemu.toml").read_text()
    op = config[config.index('[[ops]]\nname = "hostile"') :]
    served.write("gpuemu.toml", config + "\n" + op.replace("hostile", "forger"))
    served.start()
    good = normal(3, 4)
    forging, crashing = good.copy(), good.copy()
    forging[0, 0], crashing[0, 0] = 16, 14
    count = 2 * AT_ONCE + 20
    outputs = [good * 2] * count
    outputs[1] = outputs[AT_ONCE + 1] = outputs[-1] = good * 3
    wrong = [1, AT_ONCE + 1, count - 1]
    stored = 0
    with served.client() as client:
        for op_name, bad, place in (
            ("forger", forging, 3),
            ("forger", forging, count - 2),
            ("hostile", crashing, 5),
        ):
            tensors = [bad if number == place else good for number in range(count)]
            cases = [TestCase(seed=n, inputs={"x": x}) for n, x in enumerate(tensors)]
            with pytest.raises(ClientError) as raised:
                client.submit_outputs(op_name, cases, outputs)
            assert raised.value.code == "ReferenceScriptFailed"
            assert len(client.list_results(1)) == stored
            del cases[place]
            results = client.submit_outputs(op_name, cases, outputs[:place] + outputs[place + 1 :])
            failed = [result.seed for result in results if result["verdict"] == "failed"]
            assert failed == wrong
            assert sum(result.passed for result in results) == count - 1 - len(wrong)
            stored = 1


def test_results_above_the_limit_are_deleted_from_the_disk(unserved: Served) -> None:
    served = unserved
    config = (served.root / "gpuemu.toml").read_text()
    served.write("gpuemu.toml", config + "\n[storage]\nmax_results = 10\n")
    served.start()
    x = normal(2, 4)
    count = 10 + PRUNE_SLACK
    with served.client() as client:
        cases = [TestCase(seed=seed, inputs={"x": x}) for seed in range(count)]
        results = client.submit_outputs("softmax", cases, [softmax(x)] * count)
        assert [result.seed for result in results] == list(range(count))
        served.stop()  # waits for deletions that were begun
    workspace = Workspace(served.root, environ=served.environ)
    folder = workspace.config.results_folder(workspace.cache.folder)
    left = ResultStore(workspace.cache, folder, max_results=0).newest(1000)
    assert [result.seed for result in left] == list(range(count - 1, count - 11, -1))
