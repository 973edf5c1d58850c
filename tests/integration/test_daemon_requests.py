"""Every request of protocol v1 against a running daemon, by way of our own client."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from daemon_workspace import Served, normal, softmax

from gpuemu_flow.cases.protocol_v1 import SequenceConfig, case_at, tensors
from gpuemu_flow.client import Client, ClientError
from gpuemu_flow.client.calls import case_config
from gpuemu_flow.model.types import DTYPES


@pytest.fixture
def client(daemon: Served) -> Client:
    return daemon.client(timeout_ms=600_000)


def test_ping_says_who_answers(daemon: Served, client: Client) -> None:
    pong = client.ping()
    assert pong["protocol_version"] == 1
    assert pong["workspace"] == str(daemon.root.resolve())
    assert isinstance(pong["uptime_secs"], int)


def test_validate_passes_and_fails(client: Client) -> None:
    x = normal(4, 9)
    good = client.validate_op("softmax", {"x": x}, softmax(x))
    assert good.passed
    assert good.error_stats is not None
    assert good.error_stats["count"] == 36
    bad = client.validate_op("softmax", {"x": x}, softmax(x) + np.float32(0.25))
    assert not bad.passed
    assert bad.max_diff == pytest.approx(0.25, rel=1e-3)
    assert bad["failures"][0]["kind"] == "ToleranceExceeded"
    worst = bad.failures[0].index
    assert worst is not None
    assert bad.failures[0].actual == pytest.approx(float(softmax(x).reshape(-1)[worst]) + 0.25)


def test_every_dtype_and_shape(client: Client) -> None:
    names = [name for name in DTYPES if not name.startswith("float8")]
    for dtype, shape in itertools.product(names, [(3, 5), (), (0, 4)]):
        x = np.ones(shape, dtype=ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        right = (x * 2).astype(x.dtype)
        result = client.validate_op("double", {"x": x}, right)
        # An empty output compares nothing; but a client only knows passed and failed.
        assert result.verdict == ("passed" if x.size else "inconclusive"), (dtype, shape)
        assert (result.passed, list(result.failures)) == (True, []), (dtype, shape)
        other = np.zeros((*right.shape, 2), right.dtype)
        assert not client.validate_op("double", {"x": x}, other).passed, (dtype, shape)
        if x.size:
            off = np.zeros_like(right)
            assert not client.validate_op("double", {"x": x}, off).passed, (dtype, shape)


def test_layout_of_what_is_sent_does_not_matter(client: Client) -> None:
    x = normal(6, 8)
    for view in (x.T, x[::-1], x[:, ::2], np.asfortranarray(x), x.astype(">f4")):
        assert client.validate_op("double", {"x": view}, np.asarray(view) * 2).passed


def test_kwargs_reach_scripts_as_text_and_callables_with_types(client: Client) -> None:
    x = normal(5)
    assert client.validate_op("scaled", {"x": x}, x * 3, factor=3).passed
    assert not client.validate_op("scaled", {"x": x}, x * 3, factor=4).passed


def test_a_tolerance_of_one_call(client: Client) -> None:
    x = normal(5)
    assert not client.validate_op("double", {"x": x}, x * 2 + np.float32(0.1)).passed
    assert client.validate_op("double", {"x": x}, x * 2 + np.float32(0.1), atol=0.2).passed
    assert not client.validate_op("double", {"x": x}, x * 2 + np.float32(0.1)).passed


def test_a_tolerance_that_is_none_is_refused(client: Client) -> None:
    given: list[object] = ["x", "1", "-1", -0.5, True, [1.0], math.nan, math.inf, np.bool_(1)]
    for atol in given:
        with pytest.raises(ClientError, match="atol") as caught:
            client.validate_op("double", {"x": normal(5)}, normal(5) * 2, atol=atol)
        assert caught.value.problems[0].slug in ("client-bad-tolerance", "client-refused"), atol
    assert client.validate_op("double", {"x": normal(5)}, normal(5) * 2, atol=None).passed


def test_text_of_a_tolerance_counts_for_no_number_in_any_call(client: Client) -> None:
    x = normal(5)
    case = client.get_test_case("softmax", seed=2)
    calls: dict[str, Callable[[], object]] = {
        "validate": lambda: client.validate_op("double", {"x": x}, x * 2, rtol="1e-3"),
        "submit": lambda: client.submit_output(
            "softmax", case.inputs, case.inputs["x"], case.seed, rtol="1"
        ),
        "many": lambda: client.submit_outputs("softmax", [case], [case.inputs["x"]], rtol="1"),
        "fuzz": lambda: client.fuzz_op_client_side("double", lambda t: t["x"], 1, rtol="1"),
    }
    for name, call in calls.items():
        with pytest.raises(ClientError) as caught:
            call()
        problem = caught.value.problems[0]
        assert problem.slug == "client-bad-tolerance", name
        assert problem.message == "rtol is of type str", name
        assert "finite number" in problem.hint


def test_inputs_of_only_zeros_or_nan_are_noted(client: Client) -> None:
    zeros, x = np.zeros(5, np.float32), normal(5)
    for blank in (zeros, zeros * np.nan, np.float32([0, np.nan]), np.float32([np.nan, 0])):
        passed = client.validate_op("double", {"x": blank}, blank)
        assert passed.passed
        assert [note.partition(":")[0] for note in passed.notes] == ["inputs-only-zeros"]
    for telling in (np.float32([0, np.nan, 1]), np.float32([np.nan, -1])):
        assert not client.validate_op("double", {"x": telling}, telling * 2).notes
    failed = client.validate_op("double", {"x": zeros}, x)
    other = client.validate_op("double", {"x": x}, x * 2)
    assert other.passed and not failed.passed
    assert "inputs-only-zeros" not in " ".join([*other.notes, *failed.notes])


def test_an_argument_that_no_request_can_hold_is_named(client: Client) -> None:
    with pytest.raises(ClientError, match="the argument factor is nan") as caught:
        client.validate_op("scaled", {"x": normal(5)}, normal(5), factor=math.nan)
    assert caught.value.problems[0].slug == "client-not-finite"


def test_what_is_not_finite(client: Client) -> None:
    x = np.array([1.0, np.nan, np.inf], np.float32)
    assert client.validate_op("double", {"x": x}, x * 2).passed
    zero = np.zeros(2, np.float32)
    nan = client.validate_op("double", {"x": zero}, np.array([0, np.nan], np.float32))
    assert nan.failures[0].kind == "NaNDetected"
    inf = client.validate_op("double", {"x": zero}, np.array([0, np.inf], np.float32))
    assert not inf.passed
    assert inf.failures[0].index == 1
    assert inf.failures[0].actual is None
    assert inf.failures[0].actual_text == "inf"


def test_wrong_shape_and_dtype_are_verdicts(client: Client) -> None:
    x = normal(2, 3)
    shape = client.validate_op("double", {"x": x}, (x * 2).reshape(6))
    assert [f.kind for f in shape.failures] == ["ShapeMismatch"]
    dtype = client.validate_op("double", {"x": x}, (x * 2).astype(np.int32))
    assert [f.kind for f in dtype.failures] == ["DTypeMismatch"]


def test_wrong_names_of_outputs_are_told(client: Client) -> None:
    x = normal(2, 3)
    result = client.validate_op("double", {"x": x}, {"doubled": x * 2})
    (failure,) = result.failures
    assert (result.verdict, failure.kind) == ("error", "OutputNamesMismatch")
    assert failure.message == "outputs expected: 'output'; outputs given: 'doubled'"


def test_unknown_op_names_the_nearest(client: Client) -> None:
    with pytest.raises(ClientError, match="softmax") as caught:
        client.validate_op("sofmax", {"x": normal(2)}, normal(2))
    assert caught.value.code == "OpNotFound"


def test_a_reference_that_raises(client: Client) -> None:
    with pytest.raises(ClientError, match="the reference refuses") as caught:
        client.validate_op("hostile", {"x": np.full(2, 15, np.float32)}, normal(2))
    assert caught.value.code == "ReferenceScriptFailed"
    assert client.validate_op("hostile", {"x": normal(2)}, normal(2) * 2).passed


def test_an_op_without_dtypes_gets_those_of_the_project(client: Client, daemon: Served) -> None:
    """Say no schema and no dtypes: `[validation] dtypes` holds, unless the caller names others."""
    assert client.get_test_case("double", seed=3).dtype == "float32"
    seen: set[Any] = set()

    def double(inputs: dict[str, Any]) -> Any:
        seen.add(inputs["x"].dtype.name)
        return inputs["x"] * 2

    client.fuzz_op_client_side("double", double, iterations=6, seed=3)
    assert seen == {"float32"}
    named = client.get_test_batch("double", 6, seed=3, dtypes=["float64", "float16"])
    assert {case.dtype for case in named} == {"float64", "float16"}
    request = {"type": "GetTestBatch", "op_name": "double", "count": 6}
    published = daemon.ask({**request, "fuzz_config": case_config(3, None, None)})["cases"]
    assert {case["dtype"] for case in published} == {"float32", "float16"}, "protocol v1 says so"


def test_cases_are_those_of_the_protocol(client: Client, daemon: Served) -> None:
    cases = client.get_test_batch("double", count=6, seed=42)
    assert {case.dtype for case in cases} == {"float32"}, "those of [validation]"
    config = SequenceConfig.from_json(case_config(42, ["float32"], None))
    for number, case in enumerate(cases):
        expected = case_at(config, ["x"], number)
        assert (case.seed, case.dtype, case.layout) == (
            expected.seed, expected.dtype, expected.layout,
        )  # fmt: skip
        x = case.inputs["x"]
        assert x.size < 2 or x.flags.c_contiguous == (case.layout == "contiguous")
        for name, array in tensors(expected).items():
            np.testing.assert_array_equal(case.inputs[name], array)
    first = client.get_test_case("double", seed=42)
    assert first.seed == cases[0].seed
    np.testing.assert_array_equal(first["inputs"]["x"], cases[0]["inputs"]["x"])
    request = {"type": "GetTestBatch", "op_name": "matmul", "count": 2}
    asked = daemon.ask({**request, "fuzz_config": case_config(42, None, None)})["cases"]
    for number, made in enumerate(asked):
        expected = case_at(config, ["a", "b"], number)
        assert (made["seed"], made["layout"]) == (expected.seed, expected.layout)
        assert {tuple(t["shape"]) for t in made["inputs"].values()} == {expected.inputs[1].shape}


def test_an_op_with_a_schema_gives_cases_that_fit_it(client: Client) -> None:
    """Other clients get the protocol's, in which all inputs have one shape."""
    cases = client.get_test_batch("matmul", count=12, seed=42)
    assert {case.dtype for case in cases} == {"float32"}, "the op's own dtypes"
    assert len({case.seed for case in cases}) == 12
    assert {layout for case in cases for layout in case.layouts.values()} > {"contiguous"}
    for case in cases:
        (m, k), (k2, n) = (case.inputs[name].shape for name in ("a", "b"))
        assert k == k2 and m in (2, 5) and n == 4
        for name, array in case.inputs.items():
            assert array.flags.c_contiguous or case.layouts[name] != "contiguous"
            assert case.fresh_inputs()[name].strides == array.strides
        result = client.submit_output("matmul", case.seed, case.inputs["a"] @ case.inputs["b"])
        assert result.passed and result.notes == []
    assert any(not a.flags.c_contiguous for case in cases for a in case.inputs.values())
    results = client.fuzz_op_client_side("matmul", lambda i: i["a"] @ i["b"], 20, seed=42)
    assert (results.total, results.passed) == (20, 20)
    assert {case.dtype for case in client.get_test_batch("matmul", 4, dtypes=["float16"])} == {
        "float16"
    }


