"""The configuration as frozen data: what every other part of gpuemu-flow reads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from gpuemu_flow.cases.op_schema import ArgumentGroup, OpSchema, fixed_shapes_schema
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
from gpuemu_flow.model.errors import Problem, UsageError, did_you_mean
from gpuemu_flow.model.types import ACCURACIES, STRATEGIES, Json, Tolerance
from gpuemu_flow.numerics.contract import OutputContract

# ``[[ops]]`` and their programs as frozen data.


class ProgramRef(Struct, frozen=True):
    """An op or reference that can be run."""

    # ``script``: a Python file of the JSON protocol. ``callable``: a function in `path` or in
    # `module`. ``command``: an executable of the JSON protocol. ``torch``, ``jax`` and
    # ``numpy``: a callable that takes tensors of the framework. ``triton``: a function in
    # `path` that launches Triton kernels. ``ptx``: a file of PTX; `argv` holds how it is
    # launched. ``cuda``: the same for PTX that a build makes.
    kind: str
    # Absolute and resolved file of the program; None for a callable of an installed package
    # and for a command found on ``PATH``.
    path: Path | None = None
    # Dotted module of a callable written as ``pkg.mod:function``.
    module: str = ""
    # Name of the function, or of the class for a module of PyTorch; empty for a script.
    function: str = ""
    # Executable and arguments of a command. For a module of PyTorch, the second element
    # describes how to construct it; for a function of JAX, whether XLA compiles the function.
    argv: tuple[str, ...] = ()
    # `argv` with paths of the workspace made relative: the form that belongs in action keys.
    portable_argv: tuple[str, ...] = ()
    # The program as written in the file.
    text: str = ""
    # `path` relative to the workspace: the form that belongs in action keys.
    relative: str = ""
    # Files that are known to be part of the program: `path` and, for a command, each argument
    # that names a file of the workspace.
    files: tuple[Path, ...] = ()
    # Location in the configuration.
    file: str = ""
    line: int = 0
    # For kind ``cuda``: name of the kernel whose build makes the PTX.
    kernel: str = ""
    # For kind ``cuda`` and compiled Triton: the architecture as written; empty if not set.
    arch: str = ""
    # For kind ``cuda``: the flags of nvcc.
    flags: tuple[str, ...] = ()
    # A file that a loader reads. The loader is `function`: it is called once, with the path
    # of the file, and returns the function to run. None if `function` itself is run.
    loads: Path | None = None
    # `loads` relative to the workspace: the form that belongs in action keys.
    loads_relative: str = ""
    # The reason why the program cannot run here; empty if it can.
    skip: str = ""


class OpConfig(Struct, frozen=True):
    """One op with every default filled in."""

    name: str
    reference: ProgramRef
    # Dims, inputs and outputs.
    schema: OpSchema
    # None if no implementation can run here, for the reason in `skip_reason`.
    op: ProgramRef | None = None
    # Location of the op's table.
    file: str = ""
    line: int = 0
    # Names of the inputs; the first is the primary input.
    input_names: tuple[str, ...] = ("input",)
    # ``client_side``, ``daemon_orchestrated`` or ``script_based``.
    execution_mode: str = "script_based"
    # Keyword arguments as TOML values.
    kwargs: Mapping[str, Json] = {}
    # Environment variables to set, by name.
    env: Mapping[str, str] = {}
    # Further environment variables of the user that the op receives, as a name or
    # ``BEGINNING*``.
    env_names: tuple[str, ...] = ()
    # Globs of further files that the op reads; relative to the workspace root, or absolute if
    # outside of it.
    depends: tuple[str, ...] = ()
    # Globs of modules of the reference that the op may read, too; written like the globs of
    # `depends`.
    shared: tuple[str, ...] = ()
    # Seconds per case.
    timeout: float = 60.0
    # True if the timeout is the default, which grows with the size of the inputs.
    timeout_grows: bool = True
    # Bytes.
    memory_limit: int | None = None
    # ``fork``, ``spawn`` or ``warm``.
    isolation: str = "fork"
    # Inputs that the op may change.
    mutates: tuple[str, ...] = ()
    deterministic: bool = True
    # True if the op's kernels have to store every element of its outputs.
    require_kernel: bool = False
    # Functions of libraries that the op must not call.
    forbid: tuple[str, ...] = ()
    # Canonical names; groups of strategies are expanded.
    dtypes: tuple[str, ...] = ("float32",)
    layouts: tuple[str, ...] = (
        "contiguous", "strided", "transposed", "offset", "padded", "permuted",
    )  # fmt: skip
    strategies: tuple[str, ...] = STRATEGIES
    # Cases per dtype.
    cases: int = 24
    fuzz_iterations: int = 100
    # True if the op's table has `schema`. Otherwise shapes are taken from ``[validation]``,
    # or are the defaults.
    has_schema: bool = False
    # True if the op's table has `dtypes`. Otherwise dtypes are taken from ``[validation]``,
    # or are the defaults.
    says_dtypes: bool = False
    # Mode for dtypes that `tolerances` does not contain: ``auto``, ``table`` or ``explicit``.
    # ``table`` and ``explicit`` both use the documented defaults. The mode is ``explicit`` if
    # the configuration sets tolerances for some dtypes but no mode.
    tolerance: str = "auto"
    # Explicit tolerances by dtype; the op's tolerances take precedence over those of
    # ``[validation]``.
    tolerances: Mapping[str, Tolerance] = {}
    # Precision to which a correct op may round intermediate values: ``tensor-core``,
    # ``float32`` or ``input``.
    precision: str = "tensor-core"
    accuracy: str = "element"
    # ``match``, ``strict`` or ``ignore``.
    nan_policy: str = "match"
    inf_policy: str = "match"
    invariants: tuple[str, ...] = ()
    # The first input if ``invariants`` is a table that sets ``shape_preserved``, else None.
    # The output must have the shape of this input.
    shape_preserved_input: str | None = None
    # Dtype of the reference's outputs if it is wider than the case's; else None.
    reference_dtype: str | None = None
    # The contracts that the schema declares for outputs.
    outputs: tuple[OutputContract, ...] = ()
    # The user's functions that compare outputs.
    compares: tuple[ProgramRef, ...] = ()
    # The functions that return values of inputs, by the text that names them in the schema.
    generators: Mapping[str, ProgramRef] = {}
    # Rules whose outputs the op uses.
    needs: tuple[str, ...] = ()
    # Arguments that consist of several inputs.
    groups: Mapping[str, ArgumentGroup] = {}
    # Inputs with respect to which gradients are compared.
    gradients: tuple[str, ...] = ()
    # The reason why `run` cannot check the op; empty unless `op` is None. A skipped op never
    # counts as passed.
    skip_reason: str = ""

    @property
    def in_place(self) -> tuple[str, ...]:
        """Return the inputs that hold outputs after a call in a client's or a test's process.
        These are the inputs in `mutates`. However, none is returned if one of them is a member
        of a group: in such a process, members are separate tensors, and the op may get copies of
        them."""
        members = {member for group in self.groups.values() for member in group.members}
        return () if members.intersection(self.mutates) else self.mutates


# Extract each op's part of the configuration, in the canonical form for action keys.


def to_slice(op: OpConfig, dtype: str | None = None) -> dict[str, Json]:
    """Return the part of an op's configuration that decides its results, split by stage. The op's
    name, lines, files of the configuration and absolute paths are left out, since none of them
    changes a result. Programs are included by their path, not by their content."""
    explicit = {
        name: {"atol": t.atol, "rtol": t.rtol}
        for name, t in op.tolerances.items()
        if dtype in (None, name)
    }
    asked_for = _reference_dtype(op, dtype)
    return {
        "op": {
            "ref": _program(op.op) if op.op else None,
            "mutates": sorted(op.mutates),
            "deterministic": op.deterministic,
            "masks": masks_of(op),
            "require_kernel": op.require_kernel,
            "forbid": sorted(op.forbid),
        },
        "reference": {"ref": _program(op.reference), "dtype": asked_for},
        "program": {
            "input_names": list(op.input_names),
            "output_names": [tensor.name for tensor in op.schema.outputs],
            "kwargs": _plain(op.kwargs),
            "env": dict(op.env),
            "env_names": list(op.env_names),
            "timeout": op.timeout,
            "memory_limit": op.memory_limit,
            "isolation": op.isolation,
            **({"groups": groups_of(op)} if op.groups else {}),
            **({"gradients": gradients_of(op)} if op.gradients else {}),
        },
        "cases": {
            "schema": _plain(to_builtins(op.schema)),
            "layouts": list(op.layouts),
            "strategies": list(op.strategies),
            "count": op.cases,
        },
        "compare": {
            "tolerance": op.tolerance,
            "tolerances": explicit,
            "precision": op.precision,
            **({"accuracy": op.accuracy} if op.accuracy != ACCURACIES[0] else {}),
            "nan_policy": op.nan_policy,
            "inf_policy": op.inf_policy,
            "invariants": list(op.invariants),
            "shape_preserved_input": op.shape_preserved_input,
            "mutates": sorted(op.mutates),
            "deterministic": op.deterministic,
            "reference_dtype": asked_for,
            "outputs": to_builtins(op.outputs),
            "input_dims": {tensor.name: list(tensor.dims) for tensor in op.schema.inputs}
            if op.outputs
            else {},
            **({"gradients": list(op.gradients)} if op.gradients else {}),
        },
    }


def gradients_of(op: OpConfig) -> dict[str, Json]:
    apart = [contract.name for contract in op.outputs if not contract.in_place]
    return {"inputs": list(op.gradients), "apart": apart, "masks": masks_of(op)}


def masks_of(op: OpConfig) -> dict[str, Json]:
    """Return, by output name, the masks that select the elements to compare. Outputs of which all
    elements are compared have no mask, and are left out."""
    said = {contract.name: to_builtins(contract) for contract in op.outputs}
    return {name: contract["only"] for name, contract in said.items() if "only" in contract}


def groups_of(op: OpConfig) -> dict[str, Json]:
    return {name: to_builtins(group) for name, group in op.groups.items()}


def _reference_dtype(op: OpConfig, dtype: str | None) -> str | None:
    """Return the dtype to request from the reference; None means float64, if supported. If the op
    is judged by the documented table of tolerances, and its configuration names no dtype for the
    reference, the result is `dtype`. The table supposes a reference that computes in the op's own
    dtype: correct outputs would fail if they were compared with more precise ones."""
    by_table = op.tolerance == "table" and dtype is not None and dtype not in op.tolerances
    return dtype if by_table and op.reference_dtype is None else op.reference_dtype


def _program(ref: ProgramRef) -> dict[str, Json]:
    return {
        **({"loads": ref.loads_relative} if ref.loads is not None else {}),
        "kind": ref.kind,
        "path": ref.relative,
        "module": ref.module,
        "function": ref.function,
        "argv": list(ref.portable_argv),
    }


def _plain(value: Json) -> Json:
    """Convert tuples to lists, and infinities to a form that is valid and unique in JSON."""
    if isinstance(value, dict):
        return {str(name): _plain(element) for name, element in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(element) for element in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value


# The whole configuration, its kernels and rules, and what a command or ``[ci]`` changes of it.


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
    # files from which templates take their values; see `build.files.glob_files`.
    include: tuple[str, ...] = ()
    # Program files that were searched for the words of ``triton_if`` or ``skip_if``, which
    # decide how a program runs. Ops may read these files.
    looked_into: tuple[ConfigFile, ...] = ()
    # Paths whose appearance or disappearance may change the problems of the configuration.
    looked_at: tuple[Path, ...] = ()

    def results_folder(self, cache: Path) -> Path:
        """Return the folder for the results of submissions: in the cache, or at ``[storage]
        db_path``. If several workspaces name the same `db_path`, each has a separate folder."""
        from gpuemu_flow.wire import workspace_stem  # noqa: PLC0415 - a plain run has none

        path = self.storage.db_path
        return cache if path is None else path / workspace_stem(self.root)

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


class Overrides(Struct, frozen=True):
    """Changes that a command line makes to the configuration."""

    seed: int | None = None
    draw_seed: bool = False
    ci: str = ""
    cases: int | None = None
    profile: str = ""
    settings: tuple[str, ...] = ()


class Sampling(Struct, frozen=True):
    """Changes that a mode of ``[ci]`` makes to the ops' cases."""

    cases: int | None = None
    shapes: tuple[tuple[int, ...], ...] = ()
    seed: int | None = None

    def of(self, op: OpConfig) -> OpConfig:
        """Return a copy of an op in which `cases` and `shapes` replace the op's own settings. The
        op keeps its shapes if it has a schema."""
        schema = op.schema
        if self.shapes and not op.has_schema:
            schema = fixed_shapes_schema(op.input_names, self.shapes)
        return replace(op, cases=self.cases or op.cases, schema=schema)


def samplings(config: Config) -> dict[str, Sampling]:
    """Return, by mode of ``[ci]``, the changes that the mode makes to the ops' cases. A mode that
    changes nothing is left out."""
    ci = config.ci
    found = {
        "quick": Sampling(ci.quick_fuzz_iterations, ci.quick_shapes, ci.seed),
        "thorough": Sampling(ci.fuzz_iterations, seed=ci.seed),
    }
    return {mode: sampling for mode, sampling in found.items() if sampling != Sampling()}
