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
from gpuemu_flow.errors import Problem, UsageError, did_you_mean
from gpuemu_flow.types import Json, Tolerance

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
    """A file that the configuration depends on.

    Attributes
    ----------
    path : Path
        Absolute.
    digest : str
        SHA-256 of the file's bytes in hex; empty when the file does not exist.
    """

    path: Path
    digest: str


class Environment(Struct, frozen=True):
    """Settings from environment variables; see `load.environment`.

    Attributes
    ----------
    config : str
        ``GPUEMU_CONFIG``; empty to search upward.
    socket : str
        ``GPUEMU_SOCKET``; empty for the configured socket.
    log_level : str
        ``GPUEMU_LOG_LEVEL``, else ``RUST_LOG``; empty for the configured level.
    allow_outside : bool
        True if ``GPUEMU_ALLOW_OUTSIDE`` is ``1``.
    """

    config: str = ""
    socket: str = ""
    log_level: str = ""
    allow_outside: bool = False


class Config(Struct, frozen=True):
    """The whole configuration, from all files.

    Attributes
    ----------
    root : Path
        The workspace: folder of the project file, absolute and resolved.
    files : tuple of ConfigFile
        All files that were looked for, including missing ones, so that their creation is noticed.
    targets : mapping of str to tuple of str
        Members of each target; targets inside targets are expanded.
    warnings : tuple of Problem
        Problems that do not prevent the use of the configuration.
    rules : tuple of RuleConfig
        Rules in dependency order: each rule after the rules that it needs.
    include : tuple of str
        Globs, relative to the root, of further files with ops, kernels and rules, and of the files
        from which templates take their values; see `inputs.globs.glob_files`.
    looked_into : tuple of ConfigFile
        Program files that were searched for the words of ``triton_if`` or ``skip_if``, which decide
        how a program runs. Ops may read these files.
    looked_at : tuple of Path
        Paths whose appearance or disappearance may change the problems of the configuration.
    target_tables : mapping of str to Target
        All targets by name. Empty if none of them has options.
    target_options : TargetOptions
        Options of the targets that the command names. Their `profile` and `config` are already
        applied to this configuration.
    """

    root: Path
    files: tuple[ConfigFile, ...]
    project: Project
    validation: Validation
    ops: tuple[OpConfig, ...]
    kernels: tuple[KernelConfig, ...]
    policies: Policies
    ci: Ci
    targets: Mapping[str, tuple[str, ...]]
    cache: Cache
    execution: ExecutionConfig
    daemon: Daemon
    storage: Storage
    sandbox: SandboxConfig = SandboxConfig()
    environment: Environment = Environment()
    warnings: tuple[Problem, ...] = ()
    rules: tuple[RuleConfig, ...] = ()
    include: tuple[str, ...] = ()
    looked_into: tuple[ConfigFile, ...] = ()
    looked_at: tuple[Path, ...] = ()
    target_tables: Mapping[str, Target] = {}
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


# ``[[kernels]]`` as frozen data.


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


# ``[[rules]]`` as frozen data.


class RuleConfig(Struct, frozen=True):
    """One command that makes files of the workspace.

    Attributes
    ----------
    name, file, line : str, str, int
    command : tuple of str
        A program and its arguments; with `shell`, one command line.
    shell : bool
    inputs : tuple of str
        Globs relative to the workspace root.
    outputs : tuple of str
        Files, relative to the workspace root.
    needs : tuple of str
        Rules that must run before this one: rules that it names, and rules that make its inputs.
    timeout : float
        Time limit of the command in seconds.
    only_inputs : bool
        True if the command can read no files of the workspace except its inputs.
    """

    name: str
    file: str
    line: int
    command: tuple[str, ...]
    shell: bool
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    needs: tuple[str, ...]
    timeout: float
    only_inputs: bool = False
