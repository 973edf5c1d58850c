"""Protocol v1's cases and tensors against gpuemu's own, and its configuration against junk."""

from __future__ import annotations

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from for_each import for_each

from gpuemu_flow.cases.protocol_v1 import (
    SequenceConfig,
    ShapeOptions,
    case_at,
    nominal_strides,
    representative_shape,
    tensors,
)
from gpuemu_flow.model.decoding import convert, plain
from gpuemu_flow.model.errors import UsageError
from gpuemu_flow.model.types import Case, InputSpec
from gpuemu_flow.numerics.rng import MASK64, SeededRng

DATA = Path(__file__).parents[1] / "data"
RUNS = json.loads((DATA / "fuzz_vectors.json").read_text(encoding="utf-8"))["runs"]
RNG_VECTORS = json.loads((DATA / "rng_vectors.json").read_text(encoding="utf-8"))
GOOD: dict[str, Any] = {
    "seed": 42,
    "shape_options": {
        "batch_sizes": [1, 2],
        "seq_lengths": [3],
        "hidden_dims": [4, 5],
        "edge_cases": [[1], [0, 2], []],
    },
    "dtypes": ["float32", "bool"],
    "layouts": ["Contiguous", "Strided"],
    "op_schema": {
        "name": "matmul",
        "dims": [{"name": "M", "candidates": [2]}, {"name": "K", "candidates": []}],
        "inputs": [{"name": "a", "dims": ["M", "K"]}],
        "output": {"name": "out", "dims": ["M"]},
    },
}


def config_of(run: dict[str, Any]) -> SequenceConfig:
    return SequenceConfig.from_json({**run["fuzz_config"], "seed": int(run["fuzz_config"]["seed"])})


def changed(path: str, value: Any) -> dict[str, Any]:
    """`GOOD` with another value at a dotted path; the value is removed when it is Ellipsis."""
    config = copy.deepcopy(GOOD)
    *parents, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    place: Any = config
    for key in parents:
        place = place[key]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return config


@for_each("run", RUNS)
def test_cases_equal_gpuemus(run: dict[str, Any]) -> None:
    config = config_of(run)
    assert len(run["cases"]) == run["count"]
    for n, vector in enumerate(run["cases"]):
        case = case_at(config, run["input_names"], n)
        assert (case.index, case.seed, case.strategy) == (n, int(vector["seed"]), "uniform")
        assert (case.dtype, case.layout) == (vector["dtype"], vector["layout"])
        assert list(representative_shape(config, case)) == vector["shape"]
        made = tensors(case)
        assert list(made) == run["input_names"]
        for name, expected in vector["inputs"].items():
            array = made[name]
            assert list(array.shape) == expected["shape"]
            assert list(nominal_strides(array.shape, case.layout)) == expected["strides"]
            data = array.tobytes()
            assert len(data) == expected["nbytes"]
            assert data[:16].hex() == expected["first_bytes_hex"]
            assert hashlib.sha256(data).hexdigest() == expected["sha256"]


def test_the_python_fuzzers_cases_are_the_same() -> None:
    options = ShapeOptions(
        batch_sizes=(1, 2, 4, 8, 16, 32),
        seq_lengths=(64, 128, 256, 512, 1024),
        hidden_dims=(256, 512, 768, 1024),
        edge_cases=((1,), (1, 1), (1, 1, 1), (0,)),
    )
    for run in RNG_VECTORS["SeededFuzzer_defaults"]:
        config = SequenceConfig(int(run["seed"]), options)
        for n, vector in enumerate(run["first20"]):
            case = case_at(config, ["x"], n)
            shape = representative_shape(config, case)
            assert case.seed == int(vector["seed"])
            assert (case.dtype, case.layout) == (vector["dtype"], vector["layout"])
            assert list(shape) == vector["shape"]
            assert list(nominal_strides(shape, case.layout)) == vector["strides"]
            assert case.shape_class == (
                "edge" if list(shape) in [[1], [1, 1], [1, 1, 1], [0]] else "grid"
            )


def test_contiguous_strides() -> None:
    for shape, strides in RNG_VECTORS["contiguous_strides"].items():
        assert list(nominal_strides(json.loads(shape), "contiguous")) == strides


def test_strides_of_each_layout() -> None:
    assert nominal_strides((2, 3, 4), "strided") == (24, 8, 2)
    assert nominal_strides((2, 3, 4), "transposed") == (12, 3, 1)
    assert nominal_strides((5,), "transposed") == (1,)
    for layout in ("contiguous", "strided", "transposed"):
        assert nominal_strides((), layout) == ()
    with pytest.raises(UsageError) as caught:
        nominal_strides((2, 3), "offset")
    assert caught.value.slug == "unknown-layout"


