"""JAX: checks of jit, vmap, pmap and gradients find planted bugs, with a daemon and without one."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import numpy as np
import pytest
from daemon_workspace import Served

if importlib.util.find_spec("jax") is None:
    pytest.skip("no jax", allow_module_level=True)
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp

from gpuemu_flow.client import ValidationError
from gpuemu_flow.frameworks import jax as adapters
from gpuemu_flow.numerics.dtypes import numpy_dtype

pytestmark = pytest.mark.ci

ADAPTER = adapters.JAXAdapter()


def softmax(x: Any) -> Any:
    return jax.nn.softmax(x, axis=-1)


def normal(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@jax.custom_vjp
def wrong(x: Any) -> Any:
    """x squared, with the gradient x."""
    return x * x


wrong.defvjp(lambda x: (x * x, x), lambda x, upstream: (x * upstream,))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int32", "bool"])
def test_arrays_there_and_back(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(numpy_dtype(dtype)).T
    made = ADAPTER.from_numpy(array)
    assert ADAPTER.get_dtype_name(made) == dtype
    np.testing.assert_array_equal(ADAPTER.to_numpy(made), array)
    assert ADAPTER.requires_grad(made) == ("float" in dtype)
    assert ADAPTER.from_numpy(np.ones(2), made).dtype == made.dtype
    assert ADAPTER.get_dtype_name(ADAPTER.from_numpy(np.ones(2), "bfloat16")) == "bfloat16"


def test_gradients() -> None:
    x = jnp.asarray(normal(3))
    assert jnp.allclose(ADAPTER.compute_gradient(lambda x, n: x**n, {"x": x, "n": 2})["x"], 2 * x)
    (second,) = ADAPTER.compute_gradient(lambda x, y: x * y, [x, x + 1], argnums=1)
    assert jnp.allclose(second, x)


def test_jit() -> None:
    x = normal(3, 4)
    assert adapters.check_jit_safe(softmax, {"x": x})
    assert adapters.check_jit_safe(jax.nn.softmax, {"x": x, "axis": -1})
    found = adapters.check_jit_safe(lambda x: x if float(x.sum()) > 0 else -x, {"x": x})
    assert not found and "ConcretizationTypeError" in found.message
    calls: list[int] = []

    def impure(x: Any) -> Any:
        calls.append(1)
        return x * len(calls)

    assert not adapters.check_jit_safe(impure, {"x": x})


def test_vmap() -> None:
    x = normal(3, 4)
    assert adapters.check_vmap_compatible(softmax, {"x": x})
    assert adapters.check_vmap_compatible(lambda x, y: x @ y, (x, normal(3, 4)))
    assert adapters.check_vmap_compatible(softmax, {"x": x}, batch_axis=1)
    assert adapters.check_vmap_compatible(softmax, {"x": x[:1]}).message.endswith("shows nothing")
    found = adapters.check_vmap_compatible(lambda x: x if x[0] > 0 else -x, {"x": x})
    assert not found
    found = adapters.check_vmap_compatible(lambda x, y: x, {"x": x, "y": normal(2, 4)})
    assert "batches of sizes [2, 3]" in found.message

    @jax.custom_batching.custom_vmap
    def unbatched(x: Any) -> Any:
        return x - x.mean()

    @unbatched.def_vmap
    def rule(axis_size: int, in_batched: Any, x: Any) -> Any:
        return x - x.mean(), True  # the mean of the whole batch

    assert not adapters.check_vmap_compatible(unbatched, {"x": x})


def test_pmap() -> None:
    x = normal(3, 4)
    assert adapters.check_pmap_compatible(softmax, {"x": x}, num_devices=1)
    assert not adapters.check_pmap_compatible(lambda x: x if x.sum() > 0 else -x, {"x": x})


def test_gradient_checks() -> None:
    x = normal(3, 4)
    assert adapters.check_grad_safe(softmax, {"x": x})
    assert not adapters.check_grad_safe(lambda x: jnp.sqrt(jnp.abs(x) * 0), {"x": x})
    assert adapters.check_grad_safe(lambda x, y: x * y, (x, x), argnums=(0, 1))
    assert adapters.check_grad_safe(wrong, {"x": x})  # finite, and no more is asked
    assert not adapters.check_grad_safe(wrong, {"x": x}, eps=1e-4)
    assert adapters.check_gradients(softmax, {"x": x})
    assert adapters.check_gradients(jnp.matmul, (normal(2, 3), normal(3, 2)))
    assert "the gradient by 'x'" in adapters.check_gradients(wrong, {"x": x}).message
    assert "TypeError" in adapters.check_gradients(lambda x, y: x, {"x": x}).message
    assert not jax.config.jax_enable_x64


def test_primitives() -> None:
    x = normal(3, 4)
    powers = np.exp(x)
    expected = powers / powers.sum(-1, keepdims=True)
    found = adapters.validate_jax_primitive("softmax", softmax, {"x": x}, expected)
    assert found and found.details == {"forward_ok": True, "jvp_ok": True, "vmap_ok": True}
    found = adapters.validate_jax_primitive("softmax", softmax, {"x": x}, x)
    assert found.details == {"forward_ok": False, "jvp_ok": True, "vmap_ok": True}
    found = adapters.validate_jax_primitive("square", wrong, {"x": x}, x * x)
    assert not found.details["jvp_ok"]  # it defines no forward mode
    assert adapters.validate_jax_primitive("square", wrong, {"x": x}, x * x, check_jvp=False)


def test_validation_without_a_daemon() -> None:
    x = normal(3, 4)
    inputs = {"x": x, "axis": -1}
    assert adapters.validate_jax(jax.nn.softmax, jax.nn.softmax, inputs, check_backward=True)
    with pytest.raises(ValidationError, match="gradient by x"):
        adapters.validate_jax(wrong, lambda x: x * x, {"x": x}, check_backward=True)
    with pytest.raises(ValidationError):
        adapters.validate_jax(lambda x: x, softmax, {"x": x})
    with adapters.validate_jax("softmax", {"x": x}, ref_fn=softmax) as context:
        context["output"] = softmax(context["inputs"]["x"])
    assert context.result.passed


def test_validation_by_the_daemon(daemon: Served) -> None:
    x = jnp.asarray(normal(3, 4))
    with daemon.client() as client:
        with adapters.validate_jax(client, "softmax", {"x": x}) as context:
            context["output"] = softmax(x)
        assert context.result.passed
        with adapters.validate_jax(client, "softmax", {"x": x}, atol=0.05) as context:
            context["output"] = softmax(x) + 0.01
        # On a CPU, JAX rounds each step of a float16 softmax to float16: `input` allows for that.
        options: dict[str, Any] = {
            "iterations": 4, "seed": 5, "dtypes": ["float16", "float32"], "precision": "input",
        }  # fmt: skip
        found = adapters.fuzz_jax_op(client, "softmax", softmax, **options)
        assert found.passed == 4, dict(found)
        found = adapters.fuzz_jax_op(client, "softmax", lambda x: x, **options)
        assert found.failed == len(found.forward_failures) > 0
        found = adapters.fuzz_jax_op(client, "softmax", lambda x: softmax(x) * 1.01, **options)
        assert found.failed == 4
        # The configured precision, tensor-core, promises that such an op adds in float32.
        options = {**options, "dtypes": ["float16"], "precision": None}
        found = adapters.fuzz_jax_op(client, "softmax", softmax, **options)
        assert found.failed > 0, dict(found)


def test_fuzzing_with_checks() -> None:
    options: dict[str, Any] = {
        "ref_fn": lambda x: x * x, "iterations": 4, "seed": 3, "names": ["x"],
        "batch_sizes": [2], "seq_lengths": [3], "hidden_dims": [4], "edge_cases": [],
        "check_vmap": True, "check_jit": True, "max_elements": 4,
    }  # fmt: skip
    found = adapters.fuzz_jax_op(None, "f", lambda x: x * x, check_grad=True, **options)
    assert found and found.passed == 4, dict(found)
    found = adapters.fuzz_jax_op(None, "f", wrong, check_grad=True, **options)
    assert found.failed == len(found.grad_failures) == 4
    assert not found.jit_failures and not found.forward_failures
    found = adapters.fuzz_jax_op(None, "f", lambda x: x * x if x.sum() else x, **options)
    assert found.failed == len(found.jit_failures) == len(found.vmap_failures) == 4
