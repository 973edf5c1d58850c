"""The documented names of validation and fuzzing in one place; the module itself can be called.

``from gpuemu_flow import validate`` gives an object that is both the module and the function
`validate`.
"""
# ruff: noqa: F405

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from gpuemu_flow.client.api import Client
from gpuemu_flow.client.context import ValidationContext, validate_op
from gpuemu_flow.client.results import FuzzResults, NoOutputError, ReproduceResult, ValidationError
from gpuemu_flow.frameworks.pytorch import validate_model
from gpuemu_flow.fuzzing import *  # noqa: F403

__all__ = [
    "FuzzConfig",
    "NoOutputError",
    "SeededFuzzer",
    "TestCase",
    "ValidationContext",
    "ValidationError",
    "fuzz_dtypes",
    "fuzz_dtypes_seeded",
    "fuzz_layouts",
    "fuzz_layouts_seeded",
    "fuzz_op",
    "fuzz_shapes",
    "fuzz_shapes_seeded",
    "generate_random_tensor",
    "reproduce",
    "validate",
    "validate_op",
]


@contextmanager
def validate(
    client: Any = None,
    model: Any = None,
    reference: str = "cpu",
    dtype: str | None = None,
    reference_dtype: str | None = None,
    raise_on_failure: bool = True,
) -> Iterator[Any]:
    """Validate every layer of a PyTorch model when the model is called in the context.

    `client` may be left out, since no daemon is needed: ``with validate(model) as context:
    model(x)``. See `frameworks.pytorch.validate_model`.
    """
    if model is None:
        client, model = None, client
    with validate_model(
        model,
        device=reference,
        dtype=dtype,
        reference_dtype=reference_dtype or "float64",
        raise_on_failure=raise_on_failure,
    ) as context:
        yield context


def fuzz_op(op: str, iterations: int = 100, seed: int | None = None, **options: Any) -> FuzzResults:
    """Fuzz an op through the workspace's daemon; `options` are those of `Client.fuzz_op`."""
    with Client() as client:
        return client.fuzz_op(op, seed=seed, iterations=iterations, **options)


def reproduce(seed: int, *, rerun: bool = False) -> ReproduceResult:
    """Return a recorded failure and its exact inputs; see `Client.reproduce`."""
    with Client() as client:
        return client.reproduce(seed, rerun=rerun)


class _CallableModule(ModuleType):
    """Class of this module, which makes `gpuemu_flow.validate` both a module and a function."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return validate(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
