"""What a table of the configuration is: a struct whose fields carry limits, words and meanings.

Types are those of msgspec: ``Annotated[int, Meta(ge=0)]``. The functions below make the `Meta` of
what msgspec has no words for. `check` reads values by these types; the JSON Schema, the reference
page and editors describe them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, ClassVar, cast, get_args, get_origin

import msgspec
import msgspec.inspect as ms
from msgspec import Meta

from gpuemu_flow.cases.op_schema import SCHEMA_KEYS
from gpuemu_flow.config.report import KeyPath, Reporter
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
    Json,
)

U64_MAX = 2**64 - 1
I63_MAX = 2**63 - 1
MOST_ITEMS = 10_000


class Table(msgspec.Struct, frozen=True):
    """A table with known keys, and its values with all defaults. An unknown key is an error if its
    loss could weaken a check or a limit: if it is a misspelt known key, or belongs to another
    table. Any other unknown key is only a warning, since gpuemu 0.1.0 ignores unknown keys."""

    # Name of the table in messages.
    what: ClassVar[str] = "a table"
    # Every unknown key is an error, since each key of the table is a check or a limit.
    closed: ClassVar[bool] = False
    # No key of the table decides a verdict: a misspelt key is then only a warning.
    harmless: ClassVar[bool] = False
    # An empty table is an error.
    at_least_one: ClassVar[bool] = False


class Key(msgspec.Struct, frozen=True):
    """One key of a table."""

    name: str
    type: ms.Type
    # Meaning of the key, in a sentence or two of Markdown.
    doc: str
    # Value if the key is absent; None if there is none.
    default: Json
    # Words for the default, if the value alone is unclear.
    default_text: str
    # Other accepted names of the key, from the documented gpuemu.toml.
    aliases: tuple[str, ...]
    required: bool
    # False for keys of the documented gpuemu.toml, True for those that gpuemu-flow adds.
    ours: bool
    # Reason why a documented key has no effect here, and the key to write instead. Any value except
    # the default is an error, since the user would rely on a check that is not made.
    unread: str


def key(
    doc: str,
    *,
    default_text: str = "",
    aliases: tuple[str, ...] = (),
    ours: bool = True,
    unread: str = "",
) -> Meta:
    """Describe a key; the arguments are those of `Key`."""
    return Meta(extra={"key": (doc, default_text, aliases, ours, unread)})


def documented(doc: str, **more: Any) -> Meta:
    """Describe a key of the documented gpuemu.toml."""
    return key(doc, ours=False, **more)


def text(
    what: str = "a string", pattern: str | None = None, *, longest: int = 4096, empty: bool = False
) -> Meta:
    """Limit a string; `what` describes it."""
    least = 0 if empty else 1
    return Meta(min_length=least, max_length=longest, pattern=pattern, extra={"what": what})


def named(what: str = "", **more: Any) -> Meta:
    """Describe values in messages by `what`."""
    return Meta(extra={"what": what, **more} if what else more)


def rows(heading: str) -> Meta:
    """Mark an array of tables, each of which starts with a line `heading`."""
    return Meta(extra={"heading": heading})


def then(convert: Callable[[Any], Json]) -> Meta:
    """Convert a checked value by a function that cannot fail."""
    return Meta(extra={"then": convert})


def also(form: Any, convert: Callable[[Any], Json]) -> Meta:
    """Allow another form of a value, and give the function that converts it; it cannot fail."""
    return Meta(extra={"also": (type_of(form), convert)})


BYTES = Meta(extra={"bytes": True})
"""Marks an integer of bytes, which may be written as ``"2GB"``."""
AS_GIVEN = Meta(extra={"repeats": True})
"""Marks an array in which positions matter: repeated values are kept."""


class Choice(msgspec.Struct, frozen=True):
    """One word of a list, in upper or lower case."""

    words: tuple[str, ...]
    slug: str
    noun: str
    # Other spellings, and the words that they mean.
    spellings: Mapping[str, str]
    # An unknown word is kept, and causes only a warning.
    soft: bool
    # Words that were accepted once, and what to do instead.
    gone: Mapping[str, str]


def choice(
    *words: str,
    noun: str = "value",
    slug: str = "config-value",
    spellings: Mapping[str, str] | None = None,
    soft: bool = False,
    gone: Mapping[str, str] | None = None,
) -> Meta:
    """Limit a string to some words; the arguments are those of `Choice`."""
    return Meta(extra={"choice": Choice(words, slug, noun, spellings or {}, soft, gone or {})})


def parts(kind: ms.Type) -> tuple[ms.Type, dict[str, Any]]:
    """Return a type and what the functions above say about it."""
    if isinstance(kind, ms.Metadata):
        return kind.type, kind.extra or {}
    return kind, {}


_PLAIN: dict[Any, type[ms.Type]] = {
    str: ms.StrType,
    int: ms.IntType,
    float: ms.FloatType,
    bool: ms.BoolType,
    Any: ms.AnyType,
    type(None): ms.NoneType,
}
_LIMITS = ("ge", "gt", "le", "pattern", "min_length", "max_length")


def type_of(hint: Any) -> ms.Type:
    """Return what `msgspec.inspect.type_info` does, but without the fields of tables.

    A file has few of the tables, and to ask for the keys of all takes longer than to load it.
    """
    metas: tuple[Meta, ...] = getattr(hint, "__metadata__", ())
    extra = {name: value for meta in metas for name, value in (meta.extra or {}).items()}
    limits = {
        name: limit
        for meta in metas
        for name in _LIMITS
        if (limit := getattr(meta, name)) is not None
    }
    node = _bare_type(hint.__origin__ if metas else hint, limits)
    return ms.Metadata(node, None, extra) if extra else node


def _bare_type(hint: Any, limits: Mapping[str, Any]) -> ms.Type:
    if hint in _PLAIN:
        return _PLAIN[hint](**limits)
    if not isinstance(hint, type) and (given := get_args(hint)):
        if get_origin(hint) is tuple:
            return ms.VarTupleType(type_of(given[0]), **limits)
        inner = tuple(map(type_of, given))
        return (
            ms.DictType(inner[0], inner[1]) if get_origin(hint) is Mapping else ms.UnionType(inner)
        )
    return ms.StructType(hint, ()) if issubclass(hint, Table) else ms.CustomType(hint)


@cache
def keys_of(table: type[Table]) -> dict[str, Key]:
    """Return the keys of a table by their main names; ``name`` stands first."""
    fields = ((each, type_of(each.type)) for each in msgspec.structs.fields(table))
    found = [_key(each, kind) for each, kind in fields if "key" in parts(kind)[1]]
    return {each.name: each for each in sorted(found, key=lambda each: each.name != "name")}


def _key(each: msgspec.structs.FieldInfo, kind: ms.Type) -> Key:
    node, extra = parts(kind)
    if isinstance(node, ms.UnionType):
        given = tuple(form for form in node.types if not isinstance(form, ms.NoneType))
        kind = given[0] if len(given) == 1 else ms.Metadata(ms.UnionType(given), None, extra)
    default = each.default
    if each.default_factory is not msgspec.NODEFAULT:
        default = each.default_factory()
    elif default in (msgspec.NODEFAULT, "") or isinstance(default, Table):
        default = None
    doc, default_text, aliases, ours, unread = extra["key"]
    return Key(
        each.name,
        kind,
        doc,
        msgspec.to_builtins(default) if isinstance(default, tuple) else default,
        default_text,
        aliases,
        each.required,
        ours,
        unread,
    )


@cache
def names_of(table: type[Table]) -> dict[str, Key]:
    """Map the name and every alias of each key to the key."""
    return {name: each for each in keys_of(table).values() for name in (each.name, *each.aliases)}


def forms(kind: ms.Type) -> list[ms.Type]:
    """Return the forms that a value may have, which differ by their TOML types."""
    node, extra = parts(kind)
    if isinstance(node, ms.UnionType):
        return [one for form in node.types for one in forms(form)]
    return [kind, *(forms(extra["also"][0]) if "also" in extra else ())]


def table_of(kind: ms.Type) -> type[Table] | None:
    node, _ = parts(kind)
    return cast("type[Table]", node.cls) if isinstance(node, ms.StructType) else None


def rows_of(kind: ms.Type) -> type[Table] | None:
    node, extra = parts(kind)
    if isinstance(node, ms.VarTupleType) and "heading" in extra:
        return table_of(node.item_type)
    return None


def accepts(kind: ms.Type, value: Json) -> bool:
    """Tell whether a value has an allowed TOML type; the content is not checked."""
    return any(accepts_itself(form, value) for form in forms(kind))


def accepts_itself(kind: ms.Type, value: Json) -> bool:  # noqa: PLR0911 - one return for each type
    """Tell whether a value has the TOML type of a type's own form, which is no other one."""
    node, extra = parts(kind)
    if isinstance(node, ms.AnyType):
        return True
    if isinstance(value, bool):
        return isinstance(node, ms.BoolType)
    if isinstance(value, int):
        return isinstance(node, (ms.IntType, ms.FloatType))
    if isinstance(value, float):
        return isinstance(node, ms.FloatType)
    if isinstance(value, str):
        return isinstance(node, (ms.StrType, ms.CustomType)) or "bytes" in extra
    if isinstance(value, list):
        return isinstance(node, ms.VarTupleType)
    return isinstance(value, dict) and isinstance(node, (ms.DictType, ms.StructType))