def test_a_batch_can_be_continued(daemon: Served) -> None:
    request = {
        "type": "GetTestBatch",
        "op_name": "double",
        "fuzz_config": case_config(5, None, None),
    }
    whole = daemon.ask({**request, "count": 5})["cases"]
    rest = daemon.ask({**request, "count": 2, "start": 3})["cases"]
    assert rest == whole[3:]


def test_schema_cases(client: Client) -> None:
    schema = {
        "name": "matmul",
        "dims": [
            {"name": "M", "candidates": [2, 3]},
            {"name": "K", "candidates": [4]},
            {"name": "N", "candidates": [5]},
        ],
        "inputs": [{"name": "a", "dims": ["M", "K"]}, {"name": "b", "dims": ["K", "N"]}],
        "output": {"name": "c", "dims": ["M", "N"]},
    }
    results = client.fuzz_op_client_side(
        "matmul", lambda i: i["a"] @ i["b"], iterations=8, seed=3, op_schema=schema
    )
    assert (results.total, results.passed) == (8, 8)


def test_submissions_belong_to_their_case(client: Client) -> None:
    case = client.get_test_case("softmax", seed=9)
    result = client.submit_output("softmax", case.inputs, softmax(case["inputs"]["x"]), case.seed)
    assert result.passed
    assert result.repro_info is not None
    assert result.repro_info.seed == case.seed
    assert result.repro_info.fuzz_config is not None
    assert result.repro_info.fuzz_config["seed"] == 9
    stored = client.get_result(case.seed)
    assert stored is not None
    assert stored.seed == case.seed
    short = client.submit_output("softmax", case.seed, softmax(case.inputs["x"]))
    assert short.passed


