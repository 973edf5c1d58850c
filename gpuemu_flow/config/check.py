"""Check tables of a configuration file against their types, and report every problem."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, Final, TypeVar

import msgspec.inspect as ms

from gpuemu_flow.config.fields import (
    I63_MAX,
    MOST_ITEMS,
    U64_MAX,
    Choice,
    Key,
    Table,
    accepts,
    accepts_itself,
    describe,
    forms,
    keys_of,
    names_of,
    parts,
    rows_of,
    table_of,
)
from gpuemu_flow.config.report import KeyPath, Reporter, dotted, shortened, shown
from gpuemu_flow.config.tables import File
from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.errors import AddKey, Hint, Rename, nearest
from gpuemu_flow.model.types import Json

MAX_TABLES = 20_000
MAX_FREE_DEPTH = 16
MAX_FREE_VALUES = 10_000
FEW = 4  # keys that a hint lists
MAX_LOOKED_AT = 100  # unknown keys of a table that may be a misspelt required key

AnyTable = TypeVar("AnyTable", bound=Table)


class _Invalid:
    def __repr__(self) -> str:
        return "INVALID"


INVALID: Final[Any] = _Invalid()
"""Stands for a value that was reported as wrong."""


def check_table(table: type[Table], value: Json, path: KeyPath, out: Reporter) -> Any:
    """Return the valid values of a table by the keys' main names; report all problems. The result
    is `INVALID` if `value` is no table, or if it is empty and must not be."""
    if not isinstance(value, dict):
        _wrong_type(table.what, value, path, out)
        return INVALID
    checked: dict[str, Json] = {}
    wrong: set[str] = set()
    known = names_of(table)
    for written, element in value.items():
        key = known.get(written)
        if key is None:
            _report_unknown(table, written, value, path, out)
            continue
        here = (*path, written)
        if key.name != written:
            out.aliases.setdefault((*path, key.name), here)
        result = check(key.type, element, here, out)
        said = result is not INVALID and result != key.default and (result or result is False)
        if key.unread and said:
            told = f"{dotted(here)} has no effect"
            out.add("config-unread-key", here, told, key.unread, warning=True)
        if result is INVALID:
            wrong.add(key.name)
        elif key.name in checked:
            checked[key.name] = _joined(key, checked[key.name], result, here, out)
        else:
            checked[key.name] = result
    for key in keys_of(table).values():
        if key.required and key.name not in checked and key.name not in wrong:
            text = f"{dotted(path) or 'the file'} lacks the key '{key.name}'"
            unknown = [written for written in value if written not in known]
            misspelt = nearest(key.name, unknown[:MAX_LOOKED_AT])
            hint = f"{shortened(misspelt)!r} is no key; rename it?" if misspelt else ""
            out.add("config-missing-key", path, text, Hint.of(hint, AddKey(key.name)))
    if table.at_least_one and not checked and not wrong:
        text = f"{dotted(path)} lacks {' or '.join(keys_of(table))}"
        out.add("config-missing-key", path, text)
        return INVALID
    return checked


def values_of(table: type[Table], checked: Mapping[str, Json]) -> dict[str, Json]:
    """Return the value of each key of a table: from `checked`, or the default, or None."""
    return {name: checked.get(name, key.default) for name, key in keys_of(table).items()}


def decoded(table: type[AnyTable], checked: Mapping[str, Json], **instead: Any) -> AnyTable:
    """Make the struct of a checked table, with defaults; `instead` replaces values."""
    return convert({**checked, **instead}, table) if checked else table(**instead)


def check(kind: ms.Type, value: Json, path: KeyPath, out: Reporter) -> Any:
    """Return a value in its normal form, or report a problem and return `INVALID`."""
    node, extra = parts(kind)
    hint = ""
    if isinstance(node, ms.UnionType):
        form = next((form for form in node.types if accepts(form, value)), None)
        if form is not None:
            return check(form, value, path, out)
    elif accepts_itself(kind, value):
        checked = _check_form(kind, value, path, out)
        return extra["then"](checked) if "then" in extra and checked is not INVALID else checked
    elif "also" in extra and accepts(extra["also"][0], value):
        form, convert = extra["also"]
        checked = check(form, value, path, out)
        return checked if checked is INVALID else convert(checked)
    elif "heading" in extra:
        hint = f"each starts with a line {extra['heading']}, with two brackets"
    elif "instead" in extra and isinstance(value, dict):
        hint = extra["instead"]
    elif isinstance(node, ms.VarTupleType) and accepts(node.item_type, value):
        hint = "put it in brackets"
    _wrong_type(describe(kind), value, path, out, hint)
    return INVALID


def _check_form(kind: ms.Type, value: Any, path: KeyPath, out: Reporter) -> Any:
    node, extra = parts(kind)
    checked = value
    if "choice" in extra:
        checked = _check_word(extra["choice"], value, path, out)
    elif isinstance(node, (ms.StrType, ms.CustomType)):
        checked = _check_text(kind, value, path, out)
    elif isinstance(node, (ms.IntType, ms.FloatType)):
        checked = _check_number(kind, value, path, out)
    elif (table := table_of(kind)) is not None:
        checked = check_table(table, value, path, out)
    elif isinstance(node, ms.VarTupleType):
        checked = _check_array(node, extra, value, path, out)
    elif isinstance(node, ms.AnyType) or "free" in extra:
        fault = _free_fault(value)
        if fault:
            out.add("config-value", path, f"{dotted(path)} {fault}")
            checked = INVALID
    elif isinstance(node, ms.DictType):
        checked = _check_mapping(node, value, path, out)
    return checked


def _wrong_type(what: str, value: Json, path: KeyPath, out: Reporter, hint: str = "") -> None:
    given = f"{_toml_type(value)} ({shown(value)})"
    out.add("config-type", path, f"{dotted(path)} must be {what}, not {given}", hint)


def _toml_type(value: object) -> str:
    names: dict[type, str] = {
        bool: "a boolean", int: "an integer", float: "a float", str: "a string",
        list: "an array", dict: "a table",
    }  # fmt: skip
    return names.get(type(value), "a date or time")


def _check_number(kind: ms.Type, value: Json, path: KeyPath, out: Reporter) -> Any:
    node: Any
    node, extra = parts(kind)
    number = _number(node, extra, value)
    if number is not None:
        return number
    least = f"; the least is {node.ge} bytes" if "bytes" in extra and node.ge else ""
    text = f"{dotted(path)} is {shown(value)}, not {describe(kind)}{least}"
    out.add(extra.get("slug", "config-value"), path, text)
    return INVALID


def _number(node: Any, extra: Mapping[str, Any], value: Json) -> float | int | None:
    most: float = extra.get("most", I63_MAX if isinstance(node, ms.IntType) else math.inf)
    most = most if node.le is None else node.le
    number = parse_size(value) if isinstance(value, str) else value
    if number is None:
        return None
    if isinstance(node, ms.FloatType):
        try:
            number = float(number)
        except OverflowError:
            return None
        if not math.isfinite(number):
            return None
    low = number >= node.ge if node.gt is None else number > node.gt
    return number if low and number <= most else None


def _check_word(words: Choice, value: str, path: KeyPath, out: Reporter) -> Json:
    lower = value.strip().lower()
    lower = words.spellings.get(lower, lower)
    if lower in words.words:
        return lower
    hint = words.gone.get(lower) or out.nearest(lower, words.words, or_all=True)
    text = f"unknown {words.noun} {shown(value)} in {dotted(path)}"
    out.add(words.slug, path, text, hint, warning=words.soft)
    return lower if words.soft else INVALID


def _check_text(kind: ms.Type, value: str, path: KeyPath, out: Reporter) -> Json:
    node, extra = parts(kind)
    if not isinstance(node, ms.StrType):
        node = ms.StrType(1, 4096)
    longest = node.max_length or 4096
    if "\0" in value or not value.isprintable():
        fault = "holds control characters"
    elif len(value) > longest:
        fault = f"has {len(value)} characters, more than {longest}"
    elif not value.strip() and node.min_length:
        fault = "is empty"
    elif node.pattern and not re.fullmatch(node.pattern, value):
        fault = f"is {shown(value)}, not {describe(kind)}"
    else:
        return value
    hint = extra["hint"](path, out) if "hint" in extra else ""
    out.add("config-value", path, f"{dotted(path)} {fault}", hint)
    return INVALID


def _check_array(
    node: ms.VarTupleType,
    extra: Mapping[str, Any],
    value: list[Json],
    path: KeyPath,
    out: Reporter,
) -> Json:
    if "heading" in extra:
        if len(value) > MAX_TABLES:
            text = f"{dotted(path)} has {len(value)} entries, more than {MAX_TABLES}"
            out.add("config-too-large", path, text)
            return INVALID
        # An invalid table keeps its place, by which problems are reported.
        return [check(node.item_type, item, (*path, at), out) for at, item in enumerate(value)]
    least = node.min_length or 0
    most = MOST_ITEMS if node.max_length is None else node.max_length
    if not least <= len(value) <= most:
        limit = "empty" if len(value) < least else f"longer than {most}"
        out.add("config-value", path, f"{dotted(path)} is {limit}")
        return INVALID
    items: list[Json] = []
    repeats = "repeats" in extra
    for place, element in enumerate(value):
        checked = check(node.item_type, element, (*path, place), out)
        if checked is not INVALID and (repeats or checked not in items[:256]):
            items.append(checked)
    # If positions matter, a list with a gap would mean something else.
    dropped = repeats and len(items) < len(value)
    return INVALID if dropped or len(items) < least else items


def _check_mapping(
    node: ms.DictType, value: Mapping[str, Json], path: KeyPath, out: Reporter
) -> dict[str, Json]:
    items: dict[str, Json] = {}
    for written, element in value.items():
        name = check(node.key_type, written, (*path, written), out)
        checked = check(node.value_type, element, (*path, written), out)
        if name is INVALID or checked is INVALID:
            continue
        if name in items:
            text = f"{dotted(path)} names {name!r} twice, under two spellings"
            out.add("config-duplicate-name", (*path, written), text)
        items[name] = checked
    return items


_UNITS = {
    "": 1, "b": 1,
    "kb": 1000, "mb": 1000**2, "gb": 1000**3, "tb": 1000**4,
    "kib": 1024, "mib": 1024**2, "gib": 1024**3, "tib": 1024**4,
}  # fmt: skip
_SIZE = re.compile(r"(\d{1,15})(\.\d{1,6})?\s*([a-zA-Z]*)")


def parse_size(text: str) -> int | None:
    """Return the bytes of a size such as ``2GB``; None if the text is no size. KB, MB, GB and TB
    are powers of 1000; KiB, MiB, GiB and TiB of 1024."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or match[3].lower() not in _UNITS or not text.isascii():
        return None
    unit = _UNITS[match[3].lower()]
    fraction = float(match[2]) * unit if match[2] else 0.0
    return int(match[1]) * unit + int(fraction)


