"""Keys and tables of the configuration file: the values allowed, the default and the meaning."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from gpuemu_flow.config.positions import KeyPath
from gpuemu_flow.config.report import Reporter, dotted, shortened, shown
from gpuemu_flow.config.unknown import SHORT, is_misspelt
from gpuemu_flow.config.values import (
    INVALID,
    U64_MAX,
    Choice,
    Either,
    ValueType,
    toml_type,
)
from gpuemu_flow.errors import AddKey, Hint, Rename, nearest
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import Json

MAX_TABLES = 20_000
MAX_FREE_DEPTH = 16
MAX_FREE_VALUES = 10_000


@dataclass(frozen=True)
class Key:
    """One key of a table.

    Attributes
    ----------
    name : str
        Main name of the key, used by the reference page and the model.
    type : ValueType
    doc : str
        Meaning of the key, in a sentence or two of Markdown.
    default : Json
        Value if the key is absent; None if there is no default.
    default_text : str
        Words for the default on the reference page, if the value alone is unclear.
    aliases : tuple of str
        Other accepted names of the key, from the documented gpuemu.toml.
    required : bool
    ours : bool
        False for keys of the documented gpuemu.toml, True for those that gpuemu-flow adds.
    unread : str
        Reason why a documented key has no effect here, and the key to write instead; empty for
        other keys. Any value except the default is an error, since the user would rely on a check
        that is not made.
    """

    name: str
    type: ValueType
    doc: str
    default: Json = None
    default_text: str = ""
    aliases: tuple[str, ...] = ()
    required: bool = False
    ours: bool = False
    unread: str = ""

    @property
    def counts(self) -> bool:
        """Tell whether a verdict could claim too much if the key were ignored."""
        return not (isinstance(self.type, Section) and self.type.harmless)

    def may_be(self, name: str, written: str, value: Json) -> bool:
        """Tell whether the unknown key `written` may be a misspelling of `name`.

        `name` is the name of this key, or one of its aliases. If `name` or `written` is short, the
        unknown key's `value` must be valid for this key, since short names are similar to many
        words. The result is False if no verdict depends on this key.
        """
        long = min(len(name), len(written)) > SHORT
        return self.counts and (long or is_meant(self.type, value, ()))


def _says_something(key: Key, value: Json) -> bool:
    """Tell whether a written value is neither the default nor empty."""
    return value != key.default and (bool(value) or value is False)


def _joined(path: KeyPath, name: str) -> str:
    """Return the full name of a table `name` inside the table at `path`, joined by dots."""
    return ".".join((*(part for part in path if isinstance(part, str)), name))


FEW = 4  # keys that a hint lists
MAX_LOOKED_AT = 100  # unknown keys of a table that may be a misspelt required key


@dataclass(frozen=True, eq=False)
class Section(ValueType):
    """A table with known keys.

    An unknown key is an error if its loss could weaken a check or a limit: if it is a misspelt
    known key, or belongs to another table (`Reporter.elsewhere`). Any other unknown key is only a
    warning, since gpuemu 0.1.0 ignores unknown keys.

    Attributes
    ----------
    keys : tuple of Key
    what : str
        Name of the table in messages.
    at_least_one : bool
        True if an empty table is an error.
    closed : bool
        True to treat every unknown key as an error, since each key of the table is a check or a
        limit.
    harmless : bool
        True if no key of the table decides a verdict. A misspelt key is then only a warning.
    """

    keys: tuple[Key, ...]
    what: str = "a table"
    at_least_one: bool = False
    closed: bool = False
    harmless: bool = False

    @cached_property
    def by_name(self) -> dict[str, Key]:
        """Map the name and every alias of each key to the key."""
        return {name: key for key in self.keys for name in (key.name, *key.aliases)}

    def accepts(self, value: Json) -> bool:
        return isinstance(value, dict)

    def check(self, value: Json, path: KeyPath, out: Reporter) -> Json:
        """Check the table `value`, and return its valid values by the keys' main names.

        `out` receives the problems. The result is `INVALID` if `value` is not a table, or if it is
        empty and `at_least_one` forbids this.
        """
        if not self.accepts(value):
            return self.wrong_type(value, path, out)
        checked: dict[str, Json] = {}
        wrong: set[str] = set()
        for written, element in value.items():
            key = self.by_name.get(written)
            if key is None:
                self.unknown(written, value, path, out)
                continue
            here = (*path, written)
            if key.name != written:
                out.aliases.setdefault((*path, key.name), here)
            result = key.type.check(element, here, out)
            if key.unread and result is not INVALID and _says_something(key, result):
                text = f"{dotted(here)} has no effect"
                out.add("config-unread-key", here, text, key.unread)
            if result is INVALID:
                wrong.add(key.name)
            elif key.name in checked:
                checked[key.name] = self.joined(key, checked[key.name], result, here, out)
            else:
                checked[key.name] = result
        for key in self.keys:
            if key.required and key.name not in checked and key.name not in wrong:
                text = f"{dotted(path) or 'the file'} lacks the key '{key.name}'"
                unknown = [written for written in value if written not in self.by_name]
                misspelt = nearest(key.name, unknown[:MAX_LOOKED_AT])
                hint = f"{shortened(misspelt)!r} is no key; rename it?" if misspelt else ""
                out.add("config-missing-key", path, text, Hint.of(hint, AddKey(key.name)))
        if self.at_least_one and not checked and not wrong:
            names = " or ".join(key.name for key in self.keys)
            out.add("config-missing-key", path, f"{dotted(path)} lacks {names}")
            return INVALID
        return checked

    def unknown(
        self, written: str, table: Mapping[str, Json], path: KeyPath, out: Reporter
    ) -> None:
        """Report that `table`, the table at `path`, has the unknown key `written`."""
        value = table[written]
        place, counts, hint = "", False, ""
        meant = self._longer(written, value)
        holders = () if meant else self._holders_of(written, table, path)
        if meant is not None:
            counts = meant.counts
            hint = Hint.of(f"did you mean {meant.name!r}?", Rename(written, meant.name))
        elif holders:
            place = _below(holders, written, table, path)
            kinds = [tuple(_types_of(key.type, written)) for key in holders]
            counts = any(key.counts for key in holders) and any(
                not each or any(is_meant(k, value, path) for k in each) for each in kinds
            )
        for other in () if place or hint else out.elsewhere.get(written, ()):
            if other.is_meant(value, path):
                place, counts = f"in {other.table}", True
        if not path and not place:
            meant = next((key for key in self.keys if _holds_keys_of(key.type, value)), None)
            if meant is not None:
                counts, hint = True, f"its keys are those of [{meant.name}]"
        if not counts and not out.hopeless:
            counting = [n for n, key in self.by_name.items() if key.may_be(n, written, value)]
            counts = self.closed or (not self.harmless and is_misspelt(written, counting))
        if place:
            hint = f"{written!r} belongs {place}"
        elif not hint:
            few = self.closed and len(self.keys) <= FEW
            hint = self._ending(written) or out.nearest(written, self.by_name, or_all=few)
            hint = hint or self._taking(value, out)
        name = dotted((*path, written)) or shortened(written)
        where = (*path, written)
        out.add("config-unknown-key", where, f"unknown key {name!r}", hint, warning=not counts)

    def _ending(self, written: str) -> str:
        """Return a hint that names the known keys whose names end in ``_`` followed by `written`.

        The hint is empty if there are no such keys, or more than `FEW`.
        """
        found = [name for name in self.by_name if name.endswith(f"_{written}")]
        if len(found) != 1:
            few = " or ".join(map(repr, found[:FEW]))
            return f"did you mean {few}?" if 0 < len(found) <= FEW else ""
        return Hint.of(f"did you mean {found[0]!r}?", Rename(written, found[0]))

    def _longer(self, written: str, value: Json) -> Key | None:
        """Return the key whose name contains `written` and that accepts the word `value`.

        Names consist of parts joined by underscores, and `written` must be one or several whole
        parts. The result is None if there is no such key, or more than one.
        """
        found = [
            key
            for key in self.keys
            if f"_{written}_" in f"_{key.name}_" and takes_word(key.type, value)
        ]
        return found[0] if len(found) == 1 else None

    def _taking(self, value: Json, out: Reporter) -> str:
        """Return a hint that names the only key of this section that accepts the word `value`.

        The hint is empty if there is no such key, or more than one. It is also empty for a short
        word such as ``auto``, which the keys of other programs often have as a value.
        """
        if out.hopeless or not isinstance(value, str) or len(value) <= SHORT:
            return ""
        found = [key.name for key in self.keys if takes_word(key.type, value)]
        return f"{shown(value)} is a value of {found[0]!r}" if len(found) == 1 else ""

    def _holders_of(
        self, written: str, table: Mapping[str, Json], path: KeyPath
    ) -> tuple[Key, ...]:
        """Find the keys of this section below which the misplaced key `written` may belong.

        `table`, the table at `path`, contains `written` by mistake. A key of this section is a
        candidate if its value can be a table that has a key `written` with this value. At the top
        level, return all candidates. Elsewhere, return the first of these groups that is not empty:

        - the candidates to which `table` gives a table as their value,
        - the candidates to which `table` gives any value,
        - the first candidate alone.
        """
        value = table[written]
        found = []
        for key in self.keys:
            kinds = tuple(_types_of(key.type, written))
            free = _has_key(key.type, written) and not kinds
            if free or any(_is_possible(kind, value) for kind in kinds):
                found.append(key)
        if not path:
            return tuple(found)
        given = [key for key in found if key.name in table]
        tables = [key for key in given if isinstance(table[key.name], dict)]
        return tuple(tables or given or found[:1])

    def joined(self, key: Key, first: Json, second: Json, path: KeyPath, out: Reporter) -> Json:
        """Combine the values that a table gives for two names of the same key.

        Two lists are joined. In other cases, return `first`, and report values that differ.
        """
        if isinstance(first, list) and isinstance(second, list):
            return first + [element for element in second if element not in first]
        if first != second:
            text = f"{dotted(path)} and another spelling of '{key.name}' differ"
            out.add("config-conflict", path, text, f"keep '{key.name}'")
        return first

    def value(self, data: Mapping[str, Json], name: str) -> Json:
        """Return the value of a key in `data` (the result of `check`), or the key's default."""
        if name in data:
            return data[name]
        return self.by_name[name].default

    def values(self, data: Mapping[str, Json]) -> dict[str, Json]:
        """Return a value for every key of the section: from `data`, or the key's default."""
        return {key.name: self.value(data, key.name) for key in self.keys}

    def schema(self) -> dict[str, Json]:
        properties: dict[str, Json] = {}
        for key in self.keys:
            for name in (key.name, *key.aliases):
                properties[name] = {**key.type.schema(), "description": plain(key.doc)}
                if name != key.name:
                    properties[name]["description"] = f"Another name of '{key.name}'."
                elif key.default is not None:
                    properties[name]["default"] = key.default
        out: dict[str, Json] = {"type": "object", "properties": properties}
        required = [key for key in self.keys if key.required]
        with_aliases = [
            {"anyOf": [{"required": [n]} for n in (key.name, *key.aliases)]}
            for key in required
            if key.aliases
        ]
        if required:
            out["required"] = [key.name for key in required if not key.aliases]
        if self.closed:
            out["additionalProperties"] = False
        if self.at_least_one:
            out["anyOf"] = [{"required": [key.name]} for key in self.keys]
        if with_aliases:
            out["allOf"] = with_aliases
        return out

    def describe(self) -> str:
        return self.what


