"""Occupancy: the number of blocks that fit on one multiprocessor, and what limits it."""

from __future__ import annotations

import re

from msgspec import Struct

WARP_THREADS = 32
REGISTERS_PER_SM = 65_536
MAX_THREADS_PER_BLOCK = 1_024
MAX_REGISTERS_PER_THREAD = 255
STATIC_SHARED_LIMIT = 48 * 1024
"""Bytes of shared memory that a block gets without asking for more."""

_REGISTER_UNIT = 256
_SUB_PARTITIONS = 4
_REGISTERS_PER_PARTITION = REGISTERS_PER_SM // _SUB_PARTITIONS
_KIB = 1024
_ARCH_NUMBER = re.compile(r"(?:sm|compute)_(\d{2,3})[af]?\Z")


class ArchLimits(Struct, frozen=True):
    """Limits of the multiprocessors of one architecture."""

    sm: int
    max_warps: int
    max_blocks: int
    shared_bytes: int
    block_shared_bytes: int
    reserved_bytes: int
    barrier_factor: int

    @property
    def shared_unit(self) -> int:
        """Return the allocation unit of shared memory, in bytes."""
        return 128 if self.sm >= 80 else 256

    @property
    def max_threads(self) -> int:
        """Return the number of threads that can be resident on a multiprocessor."""
        return self.max_warps * WARP_THREADS


def _limits(
    sm: int, warps: int, blocks: int, shared_kib: int, block_kib: int, reserved: int, factor: int
) -> tuple[int, ArchLimits]:
    limits = ArchLimits(sm, warps, blocks, shared_kib * _KIB, block_kib * _KIB, reserved, factor)
    return sm, limits


ARCHITECTURES: dict[int, ArchLimits] = dict(
    (
        _limits(70, 64, 32, 96, 96, 0, 2),
        _limits(72, 64, 32, 96, 96, 0, 2),
        _limits(75, 32, 16, 64, 64, 0, 2),
        _limits(80, 64, 32, 164, 163, 1024, 2),
        _limits(86, 48, 16, 100, 99, 1024, 1),
        _limits(87, 48, 16, 164, 163, 1024, 1),
        _limits(88, 48, 16, 100, 99, 1024, 1),
        _limits(89, 48, 24, 100, 99, 1024, 1),
        _limits(90, 64, 32, 228, 227, 1024, 2),
        _limits(100, 64, 32, 228, 227, 1024, 2),
        _limits(103, 64, 32, 228, 227, 1024, 2),
        _limits(110, 48, 24, 228, 227, 1024, 1),
        _limits(120, 48, 24, 100, 99, 1024, 1),
        _limits(121, 48, 24, 100, 99, 1024, 1),
    )
)
"""By number of ``sm_NN``. Source: CUDA C++ Programming Guide, "Compute Capabilities", checked
against ``cuda_occupancy.h`` of CUDA 13.0."""


class Occupancy(Struct, frozen=True):
    """Resident blocks of one kernel on one multiprocessor."""

    blocks: int
    warps: int
    fraction: float
    limited_by: tuple[str, ...]
    threads: int
    assumed_threads: bool = False


def arch_number(arch: str) -> int | None:
    """Return an architecture's number, such as 90 for ``sm_90``, ``sm_90a`` or ``compute_90``.

    Other texts give None.
    """
    match = _ARCH_NUMBER.match(arch)
    return int(match.group(1)) if match else None


def limits_of(arch: str) -> ArchLimits | None:
    """Return the limits of the architecture with this name; None if they are unknown."""
    number = arch_number(arch)
    return None if number is None else ARCHITECTURES.get(number)


def occupancy(
    limits: ArchLimits,
    threads: int,
    registers: int,
    shared_bytes: int = 0,
    barriers: int = 0,
    *,
    assumed_threads: bool = False,
) -> Occupancy:
    """Compute the number of resident blocks per multiprocessor, and its limits.

    The rules are those of NVIDIA's ``cuda_occupancy.h``. Registers are allocated to warps in units
    of 256. A quarter of the multiprocessor's registers serves a quarter of its warps. To decide
    whether a block fits at all, its number of warps is rounded up to a multiple of four. Shared
    memory is allocated in units of 128 bytes (256 before sm_80).
    """

    def result(blocks: int, reasons: tuple[str, ...]) -> Occupancy:
        resident = blocks * warps
        fraction = resident / limits.max_warps
        return Occupancy(blocks, resident, fraction, reasons, threads, assumed_threads)

    warps = -(-threads // WARP_THREADS)
    too_many_registers = registers > MAX_REGISTERS_PER_THREAD
    if not 1 <= threads <= MAX_THREADS_PER_BLOCK or too_many_registers:
        return result(0, ("launch",))
    fits = {"warps": limits.max_warps // warps, "blocks": limits.max_blocks}
    if registers > 0:
        per_warp = _round_up(registers * WARP_THREADS, _REGISTER_UNIT)
        if per_warp * _round_up(warps, _SUB_PARTITIONS) > REGISTERS_PER_SM:
            return result(0, ("launch", "registers"))
        fits["registers"] = _REGISTERS_PER_PARTITION // per_warp * _SUB_PARTITIONS // warps
    shared = _round_up(shared_bytes + limits.reserved_bytes, limits.shared_unit)
    if shared > limits.block_shared_bytes + limits.reserved_bytes:
        return result(0, ("launch", "shared"))
    if shared > 0:
        fits["shared"] = limits.shared_bytes // shared
    if limits.sm >= 90 and barriers > 0:
        fits["barriers"] = limits.max_blocks * limits.barrier_factor // barriers
    blocks = min(fits.values())
    return result(blocks, tuple(name for name, fit in fits.items() if fit == blocks))


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
