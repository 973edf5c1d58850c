"""Detect results that depend on the order of blocks or warps, by further launches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gpuemu_flow.emulator.findings import CheckFinding
from gpuemu_flow.emulator.launch import Argument, BufferArgument, Kernel, LaunchResult
from gpuemu_flow.emulator.types import WARP, Array


def find_order_dependence(
    kernel: Kernel, grid: Sequence[int], block: Sequence[int], arguments: Sequence[Argument],
    result: LaunchResult, *, shared: int, budget: int, cluster: Sequence[int] = (),
) -> list[CheckFinding]:  # fmt: skip
    """Launch with blocks in reverse order, then with warps in reverse order; compare the buffers.

    Parameters
    ----------
    kernel : Kernel
    grid, block, arguments
        Grid, block and arguments of the launch that gave `result`.
    result : LaunchResult
    shared, budget : int
        Bytes of dynamic shared memory, and largest number of thread instructions per launch.
    cluster : sequence of int
        Cluster size of the same launch.

    Returns
    -------
    list of CheckFinding
        One for each order and each buffer that differs.
    """
    found: list[CheckFinding] = []
    count = int(np.prod(grid))
    if count > 1:
        again = kernel.launch(
            grid, block, arguments, shared=shared, checks=(), budget=budget,
            order=range(count - 1, -1, -1), backend="numpy", cluster=cluster,
        )  # fmt: skip
        found += _differences("blocks", kernel, arguments, result, again)
    if int(np.prod(block)) > WARP:
        again = kernel.launch(
            grid, block, arguments, shared=shared, checks=(), budget=budget,
            warps_reversed=True, backend="numpy", cluster=cluster,
        )  # fmt: skip
        found += _differences("warps", kernel, arguments, result, again)
    return found


def _differences(
    turned: str, kernel: Kernel, arguments: Sequence[Argument], result: LaunchResult,
    again: LaunchResult,
) -> Iterator[CheckFinding]:  # fmt: skip
    """Yield one finding for each buffer whose bits differ.

    `again` is the result of a second launch, in which `turned` (``blocks`` or ``warps``) ran in
    reverse order.
    """
    pairs = zip(kernel.parameters, arguments, result.buffers, again.buffers, strict=True)
    for parameter, argument, first, second in pairs:
        if first is None or second is None or first.tobytes() == second.tobytes():
            continue
        assert isinstance(argument, BufferArgument)
        name = argument.name or parameter.name
        at, differing = _difference(first, second)
        message = (
            f"leaves other bits in {name} when {turned} run in the opposite order: {differing:,} "
            f"of {first.size:,} elements, the first {name}[{at:,}]: {first.reshape(-1)[at]} and "
            f"{second.reshape(-1)[at]}"
        )
        zero = (0, 0, 0)
        place = kernel.program.place(0)
        rule = f"{turned.removesuffix('s')}-order"
        yield CheckFinding("order", rule, message, kernel.name, place, zero, zero, differing)


def _difference(first: Array, second: Array) -> tuple[int, int]:
    """Return the index of the first differing element, and the number of differing elements."""
    raw = [np.ascontiguousarray(x).view(np.uint8).reshape(x.size, -1) for x in (first, second)]
    places = np.flatnonzero((raw[0] != raw[1]).any(axis=1))
    return int(places[0]), len(places)
