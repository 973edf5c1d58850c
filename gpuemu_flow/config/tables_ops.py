"""The keys of ``[[ops]]``."""

from __future__ import annotations

from gpuemu_flow.config.keys import FreeValue, Key, Section
from gpuemu_flow.config.tables_rules import NEEDS, OP_BUILD
from gpuemu_flow.config.values import Bool, ByteSize, Choice, Either, Integer, ListOf, TableOf, Text
from gpuemu_flow.config.vocabulary import (
    DTYPE_LIST,
    FLOAT_DTYPE,
    FRAMEWORK,
    INVARIANT_SET,
    ISOLATIONS,
    LAYOUT_SET,
    MODE_ALIASES,
    MODES,
    OP_NAME,
    PATH,
    POLICY,
    PROGRAM,
    SCHEMA,
    SECONDS,
    STRATEGY_SET,
    TOLERANCES,
    VARIABLE_NAMES,
    WORD,
)
from gpuemu_flow.types import PRECISIONS

MAX_CASES = 1_000_000
LEAST_MEMORY = 1 << 20

AS_VALIDATION = "as `[validation]` says"

TOLERANCE_MODE = Choice(("auto", "table"), noun="tolerance")
PRECISION = Choice(PRECISIONS, noun="precision")
CASES = Integer(1, MAX_CASES)