@dataclass(frozen=True)
class Tables(ValueType):
    """An array of tables with the same keys; an invalid table becomes `INVALID`."""

    table: Section
    heading: str

    def accepts(self, value: Json) -> bool:
        return isinstance(value, list)

    def check(self, value: Json, path: KeyPath, out: Reporter) -> Json:
        if not self.accepts(value):
            hint = f"each starts with a line {self.heading}, with two brackets"
            return self.wrong_type(value, path, out, hint)
        if len(value) > MAX_TABLES:
            text = f"{dotted(path)} has {len(value)} entries, more than {MAX_TABLES}"
            out.add("config-too-large", path, text)
            return INVALID
        return [self.table.check(item, (*path, place), out) for place, item in enumerate(value)]

    def schema(self) -> dict[str, Json]:
        return {"type": "array", "items": self.table.schema()}

    def describe(self) -> str:
        return f"an array of tables, each headed {self.heading}"


def plain(markdown: str) -> str:
    """Return a description without Markdown's backquotes, for editors."""
    return markdown.replace("`", "")


def _has_key(kind: ValueType, name: str) -> bool:
    """Tell whether tables of a type have a key of that name."""
    if isinstance(kind, Either):
        return any(_has_key(option, name) for option in kind.options)
    if isinstance(kind, FreeValue):
        return name in kind.names
    return isinstance(kind, Section) and name in kind.by_name


