"""``[[kernels]]`` as frozen data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from gpuemu_flow.config.tables_ops import ArtifactChecks, Build
from gpuemu_flow.types import Json, Tolerance


class TritonKernel(Struct, frozen=True):
    """A Triton kernel that is compiled without a GPU."""

    path: Path
    kernel: str
    signature: Mapping[str, str]
    constants: Mapping[str, Json]
    num_warps: int | None
    num_stages: int | None


class Allow(Struct, frozen=True):
    """A lint rule that a kernel may break, the reason, and the `line` of this exception."""

    rule: str
    reason: str
    line: int


class KernelConfig(Struct, frozen=True):
    """One kernel.

    Attributes
    ----------
    source, ptx, cubin : Path or None
        Absolute paths; `ptx` and `cubin` need not exist yet if `build.command` makes them.
    reference : str
        The value in the configuration file; it has no effect.
    threads_per_block : int or None
    dynamic_shared_memory : int or None
        Bytes per block.
    skip_reason : str
        Reason why the kernel cannot be linted; empty if it can.
    """

    name: str
    file: str
    line: int
    source: Path | None
    ptx: Path | None
    cubin: Path | None
    reference: str
    tolerances: Mapping[str, Tolerance]
    invariants: tuple[str, ...]
    checks: ArtifactChecks
    build: Build
    triton: TritonKernel | None
    threads_per_block: int | None
    dynamic_shared_memory: int | None
    allow: tuple[Allow, ...]
    skip_reason: str
