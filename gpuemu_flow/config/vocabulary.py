"""Value types for dtypes, layouts, strategies, tolerances, invariants and programs."""

from __future__ import annotations

from gpuemu_flow.cases.schema import SCHEMA_KEYS
from gpuemu_flow.config.keys import FreeValue, Key, Section
from gpuemu_flow.config.positions import KeyPath
from gpuemu_flow.config.report import Reporter
from gpuemu_flow.config.values import (
    Bool,
    Choice,
    Converted,
    Either,
    Integer,
    ListOf,
    Number,
    TableOf,
    Text,
)
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import (
    DTYPE_ALIASES,
    DTYPES,
    FRAMEWORK_KINDS,
    INVARIANTS,
    LAYOUTS,
    STRATEGIES,
    STRATEGY_GROUPS,
    Json,
)

MODES = ("client_side", "daemon_orchestrated", "script_based")
MODE_ALIASES = {"daemon_side": "daemon_orchestrated"}
POLICIES = ("match", "strict", "ignore")
ISOLATIONS = ("fork", "spawn", "warm")
FRAMEWORKS = ("pytorch", "jax", "tensorflow", "numpy", "triton")
EMULATOR_BACKENDS = ("auto", "numpy", "c")
LINT_RULES = (
    "real-spills",
    "local-memory",
    "register-limit",
    "accidental-f64",
    "debug-call",
    "debug-build",
    "static-shared-memory",
    "unmet-launch-bounds",
    "no-full-block",
    "missing-tensor-cores",
    "portability",
    "divergent-barrier",
    "integer-division-in-loop",
    "generic-address",
    "atomics-in-loop",
    "scalar-accesses",
    "unfused-multiply-add",
    "exact-division",
    "unused-shared-memory",
    "legacy-warp-operations",
    "forbidden-instruction",
    "required-instruction",
    "shared-memory-limit",
    "instruction-limit",
)
"""Names of the rules in ``artifacts.rules``, copied here so that reading a configuration does
not import that package."""
LOG_LEVELS = ("trace", "debug", "info", "warn", "error")
TRITON_MODES = ("interpreted", "compiled")
PROGRAM_KINDS = ("script", "callable", "command", *FRAMEWORK_KINDS, "triton", "ptx", "cuda")

MAX_SECONDS = 1_000_000.0

SECONDS = Number(0.0, MAX_SECONDS, above=True)
DTYPE = Choice(tuple(DTYPES), "config-unknown-dtype", "dtype", DTYPE_ALIASES)
DTYPE_LIST = ListOf(DTYPE, at_least=1)
FLOAT_DTYPE = Choice(("float32", "float64"), "config-value", "reference dtype", DTYPE_ALIASES)
LAYOUT = Choice(LAYOUTS, "config-unknown-layout", "layout")
STRATEGY = Choice(
    (*STRATEGIES, *STRATEGY_GROUPS),
    "config-unknown-strategy",
    "strategy",
    {"nan_injected": "special", "adversarial": "stress", "default": "core"},
)
INVARIANT = Choice(INVARIANTS, "config-unknown-invariant", "invariant")
LINT_RULE = Choice(LINT_RULES, "config-unknown-rule", "lint rule")
ALLOWED_RULE = Choice(LINT_RULES, "config-unknown-rule", "lint rule", soft=True)
POLICY = Choice(POLICIES, noun="policy", aliases={"warning": "warn"})
FRAMEWORK = Choice(
    FRAMEWORKS, noun="framework", aliases={"torch": "pytorch", "tf": "tensorflow"}, soft=True
)
LOG_LEVEL = Choice(LOG_LEVELS, noun="log level", aliases={"warning": "warn"})

PATH = Text(what="a path")
NAME = Text(r"[A-Za-z0-9_.:/-]+", "a name of letters, digits and _ . : / -", longest=200)
WORD = Text(longest=128)


@dataclass(frozen=True)
class OpName(Text):
    """The name of an op; the JSON Schema also accepts a template's name, with ``{name}`` in it."""

    def hint(self, path: KeyPath, out: Reporter) -> str:
        if not out.origins.get(path[:2], ((), ""))[1]:
            return ""
        return (
            "let `foreach` give numbers or short names, such as i = [0, 1] for {i}, and have the "
            "op look up by its kwargs what they stand for"
        )

    def schema(self) -> dict[str, Json]:
        return {**super().schema(), "pattern": r"^(?:[A-Za-z0-9_.:/{}-]+)$"}


