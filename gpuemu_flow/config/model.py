"""The configuration as frozen data: what every other part of gpuemu-flow reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from gpuemu_flow.config.model_ops import OpConfig, ProgramRef
from gpuemu_flow.config.slices import to_slice
from gpuemu_flow.config.tables import (
    Cache,
    Ci,
    Daemon,
    ExecutionConfig,
    Policies,
    Project,
    SandboxConfig,
    Storage,
    Validation,
)
from gpuemu_flow.config.tables_ops import ArtifactChecks, Build
from gpuemu_flow.config.target_options import Target, TargetOptions
from gpuemu_flow.model.errors import Problem, UsageError, did_you_mean
from gpuemu_flow.model.types import Json, Tolerance

__all__ = [
    "Config",
    "ConfigFile",
    "ExecutionConfig",
    "KernelConfig",
    "OpConfig",
    "Policies",
    "ProgramRef",
    "RuleConfig",
    "Validation",
    "to_slice",
]


class ConfigFile(Struct, frozen=True):
    """A file that the configuration depends on."""

    # Absolute.
    path: Path
    # SHA-256 of the file's bytes in hex; empty when the file does not exist.
    digest: str


class Environment(Struct, frozen=True):
    """Settings from environment variables; see `load.environment`."""

    # ``GPUEMU_CONFIG``; empty to search upward.
    config: str = ""
    # ``GPUEMU_SOCKET``; empty for the configured socket.
    socket: str = ""
    # ``GPUEMU_LOG_LEVEL``, else ``RUST_LOG``; empty for the configured level.
    log_level: str = ""
    # True if ``GPUEMU_ALLOW_OUTSIDE`` is ``1``.
    allow_outside: bool = False


class Config(Struct, frozen=True):
    """The whole configuration, from all files."""

    # The workspace: folder of the project file, absolute and resolved.
    root: Path
    # All files that were looked for, including missing ones, so that their creation is
    # noticed.
    files: tuple[ConfigFile, ...]
    project: Project
    validation: Validation
    ops: tuple[OpConfig, ...]
    kernels: tuple[KernelConfig, ...]
    policies: Policies
    ci: Ci
    # Members of each target; targets inside targets are expanded.
    targets: Mapping[str, tuple[str, ...]]
    cache: Cache
    execution: ExecutionConfig
    daemon: Daemon
    storage: Storage
    sandbox: SandboxConfig = SandboxConfig()
    environment: Environment = Environment()
    # Problems that do not prevent the use of the configuration.
    warnings: tuple[Problem, ...] = ()
    # Rules in dependency order: each rule after the rules that it needs.
    rules: tuple[RuleConfig, ...] = ()
    # Globs, relative to the root, of further files with ops, kernels and rules, and of the
    # files from which templates take their values; see `build.globs.glob_files`.
    include: tuple[str, ...] = ()
    # Program files that were searched for the words of ``triton_if`` or ``skip_if``, which
    # decide how a program runs. Ops may read these files.
    looked_into: tuple[ConfigFile, ...] = ()
    # Paths whose appearance or disappearance may change the problems of the configuration.
    looked_at: tuple[Path, ...] = ()
    # All targets by name. Empty if none of them has options.
    target_tables: Mapping[str, Target] = {}
    # Options of the targets that the command names. Their `profile` and `config` are already
    # applied to this configuration.
    target_options: TargetOptions = TargetOptions()

    def op(self, name: str) -> OpConfig:
        """Return the op of that name; raise UsageError ``unknown-op`` if there is none."""
        for op in self.ops:
            if op.name == name:
                return op
        names = tuple(op.name for op in self.ops)
        raise UsageError(Problem("unknown-op", f"no op {name!r}", did_you_mean(name, names)))

    def kernel(self, name: str) -> KernelConfig:
        """Return the kernel of that name; raise UsageError ``unknown-kernel`` if there is none."""
        for kernel in self.kernels:
            if kernel.name == name:
                return kernel
        names = tuple(kernel.name for kernel in self.kernels)
        raise UsageError(
            Problem("unknown-kernel", f"no kernel {name!r}", did_you_mean(name, names))
        )


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
    """One kernel."""

    name: str
    file: str
    line: int
    # Absolute paths; `ptx` and `cubin` need not exist yet if `build.command` makes them.
    source: Path | None
    ptx: Path | None
    cubin: Path | None
    # The value in the configuration file; it has no effect.
    reference: str
    tolerances: Mapping[str, Tolerance]
    invariants: tuple[str, ...]
    checks: ArtifactChecks
    build: Build
    triton: TritonKernel | None
    threads_per_block: int | None
    # Bytes per block.
    dynamic_shared_memory: int | None
    allow: tuple[Allow, ...]
    # Reason why the kernel cannot be linted; empty if it can.
    skip_reason: str


class RuleConfig(Struct, frozen=True):
    """One command that makes files of the workspace."""

    name: str
    file: str
    line: int
    # A program and its arguments; with `shell`, one command line.
    command: tuple[str, ...]
    shell: bool
    # Globs relative to the workspace root.
    inputs: tuple[str, ...]
    # Files, relative to the workspace root.
    outputs: tuple[str, ...]
    # Rules that must run before this one: rules that it names, and rules that make its
    # inputs.
    needs: tuple[str, ...]
    # Time limit of the command in seconds.
    timeout: float
    # True if the command can read no files of the workspace except its inputs.
    only_inputs: bool = False
