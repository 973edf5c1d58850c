"""``[[ops]]`` and their programs as frozen data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from gpuemu_flow.cases.grouped import ArgumentGroup
from gpuemu_flow.cases.op_schema import OpSchema
from gpuemu_flow.numerics.contract import OutputContract
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import STRATEGIES, Json, Tolerance


@dataclass(frozen=True)
class ProgramRef:
    """An op or reference that can be run.

    Attributes
    ----------
    kind : str
        ``script``: a Python file of the JSON protocol. ``callable``: a function, in `path` or in
        `module`. ``command``: an executable of the JSON protocol. ``torch``, ``jax`` and
        ``numpy``: a callable that takes tensors of the framework. ``triton``: a function in `path`
        that launches Triton kernels. ``ptx``: a file of PTX; `argv` holds how it is launched.
        ``cuda``: the same for PTX that a build makes.
    path : Path or None
        Absolute and resolved file of the program; None for a callable of an installed package
        and for a command found on ``PATH``.
    module : str
        Dotted module of a callable written as ``pkg.mod:function``.
    function : str
        Name of the function, or of the class for a module of PyTorch; empty for a script.
    argv : tuple of str
        Executable and arguments of a command. For a module of PyTorch, the second element describes
        its construction; for a function of JAX, it says whether XLA compiles the function.
    portable_argv : tuple of str
        `argv` with paths of the workspace made relative: the form that belongs in action keys.
    text : str
        As written.
    relative : str
        `path` relative to the workspace: the form that belongs in action keys.
    files : tuple of Path
        Files that the program is known to consist of: `path`, and of a command each argument
        that names a file of the workspace.
    loads : Path or None
        The file that `function` is given once, to return the function that runs.
    loads_relative : str
        `loads` relative to the workspace: the form that belongs in action keys.
    skip : str
        The reason why it is not run here; empty if it is.
    file, line : str, int
        The place where it is written.
    kernel : str
        For kind ``cuda``, the kernel whose build makes its PTX.
    arch : str
        For kind ``cuda`` and compiled Triton, the architecture as written, or empty.
    flags : tuple of str
        For kind ``cuda``, the flags of nvcc.
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


@dataclass(frozen=True)
class OpConfig:
    """One op with every default filled in.

    Attributes
    ----------
    name : str
    schema : OpSchema
        Dims, inputs and outputs.
    file, line : str, int
        The place where it is defined.
    op : ProgramRef or None
        None when there is no implementation that can be run here; then `skip_reason` says why.
    reference : ProgramRef
    input_names : tuple of str
        The first is the primary input.
    execution_mode : str
        ``client_side``, ``daemon_orchestrated`` or ``script_based``.
    kwargs : mapping
        Keyword arguments as TOML values.
    env : mapping of str to str
        Variables that are set.
    env_names : tuple of str
        Variables of the user's that are let through, by name or ``BEGINNING*``.
    depends : tuple of str
        Globs relative to the workspace root (absolute only when outside of it).
    shared : tuple of str
        Globs, relative like those of `depends`, of the reference's modules that the op may read.
    timeout : float
        Seconds per case.
    timeout_grows : bool
        True if nobody chose the timeout, which then grows with the size of tensors.
    memory_limit : int or None
        Bytes.
    isolation : str
        ``fork``, ``spawn`` or ``warm``.
    mutates : tuple of str
        Inputs that the op may change.
    require_kernel : bool
        True if the op's kernels have to store every element of its outputs.
    forbid : tuple of str
        Functions of libraries that it must not call.
    deterministic : bool
    dtypes, layouts, strategies : tuple of str
        Canonical names; groups of strategies are expanded.
    cases : int
        Cases per dtype.
    has_schema : bool
        True if the op's table has `schema`; False if its shapes are those for all ops or defaults.
    says_dtypes : bool
        True if the op's table has `dtypes`; False if they come from ``[validation]`` or defaults.
    fuzz_iterations : int
    tolerance : str
        For dtypes that `tolerances` does not name: ``auto``, or ``table`` for the documented
        defaults. ``explicit`` means ``table``, chosen because the file gives tolerances.
    tolerances : mapping of str to Tolerance
        Only those that the file gives, by dtype, the op's over those of ``[validation]``.
    precision : str
        Rounding that a correct op may do as it computes: ``tensor-core``, ``float32`` or ``input``.
    nan_policy, inf_policy : str
        ``match``, ``strict`` or ``ignore``.
    invariants : tuple of str
    shape_preserved_input : str or None
        Input whose shape the output must have, when the invariant was asked for in its table form.
    reference_dtype : str or None
        Wider dtype that the reference answers in.
    outputs : tuple of OutputContract
        The contracts that the schema declares of outputs.
    compares : tuple of ProgramRef
        The functions that ``compare`` of an output names.
    needs : tuple of str
        Rules whose outputs it uses.
    generators : mapping of str to ProgramRef
        The functions that return values of inputs, by the text that stands in the schema.
    groups : mapping of str to ArgumentGroup
        Arguments that are made of several inputs.
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
    kwargs: Mapping[str, Json] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
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
    tolerances: Mapping[str, Tolerance] = field(default_factory=dict)
    precision: str = "tensor-core"
    nan_policy: str = "match"
    inf_policy: str = "match"
    invariants: tuple[str, ...] = ()
    shape_preserved_input: str | None = None
    reference_dtype: str | None = None
    outputs: tuple[OutputContract, ...] = ()
    compares: tuple[ProgramRef, ...] = ()
    generators: Mapping[str, ProgramRef] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    groups: Mapping[str, ArgumentGroup] = field(default_factory=dict)
    gradients: tuple[str, ...] = ()
    skip_reason: str = ""
