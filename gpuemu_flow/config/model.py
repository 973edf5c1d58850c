"""The configuration as frozen data: what every other part of gpuemu-flow reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from gpuemu_flow.config.model_kernels import KernelConfig
from gpuemu_flow.config.model_ops import OpConfig, ProgramRef
from gpuemu_flow.config.model_rules import RuleConfig
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
from gpuemu_flow.config.target_options import Target, TargetOptions
from gpuemu_flow.errors import Problem, UsageError, did_you_mean

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