def _holds_keys_of(kind: ValueType, value: Json) -> bool:
    """Tell whether `value` is a table whose keys and values fit `kind`.

    The result is False if `kind` is not a closed section, and if the table is empty or has only the
    key ``mode``, which is common to several sections.
    """
    if not (isinstance(kind, Section) and kind.closed and isinstance(value, dict)):
        return False
    sound = all(
        name in kind.by_name and is_meant(kind.by_name[name].type, element, ())
        for name, element in value.items()
    )
    return sound and value.keys() > {*value} & {"mode"}


def _types_of(kind: ValueType, name: str) -> Iterator[ValueType]:
    """Yield the types that the key `name` has in the tables that `kind` allows.

    Tables of free values (`FreeValue`) have no types for their keys.
    """
    if isinstance(kind, Either):
        for option in kind.options:
            yield from _types_of(option, name)
    elif isinstance(kind, Section) and name in kind.by_name:
        yield kind.by_name[name].type


def is_meant(kind: ValueType, value: Json, path: KeyPath) -> bool:
    """Tell whether a misplaced key with this value seems meant as a key of type `kind`.

    `path` is the path of the table that contains the misplaced key. At the top level, the value
    must be valid for `kind`, since the key may belong to another program. In other tables, the
    value need not be valid, unless it is a string and `kind` is a `Choice`: many programs have keys
    with the same name, such as ``mode``, and with other words as values.
    """
    common = isinstance(kind, Choice) and isinstance(value, str)
    if path and not common:
        return True
    return kind.accepts(value) and kind.check(value, (), Reporter("")) is not INVALID


