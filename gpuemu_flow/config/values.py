"""Types of values: each checks a value of the configuration, and describes itself for the docs."""

from __future__ import annotations

import abc
import math
import re
from collections.abc import Callable, Mapping
from typing import Final

from gpuemu_flow.config.positions import KeyPath
from gpuemu_flow.config.report import Reporter, dotted, shown
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import Json

U64_MAX = 2**64 - 1
I63_MAX = 2**63 - 1


class _Invalid:
    """Type of `INVALID`, which stands for a value that was reported as wrong."""

    def __repr__(self) -> str:
        return "INVALID"


INVALID: Final = _Invalid()


def toml_type(value: object) -> str:
    """Return words for the TOML type of a parsed value, such as ``a string``."""
    names: dict[type, str] = {
        bool: "a boolean", int: "an integer", float: "a float", str: "a string",
        list: "an array", dict: "a table",
    }  # fmt: skip
    return names.get(type(value), "a date or time")


class ValueType(abc.ABC):
    """A type of value: `check` normalises a value, or reports why it is invalid."""

    @abc.abstractmethod
    def accepts(self, value: Json) -> bool:
        """Tell whether a value has an allowed TOML type; the content is not checked."""

    @abc.abstractmethod
    def check(self, value: Json, path: KeyPath, out: Reporter) -> Json:
        """Return the normalised value, or report a problem and return `INVALID`."""

    @abc.abstractmethod
    def schema(self) -> dict[str, Json]:
        """Return the type as JSON Schema."""

    @abc.abstractmethod
    def describe(self) -> str:
        """Describe the type in a few words, for messages and the reference page."""

    def wrong_type(self, value: Json, path: KeyPath, out: Reporter, hint: str = "") -> Json:
        """Report that `value` has the wrong type; return `INVALID`."""
        given = f"{toml_type(value)} ({shown(value)})"
        out.add("config-type", path, f"{dotted(path)} must be {self.describe()}, not {given}", hint)
        return INVALID


@dataclass(frozen=True)
class Bool(ValueType):
    """A boolean."""

    def accepts(self, value: Json) -> bool:
        return isinstance(value, bool)

    def check(self, value: Json, path: KeyPath, out: Reporter) -> Json:
        return value if self.accepts(value) else self.wrong_type(value, path, out)

    def schema(self) -> dict[str, Json]:
        return {"type": "boolean"}

    def describe(self) -> str:
        return "true or false"


@dataclass(frozen=True)
class Integer(ValueType):
    """An integer from `low` to `high`, both included."""

    low: int = 0
    high: int = I63_MAX

    def accepts(self, value: Json) -> bool:
        return isinstance(value, int) and not isinstance(value, bool)

    def check(self, value: Json, path: KeyPath, out: Reporter) -> Json:
        if not self.accepts(value):
            return self.wrong_type(value, path, out)
        if not self.low <= value <= self.high:
            out.add(
                "config-value", path, f"{dotted(path)} is {shown(value)}, not {self.describe()}"
            )
            return INVALID
        return value

    def schema(self) -> dict[str, Json]:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}

    def describe(self) -> str:
        if self.high in (I63_MAX, U64_MAX):
            return f"an integer of at least {self.low}"
        return f"an integer from {self.low} to {self.high}"


@dataclass(frozen=True)
class Number(ValueType):
    """A finite integer or float from `low` to `high`; with `above`, `low` itself is excluded."""

    low: float = 0.0
    high: float = math.inf
    above: bool = False
    slug: str = "config-value"

    def accepts(self, value: Json) -> bool:
        return isinstance(value, (int, float)) and not isinstance(value, bool)

    def check(self, value: Json, path: KeyPath, out: Reporter) -> Json:
        if not self.accepts(value):
            return self.wrong_type(value, path, out)
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        too_low = number <= self.low if self.above else number < self.low
        if not math.isfinite(number) or too_low or number > self.high:
            text = f"{dotted(path)} is {shown(value)}, not {self.describe()}"
            out.add(self.slug, path, text)
            return INVALID
        return number

    def schema(self) -> dict[str, Json]:
        out: dict[str, Json] = {"type": "number"}
        out["exclusiveMinimum" if self.above else "minimum"] = self.low
        out["maximum"] = self.high if math.isfinite(self.high) else 1.7976931348623157e308
        return out

    def describe(self) -> str:
        low = f"above {self.low:g}" if self.above else f"of at least {self.low:g}"
        high = f" and at most {self.high:g}" if math.isfinite(self.high) else ""
        return f"a finite number {low}{high}"