def describe(kind: ms.Type) -> str:
    """Describe a type in a few words, for messages and the reference page."""
    found = forms(kind)
    return ", or ".join(map(_described, found))


def _described(kind: ms.Type) -> str:  # noqa: PLR0911 - one return for each type
    node, extra = parts(kind)
    if "what" in extra:
        return str(extra["what"])
    if "bytes" in extra:
        return 'a size: bytes as an integer, or a string such as "2GB" or "512MiB"'
    if "heading" in extra:
        return f"an array of tables, each headed {extra['heading']}"
    words: Choice | None = extra.get("choice")
    if words is not None:
        few = len(words.words) <= 5
        return " or ".join(f'"{w}"' for w in words.words) if few else f"a known {words.noun}"
    if isinstance(node, ms.BoolType):
        return "true or false"
    if isinstance(node, ms.IntType):
        if node.le is None:
            return f"an integer of at least {node.ge}"
        return f"an integer from {node.ge} to {node.le}"
    if isinstance(node, ms.FloatType):
        low = f"of at least {node.ge:g}" if node.gt is None else f"above {node.gt:g}"
        return f"a finite number {low}{'' if node.le is None else f' and at most {node.le:g}'}"
    if isinstance(node, ms.VarTupleType):
        return f"an array, each element {describe(node.item_type)}"
    table = table_of(kind)
    if table is not None:
        return table.what
    return "a path" if isinstance(node, ms.CustomType) else "any value but a date"


