"""Words and types of values: dtypes, layouts, strategies, tolerances, paths and names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from gpuemu_flow.cases.schema import SCHEMA_KEYS
from gpuemu_flow.config.fields import (
    AS_GIVEN,
    U64_MAX,
    Table,
    also,
    choice,
    documented,
    named,
    text,
    then,
)
from gpuemu_flow.config.positions import KeyPath
from gpuemu_flow.config.report import Reporter
from gpuemu_flow.model.types import (
    ACCURACIES,
    DTYPE_ALIASES,
    DTYPES,
    FRAMEWORK_KINDS,
    INVARIANTS,
    LAYOUTS,
    PRECISIONS,
    STRATEGIES,
    STRATEGY_GROUPS,
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
    "unset-constant",
    "narrow-offset",
)
"""Names of the rules in ``lint.rules``, copied here so that reading a configuration does
not import that package."""
LOG_LEVELS = ("trace", "debug", "info", "warn", "error")
TRITON_MODES = ("interpreted", "compiled")
PROGRAM_KINDS = ("script", "callable", "command", *FRAMEWORK_KINDS, "triton", "ptx", "cuda")

MAX_SECONDS = 1_000_000.0

Seconds = Annotated[float, Meta(gt=0.0, le=MAX_SECONDS)]
Dtype = Annotated[
    str, choice(*DTYPES, noun="dtype", slug="config-unknown-dtype", spellings=DTYPE_ALIASES)
]
Dtypes = Annotated[tuple[Dtype, ...], Meta(min_length=1)]
FloatDtype = Annotated[
    str,
    choice(
        "float32", "float64", noun="reference dtype", slug="config-value", spellings=DTYPE_ALIASES
    ),
]
Layout = Annotated[str, choice(*LAYOUTS, noun="layout", slug="config-unknown-layout")]
Strategy = Annotated[
    str,
    choice(
        *STRATEGIES,
        *STRATEGY_GROUPS,
        noun="strategy",
        slug="config-unknown-strategy",
        spellings={"nan_injected": "special", "adversarial": "stress", "default": "core"},
    ),
]
Invariant = Annotated[str, choice(*INVARIANTS, noun="invariant", slug="config-unknown-invariant")]
LintRule = Annotated[str, choice(*LINT_RULES, noun="lint rule", slug="config-unknown-rule")]
AllowedRule = Annotated[
    str, choice(*LINT_RULES, noun="lint rule", slug="config-unknown-rule", soft=True)
]
Policy = Annotated[str, choice(*POLICIES, noun="policy", spellings={"warning": "warn"})]
Framework = Annotated[
    str,
    choice(
        *FRAMEWORKS, noun="framework", spellings={"torch": "pytorch", "tf": "tensorflow"}, soft=True
    ),
]
LogLevel = Annotated[str, choice(*LOG_LEVELS, noun="log level", spellings={"warning": "warn"})]
PathText = Annotated[str, text("a path")]
Name = Annotated[
    str, text("a name of letters, digits and _ . : / -", pattern=r"[A-Za-z0-9_.:/-]+", longest=200)
]
Word = Annotated[str, text(longest=128)]


def _template_hint(path: KeyPath, out: Reporter) -> str:
    """Return a hint for a wrong name of an op that a template made; empty for other ops."""
    if not out.origins.get(path[:2], ((), ""))[1]:
        return ""
    return (
        "let `foreach` give numbers or short names, such as i = [0, 1] for {i}, and have the "
        "op look up by its kwargs what they stand for"
    )


# The JSON Schema also accepts a template's name, with ``{name}`` in it.
OpName = Annotated[Name, named(hint=_template_hint, schema_pattern=r"[A-Za-z0-9_.:/{}-]+")]
Paths = Annotated[tuple[PathText, ...], Meta(max_length=1000)]
Argument = Annotated[str, text("an argument", empty=True)]
VariableNames = Annotated[
    tuple[
        Annotated[
            str,
            text(
                "a name of an environment variable, with * at its end at most",
                pattern=r"[^=*\s\x00-\x1f\x7f]*\*?",
                longest=256,
            ),
        ],
        ...,
    ],
    Meta(max_length=1000),
]

DOCUMENTED_LAYOUTS = ("contiguous", "strided", "transposed")


def _layouts_of_table(table: Mapping[str, bool]) -> list[str]:
    """Return the layouts that a table enables.

    A layout that the table omits is enabled if it is documented.
    """
    return [n for n in LAYOUTS if table.get(n, n in DOCUMENTED_LAYOUTS)]


def expanded_strategies(names: list[str]) -> list[str]:
    """Replace groups by their members; return each strategy once, in the vocabulary's order."""
    chosen = {member for name in names for member in STRATEGY_GROUPS.get(name, (name,))}
    return [name for name in STRATEGIES if name in chosen]


