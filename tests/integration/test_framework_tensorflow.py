"""TensorFlow: gradients, tf.function, XLA and Keras layers; skipped where it is not installed."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.ci

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
tf = pytest.importorskip("tensorflow", reason="no tensorflow")

from gpuemu_flow.client import ValidationError  # noqa: E402
from gpuemu_flow.frameworks import tensorflow as adapters  # noqa: E402

ADAPTER = adapters.TensorFlowAdapter()


def normal(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@tf.custom_gradient  # type: ignore[untyped-decorator]
def wrong(x: Any) -> Any:
    """x squared, with the gradient x."""
    return x * x, lambda upstream: x * upstream


def test_tensors_there_and_back() -> None:
    for dtype in ("float16", "bfloat16", "float32", "int32", "bool"):
        made = tf.cast(tf.constant([[0, 1, 2]]), dtype)
        assert ADAPTER.get_dtype_name(made) == dtype
        assert ADAPTER.get_dtype_name(ADAPTER.from_numpy(ADAPTER.to_numpy(made))) == dtype
    assert ADAPTER.requires_grad(tf.Variable(1.0)) and not ADAPTER.requires_grad(tf.constant(1.0))


def test_gradients() -> None:
    x = normal(3)
    assert adapters.validate_custom_gradient(lambda x: x * x, None, {"x": x})
    found = adapters.validate_custom_gradient(wrong, None, {"x": x})
    assert not found and found.details == {"gradient_ok": False}
    assert adapters.validate_custom_gradient(lambda x: x * x, lambda g, x: 2 * g * x, {"x": x})
    assert not adapters.validate_custom_gradient(lambda x: x * x, lambda g, x: g * x, {"x": x})


def test_compiled() -> None:
    x = normal(3, 4)
    for check in (adapters.check_tf_function_safe, adapters.check_xla_compatible):
        assert check(tf.nn.softmax, {"logits": x})
        assert not check(lambda x: x if x.numpy().sum() else -x, {"x": x})


def test_validation_without_a_daemon() -> None:
    x = normal(3, 4)
    assert adapters.validate_tensorflow(
        lambda x: x * x, lambda x: x * x, {"x": x}, check_gradient=True
    )
    with pytest.raises(ValidationError):
        adapters.validate_tensorflow(wrong, lambda x: x * x, {"x": x}, check_gradient=True)
    validating = adapters.validate_tensorflow("f", {"x": x}, ref_fn=lambda x: x * 2)
    with validating as context, context["tape"]:
        context["output"] = context["inputs"]["x"] * 2
    assert context.result.passed


def test_layers_and_fuzzing() -> None:
    layer = tf.keras.layers.Dense(3, activation="tanh")
    assert adapters.check_keras_layer(layer, (2, 4), check_training_mode=True)
    options: dict[str, Any] = {
        "ref_fn": lambda x: x * x, "iterations": 3, "seed": 3, "names": ["x"],
        "batch_sizes": [2], "seq_lengths": [3], "hidden_dims": [4], "dtypes": ["float32"],
    }  # fmt: skip
    assert adapters.fuzz_tensorflow_op(
        None, "f", lambda x: x * x, check_gradient=True, check_xla=True, **options
    )
    found = adapters.fuzz_tensorflow_op(None, "f", wrong, check_gradient=True, **options)
    assert found.failed == len(found.gradient_failures) == 3
