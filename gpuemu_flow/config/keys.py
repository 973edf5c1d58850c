"""Keys and tables of the configuration file: the values allowed, the default and the meaning."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import cached_property

from gpuemu_flow.config.positions import KeyPath
from gpuemu_flow.config.report import Reporter, dotted, shortened, shown
from gpuemu_flow.config.unknown import SHORT, is_misspelt
from gpuemu_flow.config.values import (
    I63_MAX,
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
        Other names of the key, which documented files use.
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
        """Tell whether a verdict may claim too much if the key is ignored."""
        return not (isinstance(self.type, Section) and self.type.harmless)

    def may_be(self, name: str, written: str, value: Json) -> bool:
        """Tell whether an unknown key may be a misspelling of this key.

        Short names are similar to many other words, so for them the value must be valid, too.
        """
        long = min(len(name), len(written)) > SHORT
        return self.counts and (long or is_meant(self.type, value, ()))


def _says_something(key: Key, value: Json) -> bool:
    """Tell whether a written value is neither the default nor empty."""
    return value != key.default and (bool(value) or value is False)


def _joined(path: KeyPath, name: str) -> str:
    """Return the name, as in a heading, of a table inside the table at `path`."""
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
        """Return each key under its name and its aliases."""
        return {name: key for key in self.keys for name in (key.name, *key.aliases)}

    def accepts(self, value: Json) -> bool:
        return isinstance(value, dict)

    def check(self, value: Json, path: KeyPath, out: Reporter) -> Json:
        """Return a dict of the keys that the table contains, under their main names."""
        if not self.accepts(value):
            return self.wrong_type(value, path, out)
        checked: dict[str, Json] = {}
        wrong: set[str] = set()
        for written, element in value.items():
            key = self.by_name.get(written)
            if key is None:
                self.unknown(written, element, path, out)
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

    def unknown(self, written: str, value: Json, path: KeyPath, out: Reporter) -> None:
        """Report an unknown key."""
        below = self._holder_of(written)
        place, counts, hint = "", False, ""
        if below is not None:
            place = f"below {below.name}, in [{_joined(path, below.name)}]"
            kinds = tuple(_types_of(below.type, written))
            counts = below.counts and (not kinds or any(is_meant(k, value, path) for k in kinds))
        for other in () if place else out.elsewhere.get(written, ()):
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
            hint = out.nearest(written, self.by_name, or_all=few) or self._longer(written)
        name = dotted((*path, written)) or shortened(written)
        where = (*path, written)
        out.add("config-unknown-key", where, f"unknown key {name!r}", hint, warning=not counts)

    def _longer(self, written: str) -> str:
        """Return a hint with the key whose name ends in `written`; empty if none or several do."""
        found = [name for name in self.by_name if name.endswith(f"_{written}")]
        if len(found) != 1:
            return ""
        return Hint.of(f"did you mean {found[0]!r}?", Rename(written, found[0]))

    def _holder_of(self, written: str) -> Key | None:
        """Return the first key whose table accepts a key named `written`; None if there is none."""
        return next((key for key in self.keys if _has_key(key.type, written)), None)

    def joined(self, key: Key, first: Json, second: Json, path: KeyPath, out: Reporter) -> Json:
        """Combine two values of a key: join lists; report other values that differ."""
        if isinstance(first, list) and isinstance(second, list):
            return first + [element for element in second if element not in first]
        if first != second:
            text = f"{dotted(path)} and another spelling of '{key.name}' differ"
            out.add("config-conflict", path, text, f"keep '{key.name}'")
        return first

    def value(self, data: Mapping[str, Json], name: str) -> Json:
        """Return a key's value in `data`, which `check` returned, or else the key's default."""
        if name in data:
            return data[name]
        return self.by_name[name].default

    def values(self, data: Mapping[str, Json]) -> dict[str, Json]:
        """Return all keys of the section, from `data` or by default."""
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
    """Tell whether `kind` is a closed section that accepts all keys and values of a table.

    An empty table does not count, nor one with only the key ``mode``, since many tables have it.
    """
    if not (isinstance(kind, Section) and kind.closed and isinstance(value, dict)):
        return False
    sound = all(
        name in kind.by_name and is_meant(kind.by_name[name].type, element, ())
        for name, element in value.items()
    )
    return sound and value.keys() > {*value} & {"mode"}


def _types_of(kind: ValueType, name: str) -> Iterator[ValueType]:
    """Yield the types that the key `name` has in tables of type `kind`, except free values."""
    if isinstance(kind, Either):
        for option in kind.options:
            yield from _types_of(option, name)
    elif isinstance(kind, Section) and name in kind.by_name:
        yield kind.by_name[name].type


def is_meant(kind: ValueType, value: Json, path: KeyPath) -> bool:
    """Tell whether a misplaced key in the table at `path` seems meant as a key of type `kind`.

    At the top level, where a table may belong to another program, the value must be valid for
    `kind`. In other tables, any value is enough, with one exception: the name of a key that takes
    one of several words, such as ``mode``, is common, so its value must be valid there, too.
    """
    common = isinstance(kind, Choice) and isinstance(value, str)
    if path and not common:
        return True
    return kind.accepts(value) and kind.check(value, (), Reporter("")) is not INVALID


@dataclass(frozen=True)
class FreeValue(ValueType):
    """Any TOML value that JSON can represent, nested at most `MAX_FREE_DEPTH` deep.

    If the value is a table, `names` are keys that it may have. Hints about a misplaced key use them
    to name the table that the key belongs to.
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