def test_inputs_changed_in_place_are_noticed(client: Client) -> None:
    case = client.get_test_case("double", seed=10)
    honest = client.submit_output("double", case.inputs, case.inputs["x"] * 2, case.seed)
    assert honest.passed
    assert honest.notes == []
    case.inputs["x"] *= 2
    changed = client.submit_output("double", case.inputs, case.inputs["x"], case.seed)
    assert [failure.kind for failure in changed.failures] == ["InputModified"]


def test_bfloat16_cases_travel_exactly(client: Client) -> None:
    def rounded(inputs: dict[str, np.ndarray]) -> np.ndarray:
        wide = inputs["x"]
        assert wide.dtype == np.float32
        np.testing.assert_array_equal(wide, wide.astype(ml_dtypes.bfloat16).astype(np.float32))
        return (wide * 2).astype(ml_dtypes.bfloat16)

    good = client.fuzz_op_client_side("double", rounded, iterations=3, seed=1, dtypes=["bfloat16"])
    assert good.passed == 3, good.failures
    as_float = client.fuzz_op_client_side(
        "double", lambda i: i["x"] * 2, iterations=3, seed=1, dtypes=["bfloat16"]
    )
    assert as_float.passed == 3

    def rounds(inputs: dict[str, np.ndarray]) -> np.ndarray:
        """A kernel's bfloat16 result, widened on its way: judged as the bfloat16 that it is."""
        return softmax(inputs["x"]).astype(ml_dtypes.bfloat16).astype(np.float32)

    narrow = client.fuzz_op_client_side(
        "softmax", rounds, iterations=3, seed=1, dtypes=["bfloat16"]
    )
    assert narrow.passed == 3, narrow.failures
    bad = client.fuzz_op_client_side(
        "double", lambda i: i["x"] * 2.1, iterations=3, seed=1, dtypes=["bfloat16"]
    )
    assert bad.failed == 3