def plain(markdown: str) -> str:
    """Return a description without Markdown's backquotes, for editors."""
    return markdown.replace("`", "")


def json_schema(kind: ms.Type) -> dict[str, Json]:
    found = forms(kind)
    if len(found) > 1:
        return {"anyOf": [_schema(form) for form in found]}
    return _schema(kind)


_SIZE_SCHEMA = r"^\s*\d{1,15}(\.\d{1,6})?\s*([kKmMgGtT][iI]?)?[bB]\s*$|^\s*\d{1,15}(\.\d{1,6})?\s*$"


def _schema(kind: ms.Type) -> dict[str, Json]:  # noqa: PLR0911 - one return for each type
    node, extra = parts(kind)
    if "choice" in extra:
        return _schema_of_words(extra["choice"])
    if isinstance(node, ms.BoolType):
        return {"type": "boolean"}
    if isinstance(node, ms.IntType):
        most = extra.get("most", I63_MAX) if node.le is None else node.le
        number = {"type": "integer", "minimum": node.ge, "maximum": most}
        size = {"type": "string", "pattern": _SIZE_SCHEMA}
        return {"anyOf": [number, size]} if "bytes" in extra else number
    if isinstance(node, ms.FloatType):
        low = {"minimum": node.ge} if node.gt is None else {"exclusiveMinimum": node.gt}
        most = 1.7976931348623157e308 if node.le is None else node.le
        return {"type": "number", **low, "maximum": most}
    if isinstance(node, ms.StrType):
        out: dict[str, Json] = {"type": "string", "maxLength": node.max_length}
        if node.min_length:
            out["minLength"] = 1
        pattern = extra.get("schema_pattern", node.pattern)
        return {**out, "pattern": f"^(?:{pattern})$"} if pattern else out
    if isinstance(node, ms.CustomType):
        return {"type": "string", "maxLength": 4096, "minLength": 1}
    if isinstance(node, ms.VarTupleType):
        items = {"type": "array", "items": json_schema(node.item_type)}
        if "heading" in extra:
            return items
        most = MOST_ITEMS if node.max_length is None else node.max_length
        return {**items, "minItems": node.min_length or 0, "maxItems": most}
    table = table_of(kind)
    if table is not None:
        return table_schema(table)
    if isinstance(node, ms.DictType) and "free" not in extra:
        names, values = json_schema(node.key_type), json_schema(node.value_type)
        return {"type": "object", "propertyNames": names, "additionalProperties": values}
    # Without the last keyword, Tombi supposes that the table must be empty.
    free: dict[str, Json] = {"additionalProperties": True}
    return {"type": "object", **free} if "free" in extra else free


