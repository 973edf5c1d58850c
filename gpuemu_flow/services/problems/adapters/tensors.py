"""Convert inputs to torch tensors; flatten structures of tensors, and rebuild them.

``gpuemu-flow import`` copies this module into the workspace. The module needs numpy and torch, but
nothing of gpuemu-flow.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import torch

MOST_LEAVES = 64
_BY_BITS = {
    "bfloat16": (np.int16, torch.bfloat16),
    "float8_e4m3fn": (np.uint8, torch.float8_e4m3fn),
    "float8_e5m2": (np.uint8, torch.float8_e5m2),
}
"""Dtypes that numpy gets from another package, and that have the same bits in torch."""
AS_BYTES = ("float4_e2m1fn_x2", "float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz")
"""Dtypes of one byte that no array has: their tensors travel as ``uint8``."""


def as_tensor(value: Any, device: str = "cpu") -> Any:
    """Copy an array or a tensor to a tensor of the same dtype; return other values unchanged."""
    if isinstance(value, torch.Tensor):
        return value.clone().to(device)
    if not isinstance(value, np.ndarray):
        return value
    array = np.array(value, order="C")
    found = _BY_BITS.get(array.dtype.name)
    if found is not None:
        words, dtype = found
        return torch.from_numpy(array.view(words)).view(dtype).to(device)
    return torch.from_numpy(array).to(device)


def as_array(tensor: Any) -> Any:
    """Return a tensor's values as an array of the same dtype."""
    tensor = tensor.detach().cpu().contiguous()
    name = str(tensor.dtype).removeprefix("torch.")
    if name in AS_BYTES:
        return tensor.view(torch.uint8).numpy()
    if name not in _BY_BITS:
        return tensor.numpy()
    import ml_dtypes  # noqa: PLC0415 - only these dtypes need it

    words = torch.int16 if _BY_BITS[name][0] is np.int16 else torch.uint8
    return tensor.view(words).numpy().view(getattr(ml_dtypes, name))


def leaves(value: Any) -> list[Any]:
    """Return the leaves of nested tuples, lists and mappings, in order."""
    if isinstance(value, Mapping):
        return [leaf for one in value.values() for leaf in leaves(one)]
    if isinstance(value, (tuple, list)):
        return [leaf for one in value for leaf in leaves(one)]
    return [value]


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a copy of a structure in which ``change(leaf)`` replaces each leaf."""
    if isinstance(value, Mapping):
        return {key: mapped(one, change) for key, one in value.items()}
    if isinstance(value, (tuple, list)):
        parts = [mapped(one, change) for one in value]
        if hasattr(value, "_fields"):
            return type(value)(*parts)
        return tuple(parts) if isinstance(value, tuple) else parts
    return change(value)


def copied(value: Any) -> Any:
    """Return a copy of a structure and what it holds; a tensor that occurs twice is copied once."""
    known: dict[int, Any] = {}

    def copy(one: Any) -> Any:
        if not isinstance(one, torch.Tensor):
            return deepcopy(one)
        return known.setdefault(id(one), one.clone())

    return mapped(value, copy)


def outputs_of(returned: Any) -> Any:
    """Return the tensors in a returned value: one as it is, several as a tuple.

    A value without tensors is returned unchanged.
    """
    found = [one for one in leaves(returned) if isinstance(one, torch.Tensor)]
    if not found:
        return returned
    return found[0] if len(found) == 1 else tuple(found)


def seed_all(seed: int) -> None:
    """Seed the random generators of torch, numpy and Python."""
    torch.manual_seed(seed)
    np.random.seed(seed % (1 << 32))
    random.seed(seed)