def test_fuzzing_in_the_client(client: Client) -> None:
    good = client.fuzz_op_client_side("softmax", lambda i: softmax(i["x"]), iterations=20, seed=42)
    assert (good.total, good.passed, good.failed) == (20, 20, 0)
    assert good

    def raises(_: object) -> np.ndarray:
        raise RuntimeError("no kernel")

    broken = client.fuzz_op_client_side("softmax", raises, iterations=3, seed=42, fail_fast=True)
    assert (broken.total, broken.failed) == (1, 1)
    assert broken.failures[0].failures[0].kind == "ExecutionError"
    assert not broken

    def overwrites(inputs: dict[str, np.ndarray]) -> np.ndarray:
        out = softmax(inputs["x"])
        inputs["x"][...] = 0
        return out

    found = client.fuzz_op_client_side("softmax", op_fn=overwrites, iterations=3, seed=1)
    assert [result.failures[0].kind for result in found.failures] == ["InputModified"] * 3


SMALL = {"batch_sizes": [1, 2], "seq_lengths": [3], "hidden_dims": [2, 8]}


def test_fuzzing_in_the_daemon(client: Client) -> None:
    good = client.fuzz_op("double", seed=11, iterations=12, **SMALL)
    assert (good.seed, good.total, good.passed, good.failed) == (11, 12, 12, 0)
    first = client.fuzz_op("wrong", seed=11, iterations=12, **SMALL)
    assert first.failed
    assert first.failed + first.passed == 12
    info = first.failures[0].repro_info
    assert info is not None
    assert info.layout in ("Contiguous", "Strided", "Transposed")
    again = client.fuzz_op("wrong", seed=11, iterations=12, **SMALL)
    assert [f.seed for f in again.failures] == [f.seed for f in first.failures]
    stopped = client.fuzz_op("wrong", seed=11, iterations=12, fail_fast=True, **SMALL)
    assert [f.seed for f in stopped.failures] == [first.failures[0].seed]


@pytest.mark.parametrize("dtype", ["bfloat16", "float64", "int8", "uint16", "int64"])
def test_fuzzing_dtypes(client: Client, dtype: str) -> None:
    found = client.fuzz_op("double", seed=3, iterations=4, dtypes=[dtype], **SMALL)
    assert found.passed == 4, found.failures


def test_an_op_that_only_clients_have_never_passes(client: Client) -> None:
    """Comparing its reference with itself would."""
    with pytest.raises(ClientError, match="client_side") as caught:
        client.fuzz_op("softmax", seed=1, iterations=2)
    assert caught.value.code == "InvalidRequest"


