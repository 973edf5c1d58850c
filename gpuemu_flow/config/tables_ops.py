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
            "The documented name of `op` for scripts of the JSON protocol; give only one of the "
            "two.",
        ),
        Key(
            "module",
            Text(what="a dotted module path", longest=512),
            "Where the implementation of a `client_side` op is: `pkg.mod`, `pkg.mod:function` or "
            "`path.py:function`. Without a function, the one with the op's name is meant. If it "
            "is found in the workspace or names a function, it is run as a callable; otherwise "
            "`run` skips the op, and counts it as skipped.",
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
            "or `script_based`. Ops of the first two are skipped by `run`, and counted as "
            "skipped, unless `module` leads to a callable.",
            default_text="`script_based` if `op` or `op_script` is given, else `client_side`",
        ),
        Key(
            "frameworks",
            ListOf(FRAMEWORK),
            "Frameworks that the op's programs are written in; at least one program has to import "
            "each. A function that names no kind gets the tensors of the first of these that its "
            "file imports.",
            default=[],
        ),
        Key(
            "framework",
            FRAMEWORK,
            "The same for a single framework; overrides `project.framework`.",
            default_text="`project.framework`",
            ours=True,
        ),
        Key(
            "tolerances",
            TOLERANCES,
            "Per dtype: a number (absolute, rtol 0) or `{ atol, rtol }`. They override those of "
            "`[validation]`; a missing member is inherited.",
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
            "What a right op may round to a narrow dtype of its inputs; overrides that of "
            "`[validation]`.",
            default_text=AS_VALIDATION,
            ours=True,
        ),
        Key(
            "invariants",
            INVARIANT_SET,
            "A list of names, or a table of `name = true`. `shape_preserved` in a list demands "
            "the shape of the reference's output, in a table that of the primary input.",
            default=[],
        ),
        Key(
            "check_nan",
            Bool(),
            '`true` is `nan_policy = "strict"`, `false` is `"match"`.',
            default_text=AS_VALIDATION,
        ),
        Key(
            "check_inf",
            Bool(),
            '`true` is `inf_policy = "strict"`, `false` is `"match"`.',
            default_text=AS_VALIDATION,
        ),
        Key(
            "gradients",
            Either((Bool(), ListOf(WORD))),
            "Compare gradients with the reference's, too: `true` for all float inputs, or a list "
            "of inputs. Both programs must use PyTorch or JAX; see "
            "[outputs](outputs.md#gradients).",
            default=False,
            ours=True,
        ),
        Key("nan_policy", POLICY, "Overrides `check_nan`.", default_text=AS_VALIDATION, ours=True),
        Key("inf_policy", POLICY, "Overrides `check_inf`.", default_text=AS_VALIDATION, ours=True),
        Key(
            "xla_compatible",
            Bool(),
            "For a JAX function: with `true`, XLA compiles all of it, with or without `jax.jit`; "
            "with `false`, nothing is compiled. For other ops `true` is an error.",
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
            "Keyword arguments: callables get them with their types, scripts as strings. None may "
            "have the name of an input.",
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
            "The wider dtype of the reference's outputs, which are compared unrounded.",
            ours=True,
        ),
        Key(
            "timeout",
            SECONDS,
            "Seconds per case; a batch may take the sum. If neither this nor the default key is "
            "set, one more second is allowed per megabyte of inputs.",
            default_text="`execution.reference_timeout`",
            ours=True,
        ),
        Key(
            "memory_limit",
            ByteSize(LEAST_MEMORY),
            "Memory that the op's process may use.",
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
            "Environment variables of the op and its reference: a table sets them; a list names "
            'variables of yours that are passed on, `["SCALE", "MY_*"]`.',
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
            "Globs of modules and other files of the reference that the op may read, too, besides "
            "modules that its own import statements name; see [security](security.md).",
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
                                    "the parts that it matches.",
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
            "Makes the table a template: one op for each combination of the values. Names of "
            'values stand in braces in the texts, `name = "mm_{tile}"`. In place of a '
            'list, `{ files = "candidates/*.py" }` means the names of these files; see '
            "[rules](rules.md#templates).",
            ours=True,
        ),
        NEEDS,
        Key(
            "build",
            OP_BUILD,
            "A rule for this op alone, which has the op's name; see [rules](rules.md).",
            ours=True,
        ),
        Key(
            "isolation",
            Choice(ISOLATIONS, noun="isolation"),
            "`fork`: a process for all cases while none goes wrong; `spawn`: a new interpreter "
            "for each case; `warm`: one process for all cases. See "
            "[runners](runners.md#processes).",
            default="fork",
            ours=True,
        ),
        Key("mutates", ListOf(WORD), "Inputs that the op may change.", default=[], ours=True),
        Key(
            "require_kernel",
            Bool(),
            "Require that kernels of the op store every element of its outputs; otherwise the op "
            "fails as `KernelBypassed`. For interpreted Triton ops and compiled kernels.",
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
