"""The keys of ``[[ops]]``, ``[[rules]]`` and ``[[kernels]]``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gpuemu_flow.config.fields import (
    AS_GIVEN,
    BYTES,
    EMULATOR_BACKENDS,
    I63_MAX,
    ISOLATIONS,
    MODE_ALIASES,
    MODES,
    PROGRAM_KINDS,
    TRITON_MODES,
    Accuracy,
    AllowedRule,
    Architecture,
    Argument,
    Arguments,
    Cases,
    Count,
    Dtypes,
    FloatDtype,
    Framework,
    Invariants,
    Layouts,
    Name,
    OpName,
    Paths,
    PathText,
    Policy,
    Precision,
    Schema,
    Seconds,
    Strategies,
    Table,
    ToleranceMode,
    Tolerances,
    VariableNames,
    Word,
    also,
    choice,
    documented,
    key,
    named,
    text,
)

LEAST_MEMORY = 1 << 20
AS_VALIDATION = "as `[validation]` says"


class ProgramTable(Table, frozen=True):
    """An op or a reference, written as a table."""

    what = "a table with a kind"
    closed = True

    kind: Annotated[
        str,
        choice(*PROGRAM_KINDS, noun="kind of program", slug="config-unknown-kind"),
        key(
            "How it is run: `script`, `callable`, `command`, `torch`, `jax`, `numpy`, "
            "`triton`, `ptx` or `cuda`."
        ),
    ]
    path: Annotated[PathText | None, key("File of a script or callable.")] = None
    module: Annotated[
        Word | None,
        key(
            "Module of a callable, dotted; of kind `torch` beside `file` the class of a "
            "module, as `module_class`."
        ),
    ] = None
    file: Annotated[
        PathText | None, key("File of a framework's or Triton function, PTX or CUDA C++.")
    ] = None
    function: Annotated[
        Word | None, key("Function of a callable, of a framework, or of Triton kernels.")
    ] = None
    loads: Annotated[
        PathText | None,
        key(
            "Of a callable or interpreted Triton op: a file whose path the function is given "
            "once; it returns the function that runs."
        ),
    ] = None
    triton_if: Annotated[
        Annotated[tuple[Annotated[str, text("a word")], ...], Meta(min_length=1, max_length=20)]
        | None,
        key(
            "Of a callable: it is of kind `triton` where the file of `loads` holds one of these "
            "words."
        ),
    ] = None
    skip_if: Annotated[
        Annotated[tuple[Annotated[str, text("a word")], ...], Meta(min_length=1, max_length=20)]
        | None,
        key("The op is skipped where the file of `loads` holds one of these words."),
    ] = None
    module_class: Annotated[
        Word | None,
        key(
            "Of kind `torch`, in place of `function`: a class of `torch.nn.Module`, made once, "
            "whose `forward` is called."
        ),
    ] = None
    init: Annotated[
        Any,
        named("a table of arguments by name, or a list of them"),
        key("Arguments of `module_class`.", default_text="none"),
    ] = None
    seed: Annotated[
        Annotated[int, Meta(ge=0, le=I63_MAX)] | None,
        key("What the weights of `module_class` follow from.", default_text="0"),
    ] = None
    argv: Annotated[
        Annotated[tuple[Argument, ...], Meta(min_length=1, max_length=200), AS_GIVEN] | None,
        key("Executable and arguments of a command."),
    ] = None
    kernel: Annotated[
        Name | None,
        key(
            "One of `[[kernels]]`, whose build makes the PTX of an op of kind `cuda`; in place of "
            "`file`."
        ),
    ] = None
    arch: Annotated[
        Architecture | None,
        key("Architecture that CUDA C++ or Triton is compiled for.", default_text="sm_80"),
    ] = None
    flags: Annotated[Arguments | None, key("Flags of nvcc.", default_text="[]")] = None
    mode: Annotated[
        Annotated[str, choice(*TRITON_MODES, noun="mode")] | None,
        key(
            "Of kind `triton`: `interpreted`, or `compiled`, which executes the PTX that Triton "
            "makes.",
            default_text="interpreted; `compiled` for Gluon",
        ),
    ] = None
    entry: Annotated[
        Word | None, key("Kernel of a PTX or CUDA file; not needed when there is one.")
    ] = None
    grid: Annotated[
        Any,
        named("a list of expressions"),
        key('Blocks of a launch, one to three expressions: `["B*S"]`.'),
    ] = None
    block: Annotated[Any, named("a list of expressions"), key("Threads of a block, likewise.")] = (
        None
    )
    cluster: Annotated[
        Any,
        named("a list of expressions"),
        key("Blocks of a cluster, likewise; not needed for a kernel with `__cluster_dims__`."),
    ] = None
    args: Annotated[
        Any,
        named("a list of arguments"),
        key(
            'Arguments of the kernel in order: names of buffers, numbers as `{ i32 = "B*S" }`, '
            'structures by value as `{ struct = ["x", { i32 = "B*S" }] }`.'
        ),
    ] = None
    symbols: Annotated[
        Any,
        named("a table of names"),
        key('Variables of the module that a launch sets before: `{ c_kernel = "w" }`.'),
    ] = None
    shared: Annotated[
        Any, named("an expression"), key("Bytes of dynamic shared memory.", default_text="0")
    ] = None
    launches: Annotated[
        Any,
        named("a list of tables"),
        key(
            "Several launches in a row, each with `entry`, `grid`, `block`, `cluster`, `args`, "
            "`shared` and `symbols`."
        ),
    ] = None
    outputs: Annotated[
        Annotated[Mapping[str, Any], named("a table of buffers", free=True)] | None,
        key(
            'Outputs of a compiled kernel: `{ out = ["B", "H"] }`, or with `{ dims = [...], dtype '
            '= "float32" }` another dtype than that of the first input. The name of an input '
            "means what the kernel leaves in it."
        ),
    ] = None
    scratch: Annotated[
        Annotated[Mapping[str, Any], named("a table of buffers", free=True)] | None,
        key(
            'Buffers that launches need and nobody looks at: `{ tmp = { bytes = "4*B", init = '
            '"none" } }`; `init = "zero"` clears them.'
        ),
    ] = None
    checks: Annotated[
        Any,
        named("a list of checks"),
        key(
            "What is checked while a compiled kernel runs: `mem`, `init`, `race`, `sync`.",
            default_text="all",
        ),
    ] = None
    backend: Annotated[
        Annotated[str, choice(*EMULATOR_BACKENDS, noun="back end")] | None,
        key(
            "Who executes a compiled kernel: `numpy`, `c` (compiled by the system's C compiler, "
            "numpy where that cannot), or `auto`: `c` for large launches that it can run.",
            default_text="auto",
        ),
    ] = None


Program = (
    Annotated[str, text("a path, path.py:function, pkg.mod:function or executable")]
    | Annotated[tuple[Argument, ...], Meta(min_length=1, max_length=200), AS_GIVEN]
    | ProgramTable
)

Command = (
    Annotated[tuple[Argument, ...], Meta(min_length=1, max_length=1000), AS_GIVEN]
    | Annotated[str, text("a command", longest=32768)]
)


class OpBuild(Table, frozen=True, kw_only=True):
    """A rule that one op alone needs, which has the op's name."""

    what = "a table with command, inputs and outputs"
    closed = True

    command: Annotated[
        Command, key("A program and its arguments, run in the workspace without a shell.")
    ]
    shell: Annotated[bool, key("`command` is one string for `sh -c`.")] = False
    inputs: Annotated[
        Paths, key("Globs of the files that the command reads, relative to the workspace.")
    ] = ()
    outputs: Annotated[
        tuple[PathText, ...],
        Meta(min_length=1, max_length=1000),
        key("Files that the command makes, relative to the workspace."),
    ]
    needs: Annotated[
        tuple[Name, ...],
        Meta(max_length=1000),
        key(
            "Rules that run before it, because it uses their outputs. Rules of outputs that it "
            "names as programs or inputs need not be listed; see [rules](rules.md)."
        ),
    ] = ()
    only_inputs: Annotated[
        bool,
        key(
            "In the workspace, the command can read only `inputs`, files that its words name, "
            "outputs of `needs`, and its own outputs; see [rules](rules.md#what-a-command-reads)."
        ),
    ] = False
    timeout: Annotated[Seconds, key("Seconds that the command may take.")] = 900


