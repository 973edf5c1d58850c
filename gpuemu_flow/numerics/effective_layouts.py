"""The layout that a tensor of some shape really gets, determined without numpy."""

from __future__ import annotations

from gpuemu_flow.types import Shape

LEAST_RANKS = {"padded": 2, "permuted": 3}
"""Number of dims that a tensor needs for some layouts; with fewer dims, it gets another layout."""


def effective_layout(layout: str, shape: Shape) -> str:
    """Return the layout that a tensor of `shape` really has when `layout` is asked for.

    Raises ValueError when there is no such layout.
    """
    if layout == "transposed" and (len(shape) < 2 or min(shape[-2:]) < 2):
        layout = "strided"
    if layout == "permuted" and (len(shape) < 3 or min(shape[-3:-1]) < 2):
        layout = "padded"
    if layout == "padded" and not any(size > 1 for size in shape[:-1]):
        layout = "strided"
    if layout == "strided":
        return "strided" if any(size > 1 for size in shape) else "contiguous"
    if layout == "expanded":
        return "expanded" if any(size > 1 for size in shape) else "contiguous"
    if layout not in ("contiguous", "transposed", "offset", "padded", "permuted"):
        raise ValueError(f"there is no layout {layout!r}")
    return layout
