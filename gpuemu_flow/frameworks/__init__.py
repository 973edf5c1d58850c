"""Adapters for PyTorch, JAX, TensorFlow and Triton; each is imported when it is first used."""

from __future__ import annotations


def _names(module: str, *names: str) -> tuple[object, ...]:
    found = __import__(f"{__name__}.{module}", fromlist=names)
    return tuple(getattr(found, name) for name in names)


def get_pytorch_adapter() -> tuple[object, ...]:
    """Return PyTorchAdapter, validate_pytorch, check_autograd, fuzz_pytorch_op."""
    return _names(
        "pytorch", "PyTorchAdapter", "validate_pytorch", "check_autograd", "fuzz_pytorch_op"
    )


def get_jax_adapter() -> tuple[object, ...]:
    """Return JAXAdapter, validate_jax, check_vmap_compatible, check_jit_safe, fuzz_jax_op."""
    return _names(
        "jax", "JAXAdapter", "validate_jax", "check_vmap_compatible", "check_jit_safe",
        "fuzz_jax_op",
    )  # fmt: skip


def get_tensorflow_adapter() -> tuple[object, ...]:
    """Return TensorFlowAdapter, validate_tensorflow, check_keras_layer, fuzz_tensorflow_op."""
    return _names(
        "tensorflow", "TensorFlowAdapter", "validate_tensorflow", "check_keras_layer",
        "fuzz_tensorflow_op",
    )  # fmt: skip