def _is_possible(kind: ValueType, value: Json) -> bool:
    """Tell whether a value is plausible for a key of type `kind`.

    If `kind` is a `Choice`, a string is plausible only if it is a valid choice. In all other cases,
    any value is plausible, even an invalid one.
    """
    if not (isinstance(kind, Choice) and isinstance(value, str)):
        return True
    return is_meant(kind, value, ())


def takes_word(kind: ValueType, value: Json) -> bool:
    """Tell whether `kind` is a fixed list of words that contains `value`."""
    return isinstance(kind, Choice) and not kind.soft and is_meant(kind, value, ())


def _below(holders: Iterable[Key], written: str, table: Mapping[str, Json], path: KeyPath) -> str:
    """Return a phrase that names the subtables in which the misplaced key `written` belongs.

    `table`, the table at `path`, contains `written` by mistake. `holders` are the keys of the
    subtables; `table` may lack them.
    """
    places = []
    for key in holders:
        if isinstance(table.get(key.name, {}), dict):
            places.append(f"below {key.name}, in [{_joined(path, key.name)}]")
        else:
            places.append(f"below {key.name}, as a table: {key.name} = {{ …, {written} = … }}")
    return ", or ".join(places)


@dataclass(frozen=True)
class FreeValue(ValueType):
    """Any TOML value that JSON can represent, nested at most `MAX_FREE_DEPTH` deep.

    If the value is a table, `names` are keys that it may have. If one of these keys is misplaced, a
    hint names the table that should contain it.
    """

    what: str = "any value but a date"
    only_table: bool = False
    names: tuple[str, ...] = ()

    def accepts(self, value: Json) -> bool:
        return isinstance(value, dict) or not self.only_table

    def check(self, value: Json, path: KeyPath, out: Reporter) -> Json:
        if not self.accepts(value):
            return self.wrong_type(value, path, out)
        fault = _free_fault(value)
        if fault:
            out.add("config-value", path, f"{dotted(path)} {fault}")
            return INVALID
        return value

    def schema(self) -> dict[str, Json]:
        # Without the last keyword, Tombi supposes that the table must be empty.
        free: dict[str, Json] = {"additionalProperties": True}
        return {"type": "object", **free} if self.only_table else free

    def describe(self) -> str:
        return self.what


def _free_fault(value: Json) -> str:
    """Return the reason why a free value is invalid; empty if it is valid."""
    todo: list[tuple[Json, int]] = [(value, 0)]
    seen = 0
    fault = ""
    while todo and not fault:
        element, depth = todo.pop()
        seen += 1
        if depth > MAX_FREE_DEPTH or seen > MAX_FREE_VALUES:
            fault = f"nests deeper than {MAX_FREE_DEPTH} or holds over {MAX_FREE_VALUES} values"
        elif isinstance(element, dict):
            todo.extend((e, depth + 1) for pair in element.items() for e in pair)
        elif isinstance(element, list):
            todo.extend((e, depth + 1) for e in element)
        else:
            fault = _scalar_fault(element)
    return fault


def _scalar_fault(value: Json) -> str:
    if isinstance(value, bool):
        return ""
    if isinstance(value, int):
        return "holds an integer beyond 64 bits" if abs(value) > U64_MAX else ""
    if isinstance(value, float):
        # NaN is not equal to itself and so cannot be part of a cache key.
        return "holds NaN" if math.isnan(value) else ""
    if isinstance(value, str):
        return "holds a NUL character" if "\0" in value else ""
    return f"holds {toml_type(value)}"