class RuleTable(OpBuild, frozen=True, kw_only=True):
    """One command that makes files of the workspace."""

    what = "a table"

    name: Annotated[Name, key("Unique name.")]


class FilesOfTemplate(Table, frozen=True):
    """Files whose names are the values of a template."""

    what = "a table with files"
    closed = True

    files: Annotated[
        PathText,
        key(
            "A glob with one `*` in the name of the file; the values are the parts that it matches."
        ),
    ]


Values = Annotated[
    tuple[Annotated[Any, named("a string, number or boolean")], ...], Meta(min_length=1)
]
Template = Annotated[
    Mapping[
        Annotated[str, text("a name", pattern=r"[A-Za-z_][A-Za-z0-9_]*", longest=128)],
        Values | FilesOfTemplate,
    ],
    named("a table of lists"),
]


class OpTable(Table, frozen=True, kw_only=True):
    """One op, as a table of ``[[ops]]`` gives it."""

    name: Annotated[OpName, documented("Unique name; see [Names](#names).")]
    op: Annotated[
        Program | None, key("The implementation under test; see [Programs](#programs).")
    ] = None
    op_script: Annotated[
        Program | None,
        documented(
            "The documented name of `op` for scripts of the JSON protocol; give only one of the "
            "two."
        ),
    ] = None
    module: Annotated[
        Annotated[str, text("a dotted module path", longest=512)] | None,
        documented(
            "Where the implementation of a `client_side` op is: `pkg.mod`, `pkg.mod:function` or "
            "`path.py:function`. Without a function, the one with the op's name is meant. If it "
            "is found in the workspace or names a function, it is run as a callable; otherwise "
            "`run` skips the op, and counts it as skipped."
        ),
    ] = None
    reference: Annotated[
        Program, documented("The trusted implementation; see [Programs](#programs).")
    ]
    input_names: Annotated[
        Annotated[tuple[Word, ...], Meta(max_length=64), AS_GIVEN] | None,
        documented(
            "Names of the inputs, in order; the first is the primary one. Any printable text for "
            "scripts; identifiers for callables that take inputs by keyword.",
            default_text='`["input"]`, or the inputs of `schema` in their order',
        ),
    ] = None
    execution_mode: Annotated[
        Annotated[str, choice(*MODES, noun="execution mode", spellings=MODE_ALIASES)] | None,
        documented(
            "Where the op runs: `client_side`, `daemon_orchestrated` (also spelled `daemon_side`) "
            "or `script_based`. Ops of the first two are skipped by `run`, and counted as "
            "skipped, unless `module` leads to a callable.",
            default_text="`script_based` if `op` or `op_script` is given, else `client_side`",
        ),
    ] = None
    frameworks: Annotated[
        tuple[Framework, ...],
        documented(
            "Frameworks that the op's programs are written in; at least one program has to import "
            "each. A function that names no kind gets the tensors of the first of these that its "
            "file imports."
        ),
    ] = ()
    framework: Annotated[
        Framework | None,
        key(
            "The same for a single framework; overrides `project.framework`.",
            default_text="`project.framework`",
        ),
    ] = None
    tolerances: Annotated[
        Tolerances | None,
        documented(
            "Per dtype: a number (absolute, rtol 0) or `{ atol, rtol }`. They override those of "
            "`[validation]`; a missing member is inherited.",
            default_text=AS_VALIDATION,
        ),
    ] = None
    tolerance: Annotated[
        ToleranceMode | None,
        key(
            "`auto` or `table` for the dtypes without an explicit tolerance of this op.",
            default_text=AS_VALIDATION,
        ),
    ] = None
    precision: Annotated[
        Precision | None,
        key(
            "What a right op may round to a narrow dtype of its inputs; overrides that of "
            "`[validation]`.",
            default_text=AS_VALIDATION,
        ),
    ] = None
    accuracy: Annotated[
        Accuracy,
        key(
            "For `auto`: `norm` for algorithms (Strassen, FFT, expanded squares) whose errors are "
            "small beside the largest element of the output, not beside each."
        ),
    ] = "element"
    invariants: Annotated[
        Invariants,
        documented(
            "A list of names, or a table of `name = true`. `shape_preserved` in a list demands "
            "the shape of the reference's output, in a table that of the primary input."
        ),
    ] = ()
    check_nan: Annotated[
        bool | None,
        documented(
            '`true` is `nan_policy = "strict"`, `false` is `"match"`.', default_text=AS_VALIDATION
        ),
    ] = None
    check_inf: Annotated[
        bool | None,
        documented(
            '`true` is `inf_policy = "strict"`, `false` is `"match"`.', default_text=AS_VALIDATION
        ),
    ] = None
    gradients: Annotated[
        bool | tuple[Word, ...],
        key(
            "Compare gradients with the reference's, too: `true` for all float inputs, or a list "
            "of inputs. Both programs must use PyTorch or JAX; see "
            "[outputs](outputs.md#gradients)."
        ),
    ] = False
    nan_policy: Annotated[
        Policy | None, key("Overrides `check_nan`.", default_text=AS_VALIDATION)
    ] = None
    inf_policy: Annotated[
        Policy | None, key("Overrides `check_inf`.", default_text=AS_VALIDATION)
    ] = None
    xla_compatible: Annotated[
        bool | None,
        documented(
            "For a JAX function: with `true`, XLA compiles all of it, with or without `jax.jit`; "
            "with `false`, nothing is compiled. For other ops `true` is an error.",
            default_text="as the function says",
        ),
    ] = None
    schema: Annotated[
        Schema | None,
        key(
            "Symbolic dims, inputs and outputs, or the name of a built-in schema; see "
            "[Schemas](#schemas).",
            default_text="one `elementwise` tensor per input name",
            aliases=("op_schema",),
        ),
    ] = None
    kwargs: Annotated[
        Mapping[str, Any],
        named("a table of keyword arguments", free=True),
        key(
            "Keyword arguments: callables get them with their types, scripts as strings. None may "
            "have the name of an input."
        ),
    ] = {}
    dtypes: Annotated[Dtypes | None, key("Dtypes to check.", default_text=AS_VALIDATION)] = None
    layouts: Annotated[Layouts | None, key("Memory layouts.", default_text=AS_VALIDATION)] = None
    strategies: Annotated[
        Strategies | None,
        key(
            "Value strategies or groups of them.",
            default_text=AS_VALIDATION,
            aliases=("strategy", "value_distribution"),
        ),
    ] = None
    cases: Annotated[Cases | None, key("Cases per dtype.", default_text=AS_VALIDATION)] = None
    fuzz_iterations: Annotated[
        Cases | None, key("Cases of `fuzz`.", default_text=AS_VALIDATION)
    ] = None
    reference_dtype: Annotated[
        FloatDtype | None,
        key("The wider dtype of the reference's outputs, which are compared unrounded."),
    ] = None
    timeout: Annotated[
        Seconds | None,
        key(
            "Seconds per case; a batch may take the sum. If neither this nor the default key is "
            "set, one more second is allowed per megabyte of inputs.",
            default_text="`execution.reference_timeout`",
        ),
    ] = None
    memory_limit: Annotated[
        Annotated[int, Meta(ge=LEAST_MEMORY), BYTES] | None,
        key("Memory that the op's process may use.", default_text="none"),
    ] = None
    env: Annotated[
        Annotated[
            Mapping[
                Annotated[
                    str,
                    text(
                        "a name without '=' and spaces",
                        pattern=r"[^=\s\x00-\x1f\x7f]+",
                        longest=256,
                    ),
                ],
                Annotated[str, text("a string", longest=32768, empty=True)],
            ],
            named("a table of strings"),
        ]
        | VariableNames,
        key(
            "Environment variables of the op and its reference: a table sets them; a list names "
            'variables of yours that are passed on, `["SCALE", "MY_*"]`.'
        ),
    ] = msgspec.field(default_factory=dict)
    depends: Annotated[
        Paths, key("Globs of files that the op or reference reads; part of the action key.")
    ] = ()
    shared: Annotated[
        Paths,
        key(
            "Globs of modules and other files of the reference that the op may read, too, besides "
            "modules that its own import statements name; see [security](security.md)."
        ),
    ] = ()
    foreach: Annotated[
        Template | None,
        key(
            "Makes the table a template: one op for each combination of the values. Names of "
            'values stand in braces in the texts, `name = "mm_{tile}"`. In place of a list, `{ '
            'files = "candidates/*.py" }` means the names of these files; see '
            "[rules](rules.md#templates)."
        ),
    ] = None
    needs: Annotated[
        tuple[Name, ...],
        Meta(max_length=1000),
        key(
            "Rules that run before it, because it uses their outputs. Rules of outputs that it "
            "names as programs or inputs need not be listed; see [rules](rules.md)."
        ),
    ] = ()
    build: Annotated[
        OpBuild | None,
        key("A rule for this op alone, which has the op's name; see [rules](rules.md)."),
    ] = None
    isolation: Annotated[
        str,
        choice(*ISOLATIONS, noun="isolation"),
        key(
            "`fork`: a process for all cases while none goes wrong; `spawn`: a new interpreter "
            "for each case; `warm`: one process for all cases. See "
            "[runners](runners.md#processes)."
        ),
    ] = "fork"
    mutates: Annotated[tuple[Word, ...], key("Inputs that the op may change.")] = ()
    require_kernel: Annotated[
        bool,
        key(
            "Require that kernels of the op store every element of its outputs; otherwise the op "
            "fails as `KernelBypassed`. For interpreted Triton ops and compiled kernels."
        ),
    ] = False
    forbid: Annotated[
        tuple[Word, ...],
        key('Functions of PyTorch that a Triton op must not call: `["torch.matmul"]`.'),
    ] = ()
    deterministic: Annotated[bool, key("`false` for ops whose equal calls may differ.")] = True