def test_no_input_names_mean_one_input() -> None:
    case = case_at(SequenceConfig(7), [], 0)
    assert [spec.name for spec in case.inputs] == ["input"]
    assert case == case_at(SequenceConfig(7), ["input"], 0)


def test_lists_do_not_disturb_each_other() -> None:
    one = case_at(SequenceConfig(9, dtypes=("float32",)), ["x"], 3)
    two = case_at(SequenceConfig(9, dtypes=("bool", "int8")), ["x"], 3)
    assert (one.inputs[0].shape, one.layout, one.seed) == (
        two.inputs[0].shape,
        two.layout,
        two.seed,
    )


def test_seeds_are_masked() -> None:
    assert SequenceConfig(-1).seed == MASK64
    assert SequenceConfig.from_json(changed("seed", (1 << 64) + 5)).seed == 5
    assert case_at(SequenceConfig(-1), ["x"], 2) == case_at(SequenceConfig(MASK64), ["x"], 2)


def test_json_round_trip() -> None:
    for source in (GOOD, changed("op_schema", None), changed("op_schema.output", ...)):
        config = SequenceConfig.from_json(source)
        assert SequenceConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    assert SequenceConfig.from_json(GOOD).to_json() == GOOD
    case = case_at(SequenceConfig.from_json(GOOD), ["a", "b"], 1)
    assert convert(json.loads(json.dumps(plain(case))), Case) == case


def test_spellings() -> None:
    config = changed("layouts", ["contiguous", "STRIDED", "Transposed"])
    assert SequenceConfig.from_json(config).layouts == ("contiguous", "strided", "transposed")
    config = changed("dtypes", ["F32", "bf16", "Float16", "float32"])
    assert SequenceConfig.from_json(config).dtypes == ("float32", "bfloat16", "float16", "float32")


def test_what_may_be_missing() -> None:
    assert SequenceConfig.from_json(changed("shape_options", ...)).op_schema is not None
    assert (
        SequenceConfig.from_json(changed("shape_options.edge_cases", ...)).shape_options.edge_cases
        == ()
    )
    assert SequenceConfig.from_json(
        {**GOOD, "value_distribution": "nan"}
    ) == SequenceConfig.from_json(GOOD)


@for_each(
    ("path", "value", "slug"),
    [
        ("seed", ..., "fuzz-config-missing-key"),
        ("dtypes", ..., "fuzz-config-missing-key"),
        ("layouts", ..., "fuzz-config-missing-key"),
        ("shape_options.hidden_dims", ..., "fuzz-config-missing-key"),
        ("op_schema.dims", ..., "fuzz-config-missing-key"),
        ("op_schema.inputs.0.name", ..., "fuzz-config-missing-key"),
        ("op_schema.dims.0.candidates", ..., "fuzz-config-missing-key"),
        ("seed", 5.0, "fuzz-config-wrong-type"),
        ("seed", True, "fuzz-config-wrong-type"),
        ("seed", None, "fuzz-config-wrong-type"),
        ("seed", "42", "fuzz-config-wrong-type"),
        ("dtypes", "float32", "fuzz-config-wrong-type"),
        ("dtypes", [None], "fuzz-config-wrong-type"),
        ("layouts", {}, "fuzz-config-wrong-type"),
        ("shape_options", [], "fuzz-config-wrong-type"),
        ("shape_options.batch_sizes", [1.5], "fuzz-config-wrong-type"),
        ("shape_options.edge_cases", [1], "fuzz-config-wrong-type"),
        ("op_schema", [], "fuzz-config-wrong-type"),
        ("op_schema.dims.0", "M", "fuzz-config-wrong-type"),
        ("op_schema.dims.0.name", "\ud800", "fuzz-config-wrong-type"),
        ("op_schema.output", 3, "fuzz-config-wrong-type"),
        ("shape_options.batch_sizes", [-1], "fuzz-config-out-of-range"),
        ("shape_options.batch_sizes", [1 << 32], "fuzz-config-out-of-range"),
        ("shape_options.edge_cases", [[1] * 33], "fuzz-config-out-of-range"),
        ("op_schema.inputs.0.dims", ["M"] * 33, "fuzz-config-out-of-range"),
        ("dtypes", ["float31"], "unknown-dtype"),
        ("dtypes", ["x" * 10_000_000], "unknown-dtype"),
        ("layouts", ["Offset"], "unknown-layout"),
        ("dtypes", [], "fuzz-config-empty-list"),
        ("layouts", [], "fuzz-config-empty-list"),
    ],
)
def test_bad_configurations_are_refused(path: str, value: Any, slug: str) -> None:
    with pytest.raises(UsageError) as caught:
        SequenceConfig.from_json(changed(path, value))
    assert caught.value.slug == slug
    key = path.rpartition(".")[2]
    assert key in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("value", [None, [], "x", 3, True])
