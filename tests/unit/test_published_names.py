"""Every documented name of the Python API, called by position and by keyword as its page says."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import numpy as np
import pytest
from for_each import for_each

import gpuemu_flow
from gpuemu_flow import (
    Client,
    ConnectionError,  # noqa: A004 - the documented name
    FuzzConfig,
    SeededFuzzer,
    ToleranceConfig,
    ToleranceProfile,
)
from gpuemu_flow.client import calls
from gpuemu_flow.client.results import ClientError

SIGNATURES = {
    "validate_op": "op_name inputs output dtype seed",
    "submit_output": "op_name inputs output seed",
    "minimize": "seed strategy max_iters",
    "reproduce": "seed",
    "fuzz_op": "op_name seed iterations fail_fast batch_sizes seq_lengths hidden_dims dtypes",
    "get_test_case": "op_name seed",
    "get_test_batch": "op_name count seed op_schema dtypes",
    "fuzz_op_client_side": "op_name run_op iterations seed fail_fast op_schema dtypes",
    "get_result": "seed",
    "list_results": "limit",
    "list_failures": "limit",
    "store_baseline": "tag",
    "lint_kernel": "ptx_content kernel_name",
    "ping": "",
    "close": "",
}  # fmt: skip
TOP_LEVEL = [
    "Client",
    "GpuemuClient",
    "ClientError",
    "ConnectionError",
    "ValidationResult",
    "ReproductionInfo",
    "FuzzResults",
    "MinimizeResult",
    "ReproduceResult",
    "SeededRng",
    "derive_seed",
    "generate_seed",
    "validate",
    "validate_op",
    "ValidationError",
    "fuzz_shapes",
    "fuzz_dtypes",
    "fuzz_layouts",
    "fuzz_shapes_seeded",
    "fuzz_dtypes_seeded",
    "fuzz_layouts_seeded",
    "FuzzConfig",
    "SeededFuzzer",
    "generate_random_tensor",
    "ToleranceConfig",
    "ToleranceProfile",
    "calibrate_tolerance",
    "get_recommended_tolerance",
    "get_pytorch_adapter",
    "get_jax_adapter",
    "get_tensorflow_adapter",
    "BaseAdapter",
    "JaxAdapter",
]


@for_each("name", TOP_LEVEL)
def test_a_top_level_name_is_there_and_can_be_called(name: str) -> None:
    assert callable(getattr(gpuemu_flow, name))


def test_names_of_the_package_are_listed() -> None:
    assert {*TOP_LEVEL} - {"validate"} <= set(gpuemu_flow.__all__) <= set(dir(gpuemu_flow))
    for name in gpuemu_flow.__all__:
        assert getattr(gpuemu_flow, name)


@for_each("name", SIGNATURES)
def test_a_method_of_the_client_takes_its_arguments_both_ways(name: str) -> None:
    signature = inspect.signature(getattr(Client, name))
    wanted = SIGNATURES[name].split()
    values: dict[str, Any] = {key: object() for key in wanted}
    found = [signature.bind(None, **values).arguments]
    if "given" not in signature.parameters:  # test_client_calls tries those of `fuzz_op`
        found.append(signature.bind(None, *values.values()).arguments)
    for arguments in found:
        assert {key: arguments[key] for key in wanted} == values


def test_a_daemon_that_does_not_answer_is_a_connection_error() -> None:
    assert gpuemu_flow.GpuemuClient is Client
    assert issubclass(ConnectionError, gpuemu_flow.ClientError)
    assert inspect.signature(Client.minimize).parameters["strategy"].default is None


def test_an_output_that_is_missing_is_named() -> None:
    with pytest.raises(ClientError) as raised:
        calls.validate("softmax", {}, None, {}, seed=None, dtype=None)
    assert raised.value.slug == "client-no-output"


def test_validate_is_a_module_with_functions() -> None:
    from gpuemu_flow import validate

    assert list(inspect.signature(validate.fuzz_op).parameters)[:3] == ["op", "iterations", "seed"]
    assert next(iter(inspect.signature(validate.reproduce).parameters)) == "seed"
    assert gpuemu_flow.validate is validate


def test_tolerances_have_the_documented_numbers() -> None:
    assert ToleranceConfig.strict() == ToleranceConfig(1e-7, 1e-7)
    assert ToleranceConfig.relaxed() == ToleranceConfig(atol=1e-3, rtol=1e-3)
    assert ToleranceConfig.strict("float16") == ToleranceConfig(1e-4, 1e-3)
    assert ToleranceConfig.strict(dtype="float32") == ToleranceConfig(1e-6, 1e-5)
    assert ToleranceConfig.relaxed("bfloat16") == ToleranceConfig(5e-2, 5e-1)
    assert ToleranceProfile.get("testing").get("float32") == ToleranceConfig(1e-5, 1e-4)
    assert ToleranceProfile.for_testing().get("float16") == ToleranceConfig(1e-3, 1e-2)
    assert (ToleranceProfile.for_testing().atol, ToleranceProfile.for_testing().rtol) == (
        1e-5,
        1e-4,
    )
    assert ToleranceProfile.get("cross_framework").get("float32").atol > 1e-5
    assert ToleranceProfile.for_production().get("float64") == ToleranceConfig(1e-12, 1e-11)
    across = ToleranceProfile.for_cross_framework("pytorch", "jax").get("float32")
    assert across.atol == pytest.approx(2.25e-5)
    assert gpuemu_flow.get_recommended_tolerance("softmax", dtype="float32")["atol"] > 0


def test_a_fuzz_config_takes_iterations_and_a_seed() -> None:
    config = FuzzConfig(10, 5)
    assert (config.iterations, config.seed, config.limits) == (10, 5, None)
    assert len(list(SeededFuzzer(config).iterator(3))) == 3
    within = FuzzConfig(10, 5, 1, 2, 3, 4)
    assert within.limits == {"min_dims": 1, "max_dims": 2, "min_size": 3, "max_size": 4}
    assert within.dtypes == FuzzConfig().dtypes
    by_name = FuzzConfig(iterations=10, seed=5)
    assert (by_name.iterations, by_name.seed) == (10, 5)
    assert FuzzConfig(seed=5, batch_sizes=[2]).batch_sizes == [2]


def test_shapes_and_dtypes() -> None:
    for shape in itertools.islice(gpuemu_flow.fuzz_shapes(1, 4, 1, 1024), 50):
        assert 1 <= len(shape) <= 4
        assert all(1 <= size <= 1024 for size in shape)
    by_name = gpuemu_flow.fuzz_shapes(min_dims=2, max_dims=2, min_size=3, max_size=3)
    assert next(by_name) == (3, 3)
    assert list(gpuemu_flow.fuzz_shapes(batch=[1, 2], hidden=[3])) == [(1, 3), (2, 3)]
    with pytest.raises(TypeError, match="twice"):
        next(gpuemu_flow.fuzz_shapes(1, min_dims=2))
    with pytest.raises(TypeError, match="4 limits"):
        next(gpuemu_flow.fuzz_shapes(1, 2, 3, 4, 5))
    seed, shape = next(gpuemu_flow.fuzz_shapes_seeded(42, batch_sizes=[2]))
    assert seed and shape
    assert next(gpuemu_flow.fuzz_dtypes_seeded(42, ["float16"]))[1] == "float16"
    assert next(gpuemu_flow.fuzz_dtypes_seeded(42, include=["float64"]))[1] == "float64"
    seed, shape = next(gpuemu_flow.fuzz_shapes_seeded(42, min_dims=2, max_dims=2, max_size=4))
    assert (seed, len(shape)) == (next(gpuemu_flow.fuzz_shapes_seeded(42))[0], 2)
    assert max(shape) <= 4
    assert next(gpuemu_flow.fuzz_dtypes_seeded(seed=42, dtypes=["int8"]))[1] == "int8"


def test_the_layout_channels_last_has_its_strides() -> None:
    _, name, shape, strides = next(
        gpuemu_flow.fuzz_layouts_seeded(1, (2, 3, 4, 5), ["channels_last"])
    )
    assert (name, shape, strides) == ("channels_last", (2, 3, 4, 5), (60, 1, 15, 3))


class Numpy(gpuemu_flow.BaseAdapter):
    """The smallest adapter there can be."""

    def to_numpy(self, tensor: Any) -> Any:
        return np.asarray(tensor)

    def from_numpy(self, array: Any, like: Any = None) -> Any:
        return array.tolist()

    def get_dtype_name(self, tensor: Any) -> str:
        return "float32"

    def requires_grad(self, tensor: Any, requires: bool | None = None) -> Any:
        return False

    def compute_gradient(self, *args: Any, **kwargs: Any) -> Any: ...

    def pullback(self, function: Any, arrays: Any, names: Any) -> Any: ...


def test_an_adapter_gives_and_takes_tensor_data() -> None:
    data = Numpy().to_tensor_data(np.array([[1.0, 2.0]], np.float32))
    assert (data["shape"], data["dtype"]) == ([1, 2], "float32")
    assert isinstance(data["data"], str)
    assert Numpy().from_tensor_data(data) == [[1.0, 2.0]]
    assert Numpy().from_tensor_data(data=data, like=None) == [[1.0, 2.0]]
    with pytest.raises(Exception, match="tensor"):
        Numpy().from_tensor_data({"shape": [9], "dtype": "float32", "data": "AAAA"})