_NOT_RUN = (
    "kernels are built and linted, not run: put it into the [[ops]] that runs this kernel, or "
    "remove it"
)
Architectures = Annotated[
    tuple[Architecture, ...], Meta(max_length=32), also(Architecture, lambda arch: [arch])
]
Patterns = Annotated[
    tuple[Annotated[str, text("a pattern", longest=512)], ...], Meta(max_length=1000)
]


class ArtifactChecks(Table, frozen=True):
    """Limits that the lint checks for one kernel; None for no limit."""

    what = "a table of limits"
    closed = True

    max_registers: Annotated[Count, documented("Largest number of registers per thread.")] = 128
    max_spills: Annotated[Count, documented("Largest number of spill instructions.")] = 0
    max_spill_bytes: Annotated[Count | None, key("Largest number of spilled bytes.")] = None
    max_local_memory_bytes: Annotated[
        Count,
        documented("Largest number of stack bytes per thread.", aliases=("max_local_memory",)),
    ] = 0
    forbidden_instructions: Annotated[
        Patterns,
        documented(
            "Instructions that must not occur, by dotted segments of the opcode. If both names of "
            "the key are given, both lists count.",
            aliases=("forbidden_patterns",),
        ),
    ] = ()
    required_patterns: Annotated[Patterns, documented("Instructions that must occur.")] = ()
    max_shared_memory: Annotated[
        Annotated[int, Meta(ge=0), BYTES] | None, key("Largest static shared memory.")
    ] = None
    max_instructions: Annotated[Count | None, key("Largest number of instructions.")] = None
    min_occupancy: Annotated[
        Annotated[float, Meta(ge=0.0, le=1.0)] | None, key("Smallest occupancy, 0 to 1.")
    ] = None
    tensor_cores: Annotated[bool, key("Whether tensor-core instructions are expected.")] = False
    # The limits that the kernel's table sets; ``[policies]`` overrides the others.
    given: frozenset[str] = frozenset()