def test_no_object_at_all_is_refused(value: Any) -> None:
    with pytest.raises(UsageError) as caught:
        SequenceConfig.from_json(value)
    assert caught.value.slug == "fuzz-config-wrong-type"


@pytest.mark.parametrize("name", ["batch_sizes", "seq_lengths", "hidden_dims"])
def test_empty_lists_of_sizes_matter_only_without_a_schema(name: str) -> None:
    config = changed(f"shape_options.{name}", [])
    assert getattr(SequenceConfig.from_json(config).shape_options, name) == ()
    config["op_schema"] = None
    with pytest.raises(UsageError, match=name) as caught:
        SequenceConfig.from_json(config)
    assert caught.value.slug == "fuzz-config-empty-list"


def test_the_later_of_two_dims_with_one_name_counts() -> None:
    dims = [{"name": "M", "candidates": [2]}, {"name": "M", "candidates": [7]}]
    config = SequenceConfig.from_json(changed("op_schema.dims", dims))
    case = case_at(config, ["a"], 0)
    assert case.inputs[0].shape == (7, 1)
    assert case.dims == (("M", 7),)


def test_a_schema_without_inputs_or_output() -> None:
    schema = {"name": "x", "dims": [], "inputs": []}
    config = SequenceConfig.from_json(changed("op_schema", schema))
    case = case_at(config, ["a"], 0)
    assert case.inputs[0].shape == representative_shape(config, case) == (1,)


def test_repeated_input_names_are_refused() -> None:
    with pytest.raises(UsageError) as caught:
        case_at(SequenceConfig(1), ["x", "y", "x"], 0)
    assert caught.value.slug == "duplicate-input-name"


def test_negative_cases_are_refused() -> None:
    with pytest.raises(ValueError, match="no case -1"):
        case_at(SequenceConfig(1), ["x"], -1)


def case_of(shape: tuple[int, ...], dtype: str, strategy: str = "uniform") -> Case:
    spec = InputSpec("x", shape, dtype, strategy=strategy)
    return Case(0, 77, dtype, "contiguous", strategy, (spec,))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e5m2", "bool", "int64"])
def test_shapes_of_tensors(dtype: str) -> None:
    for shape in [(), (0,), (3, 0, 2), (1,), (2, 3)]:
        array = tensors(case_of(shape, dtype))["x"]
        assert array.shape == shape
        assert array.flags.c_contiguous
        assert array.dtype.name == dtype


def test_bfloat16_is_half_precision_only_on_the_wire() -> None:
    case = case_of((500,), "bfloat16")
    halves = tensors(case_of((500,), "float16"))["x"]
    assert tensors(case)["x"].tobytes() == halves.tobytes()
    true = tensors(case, protocol_v1=False)["x"]
    singles = tensors(case_of((500,), "float32"))["x"]
    assert np.array_equal(true, singles.astype(ml_dtypes.bfloat16))


def test_position_names_the_stream() -> None:
    case = case_of((4,), "float64")
    (spec,) = case.inputs
    moved = Case(
        0, 77, "float64", "contiguous", "uniform", (InputSpec("x", (4,), "float64", position=5),)
    )
    assert not np.array_equal(tensors(case)["x"], tensors(moved)["x"])
    stream = SeededRng(77).derive("data").derive("input_5")
    assert tensors(moved)["x"].tolist() == stream.uniform10_f64(4).tolist()
    assert spec.position == 0


def test_tensors_too_large_are_refused_before_they_are_made() -> None:
    huge = case_of(((1 << 32) - 1,) * 8, "float64")
    with pytest.raises(UsageError) as caught:
        tensors(huge)
    assert caught.value.slug == "case-too-large"
    with pytest.raises(UsageError):
        tensors(case_of((5,), "float32"), max_bytes=19)
    assert tensors(case_of((5,), "float32"), max_bytes=20)["x"].shape == (5,)


def test_other_strategies_are_refused() -> None:
    with pytest.raises(UsageError) as caught:
        tensors(case_of((5,), "float32", "normal"))
    assert caught.value.slug == "not-a-uniform-case"