def _schema_of_words(words: Choice) -> dict[str, Json]:
    if words.soft:
        return {"type": "string", "examples": list(words.words)}
    every = "|".join("".join(map(_either_case, w)) for w in (*words.words, *words.spellings))
    # Editors suggest the words of the first schema; the second matches them in any case, since JSON
    # Schema's patterns have no flags.
    known = {"enum": list(words.words)}
    return {"type": "string", "anyOf": [known, {"pattern": f"^(?:{every})$"}]}


def _either_case(char: str) -> str:
    return f"[{char.lower()}{char.upper()}]" if char.isalpha() else re.escape(char)


def table_schema(table: type[Table]) -> dict[str, Json]:
    properties: dict[str, Json] = {}
    keys = list(keys_of(table).values())
    for each in keys:
        for name in (each.name, *each.aliases):
            properties[name] = {**json_schema(each.type), "description": plain(each.doc)}
            if name != each.name:
                properties[name]["description"] = f"Another name of '{each.name}'."
            elif each.default is not None:
                properties[name]["default"] = each.default
    out: dict[str, Json] = {"type": "object", "properties": properties}
    required = [each.name for each in keys if each.required]
    if required:
        out["required"] = required
    if table.closed:
        out["additionalProperties"] = False
    if table.at_least_one:
        out["anyOf"] = [{"required": [each.name]} for each in keys]
    return out


def key_at(file: type[Table], path: Sequence[str | int]) -> Key | None:
    """Return the key at a path such as ``("ops", 0, "timeout")``; None for an unknown key. Indices
    of arrays may be left out."""
    words = [part for part in path if isinstance(part, str)]
    found = table_at(file, words[:-1])
    return names_of(found).get(words[-1]) if found is not None and words else None