OP_NAME = OpName(NAME.pattern, NAME.what, longest=NAME.longest)
VARIABLE_NAMES = ListOf(
    Text(
        r"[^=*\s\x00-\x1f\x7f]*\*?",
        "a name of an environment variable, with * at its end at most",
        longest=256,
    ),
    0,
    1000,
)

DOCUMENTED_LAYOUTS = ("contiguous", "strided", "transposed")


def _layouts_of_table(table: dict[str, bool]) -> list[str]:
    """Return the layouts that a table enables.

    A layout that the table omits is enabled if it is documented.
    """
    return [n for n in LAYOUTS if table.get(n, n in DOCUMENTED_LAYOUTS)]


def _expanded_strategies(names: list[str]) -> list[str]:
    """Replace groups by their members; return each strategy once, in the vocabulary's order."""
    chosen = {member for name in names for member in STRATEGY_GROUPS.get(name, (name,))}
    return [name for name in STRATEGIES if name in chosen]


LAYOUT_SET = Either(
    (
        ListOf(LAYOUT, at_least=1),
        Converted(TableOf(LAYOUT, Bool(), "a table of layout = true or false"), _layouts_of_table),
    )
)
STRATEGY_SET = Either(
    (
        Converted(ListOf(STRATEGY, at_least=1), _expanded_strategies),
        Converted(STRATEGY, lambda name: _expanded_strategies([name])),
    )
)

_BOUND = Number(0.0, slug="config-tolerance")
TOLERANCE = Section(
    (
        Key("atol", _BOUND, "Absolute part."),
        Key("rtol", _BOUND, "Relative part."),
    ),
    "a table with atol or rtol or both",
    at_least_one=True,
    closed=True,
)


def _absolute_only(number: float) -> Json:
    """Convert a bare number to an absolute tolerance, which is its documented meaning."""
    return {"atol": number, "rtol": 0.0}


TOLERANCES = TableOf(
    DTYPE,
    Either((Converted(_BOUND, _absolute_only), TOLERANCE)),
    "a table of dtype = number (absolute) or { atol, rtol }",
)

INVARIANT_SET = Either(
    (
        ListOf(INVARIANT),
        TableOf(INVARIANT, Bool(), "a table of invariant = true or false"),
    )
)

SCHEMA = Either(
    (
        Text(what="the name of a built-in schema"),
        FreeValue("a table of dims, inputs and output", only_table=True, names=SCHEMA_KEYS),
    )
)

ARCH = Text(r"(?:sm_|compute_)?[1-9][0-9]{1,2}[af]?", 'an architecture such as "sm_80"')
ARGUMENTS = ListOf(Text(what="an argument", empty=True), 0, 200, distinct=False)

_MODULE_KEYS = (
    Key(
        "module_class",
        WORD,
        "Of kind `torch`, in place of `function`: a class of `torch.nn.Module`, made once, whose "
        "`forward` is called.",
        ours=True,
    ),
    Key(
        "init",
        FreeValue("a table of arguments by name, or a list of them"),
        "Arguments of `module_class`.",
        default_text="none",
        ours=True,
    ),
    Key(
        "seed",
        Integer(0, (1 << 63) - 1),
        "What the weights of `module_class` follow from.",
        default_text="0",
        ours=True,
    ),
)

_LOADED_KEYS = (
    Key(
        "loads",
        PATH,
        "Of a callable or interpreted Triton op: a file whose path the function is given once; it "
        "returns the function that runs.",
        ours=True,
    ),
    Key(
        "triton_if",
        ListOf(Text(what="a word"), 1, 20),
        "Of a callable: it is of kind `triton` where the file of `loads` holds one of these words.",
        ours=True,
    ),
    Key(
        "skip_if",
        ListOf(Text(what="a word"), 1, 20),
        "The op is skipped where the file of `loads` holds one of these words.",
        ours=True,
    ),
)