_UNITS = {
    "": 1, "b": 1,
    "kb": 1000, "mb": 1000**2, "gb": 1000**3, "tb": 1000**4,
    "kib": 1024, "mib": 1024**2, "gib": 1024**3, "tib": 1024**4,
}  # fmt: skip
_SIZE = re.compile(r"(\d{1,15})(\.\d{1,6})?\s*([a-zA-Z]*)")
_SIZE_SCHEMA = r"^\s*\d{1,15}(\.\d{1,6})?\s*([kKmMgGtT][iI]?)?[bB]\s*$|^\s*\d{1,15}(\.\d{1,6})?\s*$"


@dataclass(frozen=True)
class ByteSize(ValueType):
    """A size in bytes: an integer, or a string with KB, MB, GB, TB (powers of 1000), KiB, MiB, …"""

    low: int = 1
    high: int = I63_MAX

    def accepts(self, value: Json) -> bool:
        return isinstance(value, (int, str)) and not isinstance(value, bool)

    def check(self, value: Json, path: KeyPath, out: Reporter) -> Json:
        if not self.accepts(value):
            return self.wrong_type(value, path, out)
        size = value if isinstance(value, int) else self.parse(value)
        if size is None or not self.low <= size <= self.high:
            least = f"; the least is {self.low} bytes" if self.low > 1 else ""
            text = f"{dotted(path)} is {shown(value)}, not {self.describe()}{least}"
            out.add("config-value", path, text)
            return INVALID
        return size

    @staticmethod
    def parse(text: str) -> int | None:
        """Return bytes, or None when the text is not a size."""
        match = _SIZE.fullmatch(text.strip())
        if match is None or match[3].lower() not in _UNITS or not text.isascii():
            return None
        unit = _UNITS[match[3].lower()]
        fraction = float(match[2]) * unit if match[2] else 0.0
        return int(match[1]) * unit + int(fraction)

    def schema(self) -> dict[str, Json]:
        return {
            "anyOf": [
                {"type": "integer", "minimum": self.low, "maximum": self.high},
                {"type": "string", "pattern": _SIZE_SCHEMA},
            ]
        }

    def describe(self) -> str:
        return 'a size: bytes as an integer, or a string such as "2GB" or "512MiB"'