def _free_fault(value: Json) -> str:
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
    return f"holds {_toml_type(value)}"


def _joined(key: Key, first: Json, second: Json, path: KeyPath, out: Reporter) -> Json:
    """Combine the values that a table gives for two names of the same key. Two lists are joined. In
    other cases, return `first`, and report values that differ."""
    if isinstance(first, list) and isinstance(second, list):
        return first + [element for element in second if element not in first]
    if first != second:
        text = f"{dotted(path)} and another spelling of '{key.name}' differ"
        out.add("config-conflict", path, text, f"keep '{key.name}'")
    return first


CLOSE = 0.8
"""Similarity, as difflib counts it, from which on an unknown key is taken for a misspelt one."""


def _report_unknown(
    table: type[Table], written: str, values: Mapping[str, Json], path: KeyPath, out: Reporter
) -> None:
    """Report the unknown key `written` in `values`, a table at `path`. It is an error if a verdict
    could claim too much since the key is ignored: if it resembles a key, or is one of another
    table."""
    known = names_of(table)
    places = _places().get(written, ()) if out.file else ()
    inside = f"[{'.'.join(part for part in path if isinstance(part, str))}."
    places = [place for place in places if place.startswith(inside)] or places
    hint = _ending(known, written)
    counts = table.closed
    if not hint and 0 < len(places) < FEW:
        counts, hint = True, f"{written!r} belongs in {' or '.join(places)}"
    if not (counts or table.harmless or out.hopeless):
        meant = [n for n, key in known.items() if not _is_harmless(key)]
        counts = bool(get_close_matches(written[:100].lower(), meant, 1, CLOSE))
    if not hint:
        few = table.closed and len(keys_of(table)) <= FEW
        hint = out.nearest(written, known, or_all=few)
    name = dotted((*path, written)) or shortened(written)
    out.add(
        "config-unknown-key", (*path, written), f"unknown key {name!r}", hint, warning=not counts
    )


