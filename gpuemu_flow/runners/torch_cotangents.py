"""Lay out the cotangents of a backward pass of PyTorch in memory, and detect writes to them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from gpuemu_flow.numerics.layouts import describe, place
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import LAYOUTS, Failure, FailureKind

_UNLIKE_C_ORDER = [name for name in LAYOUTS if name not in ("contiguous", "offset", "expanded")]


def layout_of_case(arrays: Iterable[np.ndarray]) -> str:
    """Return the layout of the first input that is not in C order, else ``contiguous``."""
    for array in arrays:
        strides = tuple(step // array.itemsize for step in array.strides)
        if array.flags.c_contiguous:
            continue
        for layout in _UNLIKE_C_ORDER:
            if describe(layout, array.shape) == strides:
                return layout
    return "contiguous"


@dataclass(frozen=True)
class LaidCotangent:
    """The cotangent of one output, in some layout; the memory around its elements is NaN."""

    name: str
    tensor: Any
    memory: Any
    before: Any

    @classmethod
    def of(cls, torch: Any, name: str, values: Any, layout: str) -> LaidCotangent:
        """Make a cotangent that holds `values` in a layout."""
        shape = tuple(values.shape)
        where = place(layout, shape, 1)
        memory = torch.full((where.nbytes,), float("nan"), dtype=values.dtype)
        tensor = memory.as_strided(shape, describe(layout, shape), where.offset)
        tensor.copy_(values)
        return cls(name, tensor, memory, memory.clone())

    def failures(self, torch: Any) -> list[Failure]:
        """Return a failure if the backward pass wrote to `memory`, else an empty list."""
        if torch.equal(self.memory.view(torch.uint8), self.before.view(torch.uint8)):
            return []
        message = (
            f"the backward pass wrote to the gradient of {self.name!r} that it was given, which "
            "other backward passes read, too"
        )
        return [Failure(FailureKind.INPUT_MODIFIED, message, self.name)]