@dataclass(frozen=True)
class Text(ValueType):
    """A string of printable characters that matches `pattern`."""

    pattern: str = ""
    what: str = "a string"
    empty: bool = False
    longest: int = 4096
    slug: str = "config-value"

    def accepts(self, value: Json) -> bool:
        return isinstance(value, str)

    def check(self, value: Json, path: KeyPath, out: Reporter) -> Json:
        if not self.accepts(value):
            return self.wrong_type(value, path, out)
        if "\0" in value or not value.isprintable():
            fault = "holds control characters"
        elif len(value) > self.longest:
            fault = f"has {len(value)} characters, more than {self.longest}"
        elif not value.strip() and not self.empty:
            fault = "is empty"
        elif self.pattern and not re.fullmatch(self.pattern, value):
            fault = f"is {shown(value)}, not {self.what}"
        else:
            return value
        out.add(self.slug, path, f"{dotted(path)} {fault}", self.hint(path, out))
        return INVALID

    def hint(self, path: KeyPath, out: Reporter) -> str:
        """Return a hint for a string that is not accepted; empty if the message is enough."""
        return ""

    def schema(self) -> dict[str, Json]:
        out: dict[str, Json] = {"type": "string", "maxLength": self.longest}
        if not self.empty:
            out["minLength"] = 1
        if self.pattern:
            out["pattern"] = f"^(?:{self.pattern})$"
        return out

    def describe(self) -> str:
        return self.what


@dataclass(frozen=True)
class Choice(ValueType):
    """One word of a list, in upper or lower case; `aliases` maps other spellings to these words.

    With `soft`, an unknown word is kept, and causes only a warning. `gone` maps words that were
    accepted once to a hint that says what to do instead.
    """

    words: tuple[str, ...]
    slug: str = "config-value"
    noun: str = "value"
    aliases: Mapping[str, str] | None = None
    soft: bool = False
    gone: Mapping[str, str] | None = None

    def accepts(self, value: Json) -> bool:
        return isinstance(value, str)

    def check(self, value: Json, path: KeyPath, out: Reporter) -> Json:
        if not self.accepts(value):
            return self.wrong_type(value, path, out)
        lower = value.strip().lower()
        lower = (self.aliases or {}).get(lower, lower)
        if lower in self.words:
            return lower
        hint = (self.gone or {}).get(lower) or out.nearest(lower, self.words, or_all=True)
        text = f"unknown {self.noun} {shown(value)} in {dotted(path)}"
        out.add(self.slug, path, text, hint, warning=self.soft)
        return lower if self.soft else INVALID

    def schema(self) -> dict[str, Json]:
        if self.soft:
            return {"type": "string", "examples": list(self.words)}
        any_case = any_case_pattern((*self.words, *(self.aliases or {})))
        # Editors suggest the words of the first schema; the second is a pattern.
        return {"type": "string", "anyOf": [{"enum": list(self.words)}, {"pattern": any_case}]}

    def describe(self) -> str:
        if len(self.words) > 5:
            return f"a known {self.noun}"
        return " or ".join(f'"{w}"' for w in self.words)