LayoutTable = Annotated[Mapping[Layout, bool], named("a table of layout = true or false")]
Layouts = Annotated[tuple[Layout, ...], Meta(min_length=1), also(LayoutTable, _layouts_of_table)]
Strategies = Annotated[
    tuple[Strategy, ...],
    Meta(min_length=1),
    then(expanded_strategies),
    also(Strategy, lambda name: expanded_strategies([name])),
]

Bound = Annotated[float, Meta(ge=0.0), Meta(extra={"slug": "config-tolerance"})]


class ToleranceTable(Table, frozen=True):
    """A tolerance as a table gives it for one dtype; None leaves a value to the next table."""

    what = "a table with atol or rtol or both"
    closed = True
    at_least_one = True

    atol: Annotated[Bound | None, documented("Absolute part.")] = None
    rtol: Annotated[Bound | None, documented("Relative part.")] = None


def _absolute_only(number: float) -> dict[str, float]:
    """Convert a bare number to an absolute tolerance, which is its documented meaning."""
    return {"atol": number, "rtol": 0.0}


Tolerances = Annotated[
    Mapping[Dtype, Annotated[ToleranceTable, also(Bound, _absolute_only)]],
    named("a table of dtype = number (absolute) or { atol, rtol }"),
]
Invariants = (
    tuple[Invariant, ...]
    | Annotated[Mapping[Invariant, bool], named("a table of invariant = true or false")]
)
Schema = (
    Annotated[str, text("the name of a built-in schema")]
    | Annotated[
        Mapping[str, Any], named("a table of dims, inputs and output", free=True, names=SCHEMA_KEYS)
    ]
)
Architecture = Annotated[
    str, text('an architecture such as "sm_80"', pattern=r"(?:sm_|compute_)?[1-9][0-9]{1,2}[af]?")
]
Arguments = Annotated[tuple[Argument, ...], Meta(max_length=200), AS_GIVEN]

Seed = Annotated[int, Meta(ge=0, extra={"most": U64_MAX})]
Count = Annotated[int, Meta(ge=0)]
Size = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Sizes = Annotated[tuple[Size, ...], Meta(max_length=1000)]
Sides = Annotated[tuple[Size, ...], Meta(max_length=16), AS_GIVEN]
Jobs = Annotated[int, Meta(ge=0, le=4096)]
Words = tuple[Word, ...]
MAX_CASES = 1_000_000
Cases = Annotated[int, Meta(ge=1, le=MAX_CASES)]
ToleranceMode = Annotated[str, choice("auto", "table", noun="tolerance")]
Accuracy = Annotated[str, choice(*ACCURACIES, noun="accuracy")]
Precision = Annotated[str, choice(*PRECISIONS, noun="precision")]


def one_policy(policy: str | None, check: bool | None) -> str | None:
    """Return the policy of a table for NaN or infinities; None if it sets none.

    A policy decides over the documented key `check`.
    """
    if policy or check is None:
        return policy or None
    return "strict" if check else "match"
