"""Run those statements of a test that one comparison depends on, on the tensors of a case.

``gpuemu-flow import pytest`` copies this module into the workspace. The module needs numpy, and
torch or JAX if the test does, but nothing of gpuemu-flow.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np


class CallInputs:
    """Inputs of one call: torch tensors, JAX arrays or numpy arrays, as the test makes them."""

    def __init__(self, values: Mapping[str, Any], libraries: Mapping[str, str], main: str) -> None:
        self._values = {
            name: _taken(value, libraries.get(name, "")) for name, value in values.items()
        }
        self._main = main

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def size(self, name: str, axis: int, factor: int = 1) -> int:
        """Return the size of one axis of an input, divided by `factor`."""
        return int(self._values[name].shape[axis]) // factor

    @property
    def dtype(self) -> Any:
        """Return the dtype of the case, as a dtype of the test's library."""
        return self._values[self._main].dtype

    def seed(self, number: int) -> None:
        """Seed the random generators of Python, numpy and, if it is loaded, torch."""
        random.seed(number)
        np.random.seed(number)
        if "torch" in sys.modules:
            sys.modules["torch"].manual_seed(number)


def function(
    run: Callable[[CallInputs], Any], libraries: Mapping[str, str], main: str, *, gpu: bool
) -> Callable[..., Any]:
    """Make the function that runs a test's statements and returns the compared value.

    Parameters
    ----------
    libraries : mapping of str to str
        Maps the name of each input to ``torch``, ``numpy`` or ``jax``.
    main : str
        The input that has the dtype of the case.
    gpu : bool
        True to run GPU code on the CPU. False under Triton's interpreter, which already does this.
    """

    def called(all_inputs: Mapping[str, Any]) -> Any:
        with _here(gpu):
            return _plain(run(CallInputs(all_inputs, libraries, main)))

    return called


def _here(gpu: bool) -> Any:
    if not gpu:
        return nullcontext()
    from adapters.stand_in import on_cpu  # noqa: PLC0415

    return on_cpu()


def _taken(value: Any, library: str) -> Any:
    if library == "torch":
        from adapters.tensors import as_tensor  # noqa: PLC0415

        return as_tensor(value)
    if library and not isinstance(value, np.ndarray):
        from adapters.tensors import as_array  # noqa: PLC0415

        value = as_array(value)
    if library == "jax":
        import jax.numpy as jnp  # noqa: PLC0415

        return jnp.asarray(value)
    return np.array(value) if library == "numpy" else value


def _plain(value: Any) -> Any:
    """Detach torch tensors from autograd, and convert JAX arrays to numpy, also inside tuples."""
    if isinstance(value, (tuple, list)):
        return tuple(_plain(one) for one in value)
    if hasattr(value, "detach"):
        return value.detach()
    return np.asarray(value) if type(value).__module__.startswith("jax") else value
