"""Thread block clusters: which blocks run together, and how they address each other's memory.

An address of shared memory holds an offset in its low 24 bits. The higher bits are 0 for the memory
of the block that uses the address; otherwise they are one more than the rank of the addressed block
in the cluster.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from gpuemu_flow.emulator.errors import bad_launch
from gpuemu_flow.emulator.ir import KernelProgram
from gpuemu_flow.emulator.types import Array
from gpuemu_flow.lint.ptx.model import Function

Dimensions = tuple[int, int, int]

ALONE: Dimensions = (1, 1, 1)
MAX_CLUSTER = 16
"""Largest number of blocks of a cluster; on a GPU, a kernel must allow more than 8."""

RANK_AT = 24
OFFSET = (1 << RANK_AT) - 1

_REQUIRED = re.compile(r"\.reqnctapercluster\s+(\d{1,9}(?:\s*,\s*\d{1,9}){0,2})", re.ASCII)
_MOST = re.compile(r"\.maxclusterrank\s+(\d{1,9})", re.ASCII)


def required_cluster(function: Function) -> Dimensions | None:
    """Return the cluster size that a kernel was compiled for; None if the launch sets it."""
    match = _REQUIRED.search(function.header)
    if match is None:
        return None
    numbers = [int(n) for n in match.group(1).split(",")]
    x, y, z = (*numbers, 1, 1)[:3]
    return (x, y, z) if x * y * z else None


def largest_cluster(function: Function) -> int:
    match = _MOST.search(function.header)
    return MAX_CLUSTER if match is None else min(MAX_CLUSTER, int(match.group(1)))


def size_of(cluster: Dimensions) -> int:
    return cluster[0] * cluster[1] * cluster[2]


def block_indices(blocks: Array, grid: Dimensions) -> tuple[Array, Array, Array]:
    """Return the x, y and z indices of blocks as three arrays, from their linear numbers."""
    x, y, _ = grid
    return blocks % x, blocks // x % y, blocks // (x * y)


def ranks(blocks: Array, grid: Dimensions, cluster: Dimensions) -> Array:
    """Return the rank that each block, given by linear number, has in its cluster."""
    i, j, k = block_indices(blocks, grid)
    cx, cy, cz = cluster
    found: Array = i % cx + cx * (j % cy + cy * (k % cz))
    return found


def cluster_numbers(blocks: Array, grid: Dimensions, cluster: Dimensions) -> Array:
    """Return the linear number of the cluster of each block."""
    i, j, k = block_indices(blocks, grid)
    cx, cy, cz = cluster
    found: Array = i // cx + grid[0] // cx * (j // cy + grid[1] // cy * (k // cz))
    return found


def together(ids: Array, grid: Dimensions, cluster: Dimensions) -> Array:
    """Sort the numbers of blocks so that the blocks of each cluster are adjacent. Clusters are
    ordered by their first blocks. Within a cluster, blocks keep their order."""
    if size_of(cluster) == 1:
        return ids
    blocks = grid[0] * grid[1] * grid[2]
    number = cluster_numbers(ids % blocks, grid, cluster) + ids // blocks * blocks
    _, first, group = np.unique(number, return_index=True, return_inverse=True)
    found: Array = ids[np.argsort(first[group], kind="stable")]
    return found


# ``barrier.cluster`` of one batch: threads wait until all threads of the cluster have arrived.


class WaitResult(Struct, frozen=True):
    """Masks of the threads that need not wait, and of those that wait without having arrived."""

    passed: Array
    absent: Array


class ClusterBarriers:
    """Phases of the barriers of all clusters of one batch."""

    def __init__(self, shape: tuple[int, ...], size: int) -> None:
        self._size = size
        self._arrived = np.zeros(shape, bool)
        self._through = np.zeros(shape, bool)
        self.waiting = np.zeros(shape, bool)
        self.block = np.zeros(shape, np.int32)
        self.step = np.zeros(shape, np.int32)

    def arrive(self, group: Array) -> Array:
        """Record arrivals; return the threads that had arrived before and have not waited since."""
        twice: Array = group & (self._arrived | self._through)
        self._arrived |= group
        self._through &= ~group
        return twice

    def wait(self, group: Array, block: int, step: int) -> WaitResult:
        """Make threads that have arrived wait until the phase of their barrier ends. The result has
        masks of two kinds of threads that are not made to wait: those whose phase has already
        ended, and those that have not arrived at the barrier."""
        absent = group & ~(self._arrived | self._through)
        stays = group & self._arrived
        passed = group & self._through
        self._through &= ~passed
        self.waiting |= stays
        self.block[stays] = block
        self.step[stays] = step
        return WaitResult(passed, absent)

    def complete(self, live: Array) -> tuple[Array, Array]:
        """End the phases at which all running threads have arrived."""
        missing = (live & ~self._arrived).reshape(-1, self._size * live.shape[1]).any(axis=1)
        begun = self._arrived.reshape(missing.size, -1).any(axis=1)
        ended = begun & ~missing
        over = np.repeat(ended, self._size)[:, None] & self._arrived
        self._arrived &= ~over
        released = over & self.waiting
        self.waiting &= ~released
        self._through |= over & ~released
        return np.flatnonzero(ended), released


# Grid, block and cluster of a launch: three numbers each, within the limits of the ISA.


MAX_THREADS = 1024
MAX_SHARED = 227 * 1024
_MAX_GRID = (2**31 - 1, 65535, 65535)


class LaunchShape(Struct, frozen=True):
    """Blocks of the grid, threads of a block, and blocks of a cluster, each as (x, y, z)."""

    grid: Dimensions
    block: Dimensions
    cluster: Dimensions = ALONE


def check_dimensions(
    program: KernelProgram, grid: Sequence[int], block: Sequence[int], shared: int,
    cluster: Sequence[int] = (),
) -> LaunchShape:  # fmt: skip
    """Check a launch's dimensions, and complete each of them to three numbers. Raises
    LaunchError."""
    full = _full("grid", grid)
    threads_of = _full("block", block)
    threads = size_of(threads_of)
    if threads > MAX_THREADS:
        raise bad_launch(f"a block of {threads} threads", f"at most {MAX_THREADS}")
    if program.required_threads and threads != program.required_threads:
        raise bad_launch(
            f"a block of {threads} threads, but the kernel was compiled for exactly "
            f"{program.required_threads}",
            "see .reqntid in the PTX",
        )
    if program.max_threads and threads > program.max_threads:
        raise bad_launch(
            f"a block of {threads} threads, but the kernel was compiled for at most "
            f"{program.max_threads}",
            "see .maxntid in the PTX (__launch_bounds__)",
        )
    if any(n > most for n, most in zip(full, _MAX_GRID, strict=True)):
        raise bad_launch(f"a grid of {full}", f"at most {_MAX_GRID}")
    if shared < 0 or shared + program.shared_bytes > MAX_SHARED:
        raise bad_launch(
            f"{shared + program.shared_bytes:,} bytes of shared memory", f"at most {MAX_SHARED:,}"
        )
    return LaunchShape(full, threads_of, _cluster(program, full, cluster))


def _full(what: str, given: Sequence[int]) -> Dimensions:
    if not 1 <= len(given) <= 3 or any(n < 1 for n in given):
        raise bad_launch(f"the {what} {tuple(given)} is no shape", "one to three numbers > 0")
    x, y, z = (*given, 1, 1)[:3]
    return x, y, z


def _cluster(program: KernelProgram, grid: Dimensions, given: Sequence[int]) -> Dimensions:
    required = program.required_cluster
    cluster = _full("cluster", given) if given else required or ALONE
    if required is not None and cluster != required:
        raise bad_launch(
            f"clusters of {cluster} blocks, but the kernel was compiled for exactly {required}",
            "leave the cluster out, or see .reqnctapercluster in the PTX (__cluster_dims__)",
        )
    if size_of(cluster) > program.largest_cluster:
        raise bad_launch(
            f"clusters of {size_of(cluster)} blocks", f"at most {program.largest_cluster}"
        )
    if any(n % part for n, part in zip(grid, cluster, strict=True)):
        raise bad_launch(
            f"a grid of {grid} blocks in clusters of {cluster}",
            "the grid must be a multiple of the cluster in each dimension",
        )
    return cluster