OP = Section(
    (
        Key("name", OP_NAME, "Unique name; see [Names](#names).", required=True),
        Key(
            "op",
            PROGRAM,
            "The implementation under test; see [Programs](#programs).",
            ours=True,
        ),
        Key(
            "op_script",
            PROGRAM,
            "The documented spelling of `op` for scripts of the JSON protocol; give one of them.",
        ),
        Key(
            "module",
            Text(what="a dotted module path", longest=512),
            "Where the implementation of a `client_side` op lives: `pkg.mod`, `pkg.mod:function` "
            "or `path.py:function`. Without a function, the one of the op's name is meant. It is "
            "run as a callable when it is found in the workspace or names a function; otherwise "
            "the op is skipped by `run`, and counted as skipped.",
        ),
        Key(
            "reference",
            PROGRAM,
            "The trusted implementation; see [Programs](#programs).",
            required=True,
        ),
        Key(
            "input_names",
            ListOf(WORD, 0, 64, distinct=False),
            "Names of the inputs, in order; the first is the primary one. Any printable text for "
            "scripts; identifiers for callables that take inputs by keyword.",
            default_text='`["input"]`, or the inputs of `schema` in their order',
        ),
        Key(
            "execution_mode",
            Choice(MODES, noun="execution mode", aliases=MODE_ALIASES),
            "Where the op runs: `client_side`, `daemon_orchestrated` (also spelled `daemon_side`) "
            "or `script_based`. `run` skips, and counts, ops of the first two unless a callable "
            "is named.",
            default_text="`script_based` if `op` or `op_script` is given, else `client_side`",
        ),
        Key(
            "frameworks",
            ListOf(FRAMEWORK),
            "Frameworks that its programs are written in; each has to be imported by one of them. "
            "Of functions that name no kind, those whose file imports one get its tensors, of "
            "several the first.",
            default=[],
        ),
        Key(
            "framework",
            FRAMEWORK,
            "The same for a single one, over `project.framework`.",
            default_text="`project.framework`",
            ours=True,
        ),
        Key(
            "tolerances",
            TOLERANCES,
            "Per dtype: a number (absolute, rtol 0) or `{ atol, rtol }`; a missing member is "
            "inherited. Over those of `[validation]`.",
            default_text=AS_VALIDATION,
        ),
        Key(
            "tolerance",
            TOLERANCE_MODE,
            "`auto` or `table` for the dtypes without an explicit tolerance of this op.",
            default_text=AS_VALIDATION,
            ours=True,
        ),
        Key(
            "precision",
            PRECISION,
            "What a right op may round to a narrow dtype of its inputs, over that of "
            "`[validation]`.",
            default_text=AS_VALIDATION,
            ours=True,
        ),
        Key(
            "invariants",
            INVARIANT_SET,
            "A list of names, or a table of `name = true`. `shape_preserved` means the shape of "
            "the reference's output in a list, that of the primary input in a table.",
            default=[],
        ),
        Key(
            "check_nan",
            Bool(),
            '`true`: any NaN in the output fails (`nan_policy = "strict"`); `false`: `match`.',
            default_text=AS_VALIDATION,
        ),
        Key(
            "check_inf",
            Bool(),
            "`true`: any infinity in the output fails; `false`: `match`.",
            default_text=AS_VALIDATION,
        ),
        Key(
            "gradients",
            Either((Bool(), ListOf(WORD))),
            "Compare gradients with the reference's, too: `true` of all inputs of floats, or a "
            "list of inputs, of programs of PyTorch or JAX; see [outputs](outputs.md#gradients).",
            default=False,
            ours=True,
        ),
        Key("nan_policy", POLICY, "Over `check_nan`.", default_text=AS_VALIDATION, ours=True),
        Key("inf_policy", POLICY, "Over `check_inf`.", default_text=AS_VALIDATION, ours=True),
        Key(
            "xla_compatible",
            Bool(),
            "Of a function of JAX: `true`, all of it is compiled by XLA, whether it says `jax.jit` "
            "or not; `false`, nothing is. `true` is an error for other ops.",
            default_text="as the function says",
        ),
        Key(
            "schema",
            SCHEMA,
            "Symbolic dims, inputs and outputs, or the name of a built-in schema; see "
            "[Schemas](#schemas).",
            default_text="one `elementwise` tensor per input name",
            aliases=("op_schema",),
            ours=True,
        ),
        Key(
            "kwargs",
            FreeValue("a table of keyword arguments", only_table=True),
            "Keyword arguments, typed for callables, strings on protocol v1. No name may be an "
            "input's.",
            default={},
            ours=True,
        ),
        Key("dtypes", DTYPE_LIST, "Dtypes to check.", default_text=AS_VALIDATION, ours=True),
        Key("layouts", LAYOUT_SET, "Memory layouts.", default_text=AS_VALIDATION, ours=True),
        Key(
            "strategies",
            STRATEGY_SET,
            "Value strategies or groups of them.",
            default_text=AS_VALIDATION,
            aliases=("strategy", "value_distribution"),
            ours=True,
        ),
        Key("cases", CASES, "Cases per dtype.", default_text=AS_VALIDATION, ours=True),
        Key(
            "fuzz_iterations",
            CASES,
            "Cases of `fuzz`.",
            default_text=AS_VALIDATION,
            ours=True,
        ),
        Key(
            "reference_dtype",
            FLOAT_DTYPE,
            "The wider type that the reference answers in; compared unrounded.",
            ours=True,
        ),
        Key(
            "timeout",
            SECONDS,
            "Seconds per case; a batch may take their sum. Where neither is set, one more per "
            "megabyte of inputs.",
            default_text="`execution.reference_timeout`",
            ours=True,
        ),
        Key(
            "memory_limit",
            ByteSize(LEAST_MEMORY),
            "Address space of the op's process.",
            default_text="none",
            ours=True,
        ),
        Key(
            "env",
            Either(
                (
                    TableOf(
                        Text(r"[^=\s\x00-\x1f\x7f]+", "a name without '=' and spaces", longest=256),
                        Text(what="a string", empty=True, longest=32768),
                        "a table of strings",
                    ),
                    VARIABLE_NAMES,
                )
            ),
            "Environment variables of the op and its reference: a table sets them, a list lets "
            'yours of these names through: `["SCALE", "MY_*"]`.',
            default={},
            ours=True,
        ),
        Key(
            "depends",
            ListOf(PATH, 0, 1000),
            "Globs of files that the op or reference reads; part of the action key.",
            default=[],
            ours=True,
        ),
        Key(
            "shared",
            ListOf(PATH, 0, 1000),
            "Globs of modules and other files of the reference that the op may read as well, "
            "besides what its own import statements name; see [security](security.md).",
            default=[],
            ours=True,
        ),
        Key(
            "foreach",
            TableOf(
                Text(r"[A-Za-z_][A-Za-z0-9_]*", "a name", longest=128),
                Either(
                    (
                        ListOf(FreeValue("a string, number or boolean"), 1, 10_000),
                        Section(
                            (
                                Key(
                                    "files",
                                    PATH,
                                    "A glob with one `*` in the name of the file; the values are "
                                    "what it stands for.",
                                    required=True,
                                    ours=True,
                                ),
                            ),
                            "a table with files",
                            closed=True,
                        ),
                    )
                ),
                "a table of lists",
            ),
            "Makes the table a template: one op for each combination of the values, which stand "
            'in braces in its texts, `name = "mm_{tile}"`. `{ files = "candidates/*.py" }` in '
            "place of a list means the names of these files; see [rules](rules.md#templates).",
            ours=True,
        ),
        NEEDS,
        Key(
            "build",
            OP_BUILD,
            "A rule of the op's own, of its name; see [rules](rules.md).",
            ours=True,
        ),
        Key(
            "isolation",
            Choice(ISOLATIONS, noun="isolation"),
            "`fork` per batch, `spawn` a fresh interpreter, or keep one process `warm`.",
            default="fork",
            ours=True,
        ),
        Key("mutates", ListOf(WORD), "Inputs that the op may change.", default=[], ours=True),
        Key(
            "require_kernel",
            Bool(),
            "Kernels of the op have to store every element of its outputs; for Triton ops that are "
            "interpreted, and compiled kernels. Else `KernelBypassed`.",
            default=False,
            ours=True,
        ),
        Key(
            "forbid",
            ListOf(WORD),
            'Functions of PyTorch that a Triton op must not call: `["torch.matmul"]`.',
            default=[],
            ours=True,
        ),
        Key(
            "deterministic",
            Bool(),
            "`false` for ops whose equal calls may differ.",
            default=True,
            ours=True,
        ),
    ),
    "a table",
)
