"""What a table of the configuration is: a struct whose fields carry limits, words and meanings.

Types are those of msgspec: ``Annotated[int, Meta(ge=0)]``. The functions below make the `Meta` of
what msgspec has no words for. `check` reads values by these types; the JSON Schema, the reference
page and editors describe them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, cast

import msgspec
import msgspec.inspect as ms
from msgspec import Meta

from gpuemu_flow.model.types import Json

U64_MAX = 2**64 - 1
I63_MAX = 2**63 - 1
MOST_ITEMS = 10_000


class Table(msgspec.Struct, frozen=True):
    """A table with known keys, and its values with all defaults.

    An unknown key is an error if its loss could weaken a check or a limit: if it is a misspelt
    known key, or belongs to another table. Any other unknown key is only a warning, since gpuemu
    0.1.0 ignores unknown keys.
    """

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
    return Meta(extra={"also": (ms.type_info(form), convert)})


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


_SEEN: dict[type, ms.Type] = {}
"""What msgspec says of each table, kept since asking it again takes long."""


@cache
def keys_of(table: type[Table]) -> dict[str, Key]:
    """Return the keys of a table by their main names; ``name`` stands first."""
    info = _SEEN.get(table) or ms.type_info(table)
    fields: tuple[ms.Field, ...] = getattr(info, "fields", ())
    found = [_key(each) for each in fields if "key" in parts(each.type)[1]]
    return {each.name: each for each in sorted(found, key=lambda each: each.name != "name")}


def _key(each: ms.Field) -> Key:
    kind, extra = parts(each.type)
    if isinstance(kind, ms.UnionType):
        given = tuple(form for form in kind.types if not isinstance(form, ms.NoneType))
        kind = given[0] if len(given) == 1 else ms.Metadata(ms.UnionType(given), None, extra)
    else:
        kind = each.type
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
    """Return the table that a value of this type is; None for any other type."""
    node, _ = parts(kind)
    if not isinstance(node, ms.StructType):
        return None
    _SEEN.setdefault(node.cls, node)
    return cast("type[Table]", node.cls)


def rows_of(kind: ms.Type) -> type[Table] | None:
    """Return the table that each element of an array of tables is; None for any other type."""
    node, extra = parts(kind)
    if isinstance(node, ms.VarTupleType) and "heading" in extra:
        return table_of(node.item_type)
    return None


def choice_of(kind: ms.Type) -> Choice | None:
    """Return the words that a value of this type is one of; None for any other type."""
    found: Choice | None = parts(kind)[1].get("choice")
    return found


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
    """Return a type as JSON Schema."""
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
    """Return a table as JSON Schema, with all names of its keys."""
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
    """Return the key at a path such as ``("ops", 0, "timeout")``; None for an unknown key.

    Indices of arrays may be left out.
    """
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
    """Return the type of a table's values if users choose its keys; None for any other type."""
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