_BUILD_KEYS = (
    Key(
        "kernel",
        NAME,
        "One of `[[kernels]]`, whose build makes the PTX of an op of kind `cuda`; in place of "
        "`file`.",
        ours=True,
    ),
    Key(
        "arch",
        ARCH,
        "Architecture that CUDA C++ or Triton is compiled for.",
        default_text="sm_80",
        ours=True,
    ),
    Key("flags", ARGUMENTS, "Flags of nvcc.", default_text="[]", ours=True),
    Key(
        "mode",
        Choice(TRITON_MODES, noun="mode"),
        "Of kind `triton`: `interpreted`, or `compiled`, which executes the PTX that Triton makes.",
        default_text="interpreted",
        ours=True,
    ),
)

_LAUNCH_KEYS = (
    Key("entry", WORD, "Kernel of a PTX or CUDA file; not needed when there is one.", ours=True),
    Key(
        "grid",
        FreeValue("a list of expressions"),
        'Blocks of a launch, one to three expressions: `["B*S"]`.',
        ours=True,
    ),
    Key("block", FreeValue("a list of expressions"), "Threads of a block, likewise.", ours=True),
    Key(
        "cluster",
        FreeValue("a list of expressions"),
        "Blocks of a cluster, likewise; not needed for a kernel with `__cluster_dims__`.",
        ours=True,
    ),
    Key(
        "args",
        FreeValue("a list of arguments"),
        'Arguments of the kernel in order: names of buffers, and numbers as `{ i32 = "B*S" }`.',
        ours=True,
    ),
    Key(
        "shared",
        FreeValue("an expression"),
        "Bytes of dynamic shared memory.",
        default_text="0",
        ours=True,
    ),
    Key(
        "launches",
        FreeValue("a list of tables"),
        "Several launches in a row, each with `entry`, `grid`, `block`, `cluster`, `args` and "
        "`shared`.",
        ours=True,
    ),
    Key(
        "outputs",
        FreeValue("a table of buffers", only_table=True),
        'Outputs of a compiled kernel: `{ out = ["B", "H"] }`, or with '
        '`{ dims = [...], dtype = "float32" }` another dtype than that of the first input. The '
        "name of an input means what the kernel leaves in it.",
        ours=True,
    ),
    Key(
        "scratch",
        FreeValue("a table of buffers", only_table=True),
        'Buffers that launches need and nobody looks at: `{ tmp = { bytes = "4*B", '
        'init = "none" } }`; `init = "zero"` clears them.',
        ours=True,
    ),
    Key(
        "checks",
        FreeValue("a list of checks"),
        "What is checked while a compiled kernel runs: `mem`, `init`, `race`, `sync`.",
        default_text="all",
        ours=True,
    ),
    Key(
        "backend",
        Choice(EMULATOR_BACKENDS, noun="back end"),
        "Who executes a compiled kernel: `numpy`, `c` (compiled by the system's C compiler, numpy "
        "where that cannot), or `auto`: `c` for large launches that it can run.",
        default_text="auto",
        ours=True,
    ),
)

PROGRAM = Either(
    (
        Text(what="a path, path.py:function, pkg.mod:function or executable"),
        ListOf(Text(what="an argument", empty=True), 1, 200, distinct=False),
        Section(
            (
                Key(
                    "kind",
                    Choice(PROGRAM_KINDS, "config-unknown-kind", "kind of program"),
                    "How it is run: `script`, `callable`, `command`, `torch`, `jax`, `numpy`, "
                    "`triton`, `ptx` or `cuda`.",
                    required=True,
                    ours=True,
                ),
                Key("path", PATH, "File of a script or callable.", ours=True),
                Key(
                    "module",
                    WORD,
                    "Module of a callable, dotted; of kind `torch` beside `file` the class of a "
                    "module, as `module_class`.",
                    ours=True,
                ),
                Key(
                    "file",
                    PATH,
                    "File of a framework's or Triton function, PTX or CUDA C++.",
                    ours=True,
                ),
                Key(
                    "function",
                    WORD,
                    "Function of a callable, of a framework, or of Triton kernels.",
                    ours=True,
                ),
                *_LOADED_KEYS,
                *_MODULE_KEYS,
                Key(
                    "argv",
                    ListOf(Text(what="an argument", empty=True), 1, 200, distinct=False),
                    "Executable and arguments of a command.",
                    ours=True,
                ),
                *_BUILD_KEYS,
                *_LAUNCH_KEYS,
            ),
            "a table with a kind",
            closed=True,
        ),
    )
)
