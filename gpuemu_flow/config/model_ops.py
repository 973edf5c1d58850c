"""``[[ops]]`` and their programs as frozen data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from gpuemu_flow.cases.grouped import ArgumentGroup
from gpuemu_flow.cases.op_schema import OpSchema
from gpuemu_flow.numerics.contract import OutputContract
from gpuemu_flow.types import STRATEGIES, Json, Tolerance


class ProgramRef(Struct, frozen=True):
    """An op or reference that can be run.

    Attributes
    ----------
    kind : str
        ``script``: a Python file of the JSON protocol. ``callable``: a function in `path` or in
        `module`. ``command``: an executable of the JSON protocol. ``torch``, ``jax`` and ``numpy``:
        a callable that takes tensors of the framework. ``triton``: a function in `path` that
        launches Triton kernels. ``ptx``: a file of PTX; `argv` holds how it is launched. ``cuda``:
        the same for PTX that a build makes.
    path : Path or None
        Absolute and resolved file of the program; None for a callable of an installed package
        and for a command found on ``PATH``.
    module : str
        Dotted module of a callable written as ``pkg.mod:function``.
    function : str
        Name of the function, or of the class for a module of PyTorch; empty for a script.
    argv : tuple of str
        Executable and arguments of a command. For a module of PyTorch, the second element describes
        how to construct it; for a function of JAX, whether XLA compiles the function.
    portable_argv : tuple of str
        `argv` with paths of the workspace made relative: the form that belongs in action keys.
    text : str
        The program as written in the file.
    relative : str
        `path` relative to the workspace: the form that belongs in action keys.
    files : tuple of Path
        Files that are known to be part of the program: `path` and, for a command, each argument
        that names a file of the workspace.
    loads : Path or None
        A file that a loader reads. The loader is `function`: it is called once, with the path of
        the file, and returns the function to run. None if `function` itself is run.
    loads_relative : str
        `loads` relative to the workspace: the form that belongs in action keys.
    skip : str
        The reason why the program cannot run here; empty if it can.
    file, line : str, int
        Location in the configuration.
    kernel : str
        For kind ``cuda``: name of the kernel whose build makes the PTX.
    arch : str
        For kind ``cuda`` and compiled Triton: the architecture as written; empty if not set.
    flags : tuple of str
        For kind ``cuda``: the flags of nvcc.
    """

    kind: str
    path: Path | None = None
    module: str = ""
    function: str = ""
    argv: tuple[str, ...] = ()
    portable_argv: tuple[str, ...] = ()
    text: str = ""
    relative: str = ""
    files: tuple[Path, ...] = ()
    file: str = ""
    line: int = 0
    kernel: str = ""
    arch: str = ""
    flags: tuple[str, ...] = ()
    loads: Path | None = None
    loads_relative: str = ""
    skip: str = ""


class OpConfig(Struct, frozen=True):
    """One op with every default filled in.

    Attributes
    ----------
    name : str
    schema : OpSchema
        Dims, inputs and outputs.
    file, line : str, int
        Location of the op's table.
    op : ProgramRef or None
        None if no implementation can run here, for the reason in `skip_reason`.
    reference : ProgramRef
    input_names : tuple of str
        Names of the inputs; the first is the primary input.
    execution_mode : str
        ``client_side``, ``daemon_orchestrated`` or ``script_based``.
    kwargs : mapping
        Keyword arguments as TOML values.
    env : mapping of str to str
        Environment variables to set, by name.
    env_names : tuple of str
        Further environment variables of the user that the op receives, as a name or ``BEGINNING*``.
    depends : tuple of str
        Globs of further files that the op reads; relative to the workspace root, or absolute if
        outside of it.
    shared : tuple of str
        Globs of modules of the reference that the op may read, too; written like the globs of
        `depends`.
    timeout : float
        Seconds per case.
    timeout_grows : bool
        True if the timeout is the default, which grows with the size of the inputs.
    memory_limit : int or None
        Bytes.
    isolation : str
        ``fork``, ``spawn`` or ``warm``.
    mutates : tuple of str
        Inputs that the op may change.
    require_kernel : bool
        True if the op's kernels have to store every element of its outputs.
    forbid : tuple of str
        Functions of libraries that the op must not call.
    deterministic : bool
    dtypes, layouts, strategies : tuple of str
        Canonical names; groups of strategies are expanded.
    cases : int
        Cases per dtype.
    has_schema : bool
        True if the op's table has `schema`. Otherwise shapes are taken from ``[validation]``, or
        are the defaults.
    says_dtypes : bool
        True if the op's table has `dtypes`. Otherwise dtypes are taken from ``[validation]``, or
        are the defaults.
    fuzz_iterations : int
    tolerance : str
        Mode for dtypes that `tolerances` does not contain: ``auto``, ``table`` or
        ``explicit``. ``table`` and ``explicit`` both use the documented defaults. The mode is
        ``explicit`` if the configuration sets tolerances for some dtypes but no mode.
    tolerances : mapping of str to Tolerance
        Explicit tolerances by dtype; the op's tolerances take precedence over those of
        ``[validation]``.
    precision : str
        Precision to which a correct op may round intermediate values: ``tensor-core``, ``float32``
        or ``input``.
    nan_policy, inf_policy : str
        ``match``, ``strict`` or ``ignore``.
    invariants : tuple of str
    shape_preserved_input : str or None
        The first input if ``invariants`` is a table that sets ``shape_preserved``, else None. The
        output must have the shape of this input.
    reference_dtype : str or None
        Dtype of the reference's outputs if it is wider than the case's; else None.
    outputs : tuple of OutputContract
        The contracts that the schema declares for outputs.
    compares : tuple of ProgramRef
        The user's functions that compare outputs.
    needs : tuple of str
        Rules whose outputs the op uses.
    generators : mapping of str to ProgramRef
        The functions that return values of inputs, by the text that names them in the schema.
    groups : mapping of str to ArgumentGroup
        Arguments that consist of several inputs.
    gradients : tuple of str
        Inputs with respect to which gradients are compared.
    skip_reason : str
        The reason why `run` cannot check the op; empty unless `op` is None. A skipped op never
        counts as passed.
    """

    name: str
    reference: ProgramRef
    schema: OpSchema
    op: ProgramRef | None = None
    file: str = ""
    line: int = 0
    input_names: tuple[str, ...] = ("input",)
    execution_mode: str = "script_based"
    kwargs: Mapping[str, Json] = {}
    env: Mapping[str, str] = {}
    env_names: tuple[str, ...] = ()
    depends: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    timeout: float = 60.0
    timeout_grows: bool = True
    memory_limit: int | None = None
    isolation: str = "fork"
    mutates: tuple[str, ...] = ()
    deterministic: bool = True
    require_kernel: bool = False
    forbid: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("float32",)
    layouts: tuple[str, ...] = (
        "contiguous", "strided", "transposed", "offset", "padded", "permuted",
    )  # fmt: skip
    strategies: tuple[str, ...] = STRATEGIES
    cases: int = 24
    fuzz_iterations: int = 100
    has_schema: bool = False
    says_dtypes: bool = False
    tolerance: str = "auto"
    tolerances: Mapping[str, Tolerance] = {}
    precision: str = "tensor-core"
    nan_policy: str = "match"
    inf_policy: str = "match"
    invariants: tuple[str, ...] = ()
    shape_preserved_input: str | None = None
    reference_dtype: str | None = None
    outputs: tuple[OutputContract, ...] = ()
    compares: tuple[ProgramRef, ...] = ()
    generators: Mapping[str, ProgramRef] = {}
    needs: tuple[str, ...] = ()
    groups: Mapping[str, ArgumentGroup] = {}
    gradients: tuple[str, ...] = ()
    skip_reason: str = ""

    @property
    def in_place(self) -> tuple[str, ...]:
        """Return the inputs that hold outputs after a call in a client's or a test's process.

        These are the inputs in `mutates`. However, none is returned if one of them is a member of a
        group: in such a process, members are separate tensors, and the op may get copies of them.
        """
        members = {member for group in self.groups.values() for member in group.members}
        return () if members.intersection(self.mutates) else self.mutates