def _is_harmless(key: Key) -> bool:
    table = table_of(key.type)
    return table is not None and table.harmless


def _ending(known: Iterable[str], written: str) -> str:
    """Return a hint that names the known keys whose names end in ``_`` followed by `written`. The
    keys ``fuzz_iterations`` and ``iterations`` are an example."""
    found = [name for name in known if name.endswith(f"_{written}")]
    if len(found) != 1:
        few = " or ".join(map(repr, found[:FEW]))
        return f"did you mean {few}?" if 0 < len(found) <= FEW else ""
    return Hint.of(f"did you mean {found[0]!r}?", Rename(written, found[0]))


@cache
def _places() -> dict[str, list[str]]:
    """Map names of keys to the tables in which they stand, as their headings are written."""
    found: dict[str, list[str]] = {}

    def walk(table: type[Table], heading: str, where: str) -> None:
        for key in (key for key in keys_of(table).values() if key.name != "profiles"):
            below = f"{heading}.{key.name}" if heading else key.name
            for form in forms(key.type):
                node = parts(form)[0]
                values = node.value_type if isinstance(node, ms.DictType) else form
                inner, rows = table_of(values), rows_of(form)
                if rows is not None:
                    walk(rows, below, f"[[{below}]]")
                elif inner is not None:
                    walk(inner, below, f"[{below}]")
                for name in parts(form)[1].get("names", ()):
                    found.setdefault(name, []).append(f"[{below}]")
            for name in (key.name, *key.aliases):
                found.setdefault(name, []).append(where)

    walk(File, "", "the file itself")
    return {name: list(dict.fromkeys(places)) for name, places in found.items()}
