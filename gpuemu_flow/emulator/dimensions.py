"""Grid, block and cluster of a launch: three numbers each, within the limits of the ISA."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from gpuemu_flow.emulator.clusters import ALONE, Dimensions, size_of
from gpuemu_flow.emulator.errors import bad_launch
from gpuemu_flow.emulator.ir import KernelProgram

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
    """Check a launch's dimensions, and complete each of them to three numbers.

    Raises LaunchError.
    """
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
