"""``[[ops]]`` and their programs as frozen data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from gpuemu_flow.cases.grouped import ArgumentGroup
from gpuemu_flow.cases.op_schema import OpSchema
from gpuemu_flow.model.types import STRATEGIES, Json, Tolerance
from gpuemu_flow.numerics.contract import OutputContract


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

        These are the inputs in `mutates`. However, none is returned if one of them is a member of a
        group: in such a process, members are separate tensors, and the op may get copies of them.
        """
        members = {member for group in self.groups.values() for member in group.members}
        return () if members.intersection(self.mutates) else self.mutates