def any_case_pattern(words: tuple[str, ...]) -> str:
    """Return a pattern that matches the words in any case; JSON Schema's patterns have no flags."""

    def either(char: str) -> str:
        return f"[{char.lower()}{char.upper()}]" if char.isalpha() else re.escape(char)

    return "^(?:" + "|".join("".join(either(c) for c in word) for word in words) + ")$"


@dataclass(frozen=True)
class ListOf(ValueType):
    """An array; if `distinct`, repeated values count once."""

    item: ValueType
    at_least: int = 0
    at_most: int = 10_000
    distinct: bool = True

    def accepts(self, value: Json) -> bool:
        return isinstance(value, list)

    def check(self, value: Json, path: KeyPath, out: Reporter) -> Json:
        if not self.accepts(value):
            one = self.item.accepts(value)
            return self.wrong_type(value, path, out, "put it in brackets" if one else "")
        if not self.at_least <= len(value) <= self.at_most:
            limit = "empty" if len(value) < self.at_least else f"longer than {self.at_most}"
            out.add("config-value", path, f"{dotted(path)} is {limit}")
            return INVALID
        items: list[Json] = []
        for place, element in enumerate(value):
            checked = self.item.check(element, (*path, place), out)
            if checked is INVALID:
                continue
            if not (self.distinct and checked in items[:256]):
                items.append(checked)
        # If positions matter, a list with a gap would mean something else.
        dropped = not self.distinct and len(items) < len(value)
        return INVALID if dropped or len(items) < self.at_least else items

    def schema(self) -> dict[str, Json]:
        return {
            "type": "array",
            "items": self.item.schema(),
            "minItems": self.at_least,
            "maxItems": self.at_most,
        }

    def describe(self) -> str:
        return f"an array, each element {self.item.describe()}"


@dataclass(frozen=True)
class TableOf(ValueType):
    """A table with free keys, each of type `key`, and values of one type."""

    key: ValueType
    value: ValueType
    what: str = "a table"

    def accepts(self, value: Json) -> bool:
        return isinstance(value, dict)

    def check(self, value: Json, path: KeyPath, out: Reporter) -> Json:
        if not self.accepts(value):
            return self.wrong_type(value, path, out)
        items: dict[str, Json] = {}
        for written, element in value.items():
            name = self.key.check(written, (*path, written), out)
            checked = self.value.check(element, (*path, written), out)
            if name is INVALID or checked is INVALID:
                continue
            if name in items:
                text = f"{dotted(path)} names {name!r} twice, under two spellings"
                out.add("config-duplicate-name", (*path, written), text)
            items[name] = checked
        return items

    def schema(self) -> dict[str, Json]:
        return {
            "type": "object",
            "propertyNames": self.key.schema(),
            "additionalProperties": self.value.schema(),
        }

    def describe(self) -> str:
        return self.what


@dataclass(frozen=True)
class Either(ValueType):
    """One of several types, which are distinguished by the TOML type of the value."""

    options: tuple[ValueType, ...]

    def accepts(self, value: Json) -> bool:
        return any(o.accepts(value) for o in self.options)

    def check(self, value: Json, path: KeyPath, out: Reporter) -> Json:
        for option in self.options:
            if option.accepts(value):
                return option.check(value, path, out)
        return self.wrong_type(value, path, out)

    def schema(self) -> dict[str, Json]:
        return {"anyOf": [o.schema() for o in self.options]}

    def describe(self) -> str:
        return ", or ".join(o.describe() for o in self.options)


@dataclass(frozen=True)
class Converted(ValueType):
    """A value that is checked as type `inner`, then converted by a function that cannot fail."""

    inner: ValueType
    convert: Callable[[Json], Json]

    def accepts(self, value: Json) -> bool:
        return self.inner.accepts(value)

    def check(self, value: Json, path: KeyPath, out: Reporter) -> Json:
        checked = self.inner.check(value, path, out)
        return checked if checked is INVALID else self.convert(checked)

    def schema(self) -> dict[str, Json]:
        return self.inner.schema()

    def describe(self) -> str:
        return self.inner.describe()


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