def table_at(file: type[Table], path: Sequence[str | int]) -> type[Table] | None:
    """Return the table at a path, or None; the empty path is the whole file."""
    found: type[Table] | None = file
    rest: ms.Type | None = None
    for part in path:
        if isinstance(part, int):
            continue
        if rest is not None:  # inside a table with free keys
            found, rest = _inner_table(rest), None
            continue
        own = names_of(found).get(part) if found is not None else None
        if own is None:
            return None
        rest = next(map(_values, filter(_values, forms(own.type))), None)
        found = None if rest is not None else _inner_table(own.type)
    return None if rest is not None else found


def _inner_table(kind: ms.Type) -> type[Table] | None:
    return next((t for form in forms(kind) if (t := table_of(form) or rows_of(form))), None)


def _values(kind: ms.Type) -> ms.Type | None:
    node, extra = parts(kind)
    return node.value_type if isinstance(node, ms.DictType) and "free" not in extra else None


def words_of(kind: ms.Type) -> tuple[str, ...]:
    """Return the words allowed for a value or its elements; ``true`` and ``false`` for booleans."""
    return tuple(dict.fromkeys(word for form in forms(kind) for word in _words(form)))


def _words(kind: ms.Type) -> Iterator[str]:
    node, extra = parts(kind)
    if isinstance(node, ms.BoolType):
        yield from ("true", "false")
    elif "choice" in extra:
        yield from extra["choice"].words
    elif isinstance(node, ms.VarTupleType):
        yield from words_of(node.item_type)


# Words and types of values: dtypes, layouts, strategies, tolerances, paths and names.

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
    """Return the layouts that a table enables. A layout that the table omits is enabled if it is
    documented."""
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
    """Return the policy of a table for NaN or infinities; None if it sets none. A policy decides
    over the documented key `check`."""
    if policy or check is None:
        return policy or None
    return "strict" if check else "match"


# Check names of ops, kernels and targets, and split the names of tasks.

OP_STAGES = ("generate", "op", "reference", "compare", "diff")
KERNEL_STAGES = ("build", "code", "lint", "diff")
BUILD = "build"
STAGES = tuple(dict.fromkeys((*OP_STAGES, *KERNEL_STAGES)))
GROUPS = ("quick", "lint", "all")


def name_fault(name: str) -> str:
    """Return the reason why an op, kernel or target cannot have this name; empty if it can. A task
    is called ``STAGE:SUBJECT`` or ``STAGE:SUBJECT:DTYPE`` (``:ARCH`` for kernels). A subject may
    itself contain colons (``aten::softmax``). But a subject must not begin with a stage or end with
    a dtype, so that the parts can be recognised."""
    first, _, last = name.split(":", 1)[0], "", name.rsplit(":", 1)[-1]
    if name in STAGES or name in GROUPS:
        return "is the name of a stage or group"
    if ":" in name and first in STAGES:
        return f"begins with the stage {first!r}, as tasks do"
    if ":" in name and last in DTYPES:
        return f"ends with the dtype {last!r}, as tasks do"
    if name.startswith(("-", "/", ":")) or name.endswith(("/", ":")):
        return "begins or ends with a sign that separates names"
    if any(part in ("", ".", "..") for part in name.split("/")):
        return "has an empty part, '.' or '..' between slashes"
    return ""


def split_task(name: str) -> tuple[str, str, str] | None:
    """Split a task's name into stage, subject and last part.

    The last part is a dtype, or an architecture (``sm_...``), or empty if there is neither. A
    subject may also end in ``:sm_...``. This end is split off like an architecture, since only the
    configuration's names could tell the difference. Return None if `name` begins with no stage.

    >>> split_task("compare:aten::softmax:float32")
    ('compare', 'aten::softmax', 'float32')
    >>> split_task("lint:softmax_kernel")
    ('lint', 'softmax_kernel', '')
    """
    stage, colon, rest = name.partition(":")
    if stage not in STAGES or not colon or not rest:
        return None
    subject, colon, last = rest.rpartition(":")
    if not colon or not subject:
        return stage, rest, ""
    is_arch = last.startswith("sm_")
    return (stage, subject, last) if last in DTYPES or is_arch else (stage, rest, "")