def test_failures_are_kept_reproduced_and_shrunk(client: Client) -> None:
    failed = client.fuzz_op("wrong", seed=21, iterations=6, **SMALL).failures[0]
    assert failed.seed in [f.seed for f in client.list_failures(50)]
    found = client.reproduce(failed.seed, rerun=True)
    assert found.result.seed == failed.seed
    assert found.result.failures[0].index == failed.failures[0].index
    assert found.still_fails is True
    config = SequenceConfig.from_json(found.result.repro_info.fuzz_config)
    number = next(n for n in range(6) if case_at(config, ["x"], n).seed == failed.seed)
    expected = tensors(case_at(config, ["x"], number))["x"]
    np.testing.assert_array_equal(found.inputs["x"], expected)
    small = client.minimize(failed.seed, max_iters=200)
    assert small.original_seed == failed.seed
    assert small.minimized_shape[-1] == 4
    assert small.minimized_shape[0] == 1
    shrunk = client.reproduce(small.minimized_seed)
    assert list(shrunk.inputs["x"].shape) == small.minimized_shape
    assert not shrunk.result.passed


def test_a_clients_failure_can_be_looked_at_but_not_rerun(client: Client) -> None:
    x = normal(3, 4)
    failed = client.validate_op("softmax", {"x": x}, x)
    found = client.reproduce(failed.seed)
    np.testing.assert_array_equal(found.inputs["x"], x)
    assert found.result.failures[0].kind == "ToleranceExceeded"
    for call in (
        lambda: client.minimize(failed.seed),
        lambda: client.reproduce(failed.seed, rerun=True),
    ):
        with pytest.raises(ClientError, match="came from a client"):
            call()


def test_unknown_seeds(client: Client) -> None:
    assert client.get_result(12345) is None
    for call in (client.reproduce, client.minimize):
        with pytest.raises(ClientError) as caught:
            call(12345)
        assert caught.value.code == "NotFound"


def test_results_are_listed_newest_first(client: Client) -> None:
    x = normal(2)
    seeds = [client.validate_op("double", {"x": x}, x * 2).seed for _ in range(3)]
    assert [r.seed for r in client.list_results(3)] == seeds[::-1]
    assert client.list_results(0) == []


def test_baselines(client: Client) -> None:
    case = client.get_test_case("double", seed=77)
    client.submit_output("double", case.inputs, case.inputs["x"] * 2, case.seed)
    client.store_baseline("good")
    assert not client.compare_baseline("good").has_regressions
    client.submit_output("double", case.inputs, case.inputs["x"] * 3, case.seed)
    compared = client.compare_baseline("good")
    assert compared.has_regressions
    worse = [c for c in compared.comparisons if c["is_regression"]]
    assert [(c["op_name"], c["seed"]) for c in worse] == [("double", case.seed)]
    with pytest.raises(ClientError, match="good") as caught:
        client.compare_baseline("god")
    assert caught.value.code == "BaselineNotFound"


def test_large_tensors_take_the_short_way(daemon: Served, client: Client) -> None:
    """Through the exchange folder: nothing is left in it."""
    x = normal(1 << 19)
    assert client.validate_op("double", {"x": x}, x * 2).passed
    folder = Path(client.ping()["exchange"])
    assert list(folder.iterdir()) == []
    batch = client.get_test_batch("double", 3, seed=8)
    assert batch[0].inputs["x"].flags.writeable
    assert list(folder.iterdir()) == []


def test_replies_are_strict_json(daemon: Served) -> None:
    """Other languages' readers refuse NaN and Infinity."""
    x = np.array([1, 2], np.float32)
    request = {
        "type": "ValidateOp", "op_name": "double", "kwargs": {},
        "inputs": {"x": _tensor(x)}, "output": _tensor(np.array([2, np.inf], np.float32)),
    }  # fmt: skip
    with daemon.raw() as sock:
        sock.send(json.dumps(request).encode())
        text = sock.recv().decode()

    def refuse(word: str) -> None:
        raise AssertionError(word)

    result = json.loads(text, parse_constant=refuse)["result"]
    assert result["failures"][0]["actual"] is None


def _tensor(array: np.ndarray) -> dict[str, object]:
    import base64

    data = base64.b64encode(array.tobytes()).decode()
    return {
        "shape": list(array.shape), "strides": list(array.strides), "dtype": str(array.dtype),
        "data": data,
    }  # fmt: skip
