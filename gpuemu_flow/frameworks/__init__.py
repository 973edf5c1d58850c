"""Adapters for PyTorch, JAX, TensorFlow and Triton; each is imported when it is first used."""

from __future__ import annotations

TYPE_CHECKING = False  # importing it from typing would cost every process
if TYPE_CHECKING:
    from gpuemu_flow.frameworks.base import FrameworkAdapter as BaseAdapter
    from gpuemu_flow.frameworks.jax import JAXAdapter as JaxAdapter

__all__ = [
    "BaseAdapter",
    "JaxAdapter",
    "get_jax_adapter",
    "get_pytorch_adapter",
    "get_tensorflow_adapter",
]


def __getattr__(name: str) -> object:
    """Import and return an adapter's class by its documented name."""
    if name == "BaseAdapter":
        return _names("base", "FrameworkAdapter")[0]
    if name == "JaxAdapter":
        return _names("jax", "JAXAdapter")[0]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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