class Build(Table, frozen=True):
    """How a kernel is compiled."""

    what = "a table with arch and flags"

    arch: Annotated[Architectures, documented("Architectures to build for.")] = ()
    flags: Annotated[Arguments, documented("Compiler flags.")] = ()
    command: Annotated[
        Arguments,
        key("A command of your own that makes `ptx` or `cubin`; run in the workspace, no shell."),
    ] = ()
    inputs: Annotated[
        Paths | None,
        key(
            "Globs of the files that `command` reads, relative to the workspace. Without this key "
            "every run runs the command."
        ),
    ] = None


class AllowedRuleTable(Table, frozen=True):
    """A lint rule that a kernel may break."""

    what = "a table with rule and reason"
    closed = True

    rule: Annotated[AllowedRule, key("The lint rule.")]
    reason: Annotated[str, text("a reason"), key("Why it is allowed.")]


Scalar = Annotated[Any, named("a number, boolean or string")]


class KernelTable(Table, frozen=True):
    """One kernel, as a table of ``[[kernels]]`` gives it."""

    name: Annotated[Name, documented("Unique name.")]
    source: Annotated[PathText | None, documented("`.cu`, `.ptx` or `.cubin` file.")] = None
    ptx: Annotated[PathText | None, key("PTX file: made elsewhere, or by `build.command`.")] = None
    cubin: Annotated[PathText | None, key("Cubin file, likewise.")] = None
    reference: Annotated[
        str,
        text("a string", empty=True),
        documented("Accepted from documented files.", unread=_NOT_RUN),
    ] = ""
    tolerances: Annotated[
        Tolerances | None, documented("Accepted from documented files.", unread=_NOT_RUN)
    ] = None
    invariants: Annotated[
        Invariants, documented("Accepted from documented files.", unread=_NOT_RUN)
    ] = ()
    artifact_checks: Annotated[
        ArtifactChecks | None, documented("Limits that the lint checks.")
    ] = None
    build: Annotated[Build | None, documented("How it is compiled.")] = None
    arch: Annotated[Architectures, key("Architectures; the same as `build.arch`.")] = ()
    triton: Annotated[
        Annotated[str, text("path.py:kernel")] | None,
        key("A Triton kernel, `path.py:kernel`, compiled without a GPU."),
    ] = None
    signature: Annotated[
        Mapping[Word, Annotated[str, text("a type such as *fp32", longest=64)]],
        named("a table of types"),
        key("Types of a Triton kernel's arguments."),
    ] = {}
    constants: Annotated[
        Mapping[Word, Scalar], named("a table of constants"), key("Its `tl.constexpr` arguments.")
    ] = {}
    num_warps: Annotated[
        Annotated[int, Meta(ge=1, le=64)] | None, key("Warps of a Triton kernel.")
    ] = None
    num_stages: Annotated[
        Annotated[int, Meta(ge=1, le=64)] | None, key("Pipeline stages of a Triton kernel.")
    ] = None
    threads_per_block: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None,
        key(
            "Threads per block from which the occupancy is computed, if the kernel does not "
            "declare it."
        ),
    ] = None
    dynamic_shared_memory: Annotated[
        Annotated[int, Meta(ge=0), BYTES] | None,
        key("Dynamic shared memory per block, which is not part of the PTX."),
    ] = None
    allow: Annotated[
        Annotated[
            Mapping[AllowedRule, Annotated[str, text("a reason")]],
            named("a table of rule = reason"),
        ]
        | Annotated[tuple[AllowedRuleTable, ...], Meta(max_length=1000)],
        key("Lint rules that this kernel may break, each with a reason."),
    ] = {}
