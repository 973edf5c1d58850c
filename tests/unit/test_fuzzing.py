"""Generators of shapes, dtypes, layouts and tensors: published values, both ways of calling."""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gpuemu_flow import fuzzing, rng, validate
from gpuemu_flow.cases.protocol_v1 import case_at, tensors
from gpuemu_flow.fuzzing import FuzzConfig, SeededFuzzer, generate_random_tensor
from gpuemu_flow.model.errors import UsageError

VECTORS = json.loads((Path(__file__).parents[1] / "data" / "rng_vectors.json").read_text())


def first(generator: Any, count: int) -> list[Any]:
    return list(itertools.islice(generator, count))


def test_the_published_shapes_dtypes_and_layouts() -> None:
    for run in VECTORS["fuzz_shapes_seeded_defaults"]:
        given = first(fuzzing.fuzz_shapes_seeded(int(run["seed"])), len(run["first20"]))
        assert [(str(s), list(shape)) for s, shape in given] == [
            (v["iter_seed"], v["shape"]) for v in run["first20"]
        ]
    for run in VECTORS["fuzz_dtypes_seeded_defaults"]:
        given = first(fuzzing.fuzz_dtypes_seeded(int(run["seed"])), len(run["first20"]))
        assert [(str(s), d) for s, d in given] == [
            (v["iter_seed"], v["dtype"]) for v in run["first20"]
        ]
    for run in VECTORS["fuzz_layouts_seeded_defaults"]:
        made = fuzzing.fuzz_layouts_seeded(int(run["seed"]), run["shape"])
        assert [(str(s), layout, list(h), list(t)) for s, layout, h, t in first(made, 12)] == [
            (v["iter_seed"], v["layout"], v["shape"], v["strides"]) for v in run["first12"]
        ]


def test_the_published_products() -> None:
    for vector in VECTORS["fuzz_layouts"]:
        given = [[list(s), list(t)] for s, t in fuzzing.fuzz_layouts(vector["shape"])]
        assert given == vector["out"]
    vector = VECTORS["fuzz_shapes"]
    assert [list(s) for s in fuzzing.fuzz_shapes(**vector["args"])] == vector["out"]
    assert list(fuzzing.fuzz_dtypes()) == ["float32", "float16"]
    assert list(fuzzing.fuzz_dtypes(["int8"])) == ["int8"]
    assert list(fuzzing.fuzz_dtypes(exclude=["float16"])) == ["float32"]
    assert list(fuzzing.fuzz_layouts()) == ["contiguous", "strided", "transposed"]
    assert list(fuzzing.fuzz_layouts(include_strided=False)) == ["contiguous", "transposed"]


def test_the_published_tensors() -> None:
    checked = 0
    for vector in VECTORS["generate_random_tensor"]:
        if "sha256" not in vector or "float" not in vector["dtype"]:
            continue  # it fails, or gives zeros
        made = generate_random_tensor(
            int(vector["seed"]), vector["shape"], vector["dtype"], vector["domain"]
        )
        assert str(made.dtype) == vector["dtype"]
        assert hashlib.sha256(made.tobytes()).hexdigest() == vector["sha256"], vector
        checked += 1
    assert checked > 5


def test_tensors_of_ranges_and_integers() -> None:
    made = generate_random_tensor(3, (50, 4), "float16", (2.0, 3.0))
    assert made.dtype == np.float16 and 2 <= made.min() < 2.1 < 2.9 < made.max() <= 3
    assert generate_random_tensor(3, (2,), "int32").dtype == np.int32
    assert generate_random_tensor(3, (0, 2), "bool").shape == (0, 2)
    assert generate_random_tensor(3, (), "bfloat16").shape == ()


def test_random_shapes_keep_their_limits() -> None:
    shapes = first(fuzzing.fuzz_shapes(min_dims=2, max_dims=3, min_size=0, max_size=4, seed=5), 300)
    assert shapes == first(
        fuzzing.fuzz_shapes(min_dims=2, max_dims=3, min_size=0, max_size=4, seed=5), 300
    )
    assert {len(s) for s in shapes} == {2, 3}
    assert {d for s in shapes for d in s} == {0, 1, 2, 3, 4}
    assert len(set(first(fuzzing.fuzz_shapes(), 20))) > 5
    with pytest.raises(ValueError, match="nothing to choose"):
        next(fuzzing.fuzz_shapes(min_dims=3, max_dims=2))


def test_the_fuzzer_gives_the_published_cases() -> None:
    for run in VECTORS["SeededFuzzer_defaults"]:
        fuzzer = SeededFuzzer(FuzzConfig(int(run["seed"])))
        given = list(fuzzer.iterator(len(run["first20"])))
        assert [
            (str(c.seed), list(c.shape), c.dtype, c.layout, list(c.strides)) for c in given
        ] == [
            (v["seed"], v["shape"], v["dtype"], v["layout"], v["strides"]) for v in run["first20"]
        ]
        fuzzer.reset()
        assert fuzzer.next_test_case() == given[0]
        by_seed = SeededFuzzer(int(run["seed"]))
        assert by_seed.next() == given[0] and by_seed.next() == given[1]


def test_a_cases_tensors_are_the_daemons() -> None:
    config = FuzzConfig(11, batch_sizes=[2], seq_lengths=[3], hidden_dims=[4], edge_cases=[])
    case = SeededFuzzer(config).next()
    wire = tensors(case_at(config.as_request(), ["a", "b"], 0), protocol_v1=False)
    made = case.tensors(["a", "b"])
    for name in ("a", "b"):
        np.testing.assert_array_equal(made[name], wire[name])
    np.testing.assert_array_equal(case.inputs["input"], wire["a"])
    other = case.generate_input("a")
    assert other.shape == wire["a"].shape and not np.array_equal(other, wire["a"])


def test_configs_of_limits() -> None:
    config = FuzzConfig(7, min_dims=1, max_dims=2, max_size=5, iterations=40, dtypes=["int8"])
    cases = list(SeededFuzzer(config))
    assert len(cases) == 40 and {c.dtype for c in cases} == {"int8"}
    assert {len(c.shape) for c in cases} == {1, 2}
    assert max(d for c in cases for d in c.shape) <= 5
    assert FuzzConfig().seed != FuzzConfig(0).seed
    assert FuzzConfig(7).to_dict()["shape_options"]["edge_cases"] == [[1], [1, 1], [1, 1, 1], [0]]
    with pytest.raises(UsageError) as caught:
        SeededFuzzer(FuzzConfig(7, dtypes=["float31"]))
    assert caught.value.slug == "unknown-dtype"


SMALL = {"batch_sizes": [2], "seq_lengths": [3], "hidden_dims": [4, 5], "edge_cases": [[0]]}


def double(x: NDArray[Any]) -> NDArray[Any]:
    return x + x


def test_running_an_op_on_cases() -> None:
    fuzzer = SeededFuzzer(FuzzConfig(1, iterations=12, **SMALL))  # type: ignore[arg-type]
    results = fuzzer.run(double, lambda x: x * 2, names=("x",))
    assert (results.total, results.passed, results.failed, results.seed) == (12, 11, 0, 1)
    assert results.inconclusive == 1, "one case is empty, and compares nothing"
    assert results and results.verdict == "passed"
    results = fuzzer.run(lambda x: double(x["input"]), lambda x: x["input"] * 2.1)
    assert results.failed == sum(r.max_diff > 0 for r in results.failures) > 6
    assert fuzzer.run(double, lambda x: x * 3, names=("x",), fail_fast=True).total <= 3
    assert fuzzer.run(lambda x: 1 / 0, None, 2).failures[0].failures[0].kind == "ExecutionError"
    failed = fuzzer.run(double, lambda x: 1 / 0, 1, names=("x",)).failures[0]
    assert (failed.verdict, failed.failures[0].kind) == ("error", "ReferenceError")
    assert fuzzer.run(double, None, 5, names=("x",)).passed == 5
    assert fuzzer.run(lambda x: x["input"] * np.nan, None, 5).failed == 5


def test_the_documented_names() -> None:
    from gpuemu_flow import validate as as_module
    from gpuemu_flow import validation

    assert callable(as_module) and as_module is validate
    assert validation.validate_op is validate.validate_op
    assert validate.SeededFuzzer is SeededFuzzer
    assert rng.SeededRng(1).derive("x").seed == rng.derive_seed(1, "x")
    for module in (validate, validation, rng):
        assert all(hasattr(module, name) for name in module.__all__)
