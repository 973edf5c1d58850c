"""Check tables of a configuration file against their types, and report every problem."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
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
    ToleranceTable,
    accepts,
    accepts_itself,
    choice_of,
    describe,
    forms,
    keys_of,
    names_of,
    parts,
    table_of,
)
from gpuemu_flow.config.report import (
    SHORT,
    KeyPath,
    Reporter,
    dotted,
    is_misspelt,
    shortened,
    shown,
)
from gpuemu_flow.config.tables import File, Policies, SandboxConfig, Validation
from gpuemu_flow.config.tables_ops import ArtifactChecks, OpTable
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


def _counts(key: Key) -> bool:
    """Tell whether a verdict could claim too much if the key were ignored."""
    table = table_of(key.type)
    return table is None or not table.harmless


def _may_be(key: Key, name: str, written: str, value: Json) -> bool:
    """Tell whether the unknown key `written` may be a misspelling of `name`, a name of `key`. If
    one of the two is short, the unknown key's `value` must be valid for the key, since short names
    are similar to many words."""
    long = min(len(name), len(written)) > SHORT
    return _counts(key) and (long or is_meant(key.type, value, ()))


def _report_unknown(
    table: type[Table], written: str, values: Mapping[str, Json], path: KeyPath, out: Reporter
) -> None:
    """Report the unknown key `written` in `values`, a table at `path`."""
    value = values[written]
    known = names_of(table)
    place, counts, hint = "", False, ""
    meant = _longer(table, written, value)
    holders = () if meant else _holders_of(table, written, values, path)
    if meant is not None:
        counts = _counts(meant)
        hint = Hint.of(f"did you mean {meant.name!r}?", Rename(written, meant.name))
    elif holders:
        place = _below(holders, written, values, path)
        kinds = [tuple(_types_of(key.type, written)) for key in holders]
        counts = any(map(_counts, holders)) and any(
            not each or any(is_meant(k, value, path) for k in each) for each in kinds
        )
    for other, kind in () if place or hint or not out.file else _elsewhere().get(written, ()):
        if is_meant(kind, value, path):
            place, counts = f"in {other}", True
    if not path and not place:
        fit = next((k for k in keys_of(table).values() if _holds_keys_of(k.type, value)), None)
        if fit is not None:
            counts, hint = True, f"its keys are those of [{fit.name}]"
    if not counts and not out.hopeless:
        counting = [name for name, key in known.items() if _may_be(key, name, written, value)]
        counts = table.closed or (not table.harmless and is_misspelt(written, counting))
    if place:
        hint = f"{written!r} belongs {place}"
    elif not hint:
        few = table.closed and len(keys_of(table)) <= FEW
        hint = _ending(known, written) or out.nearest(written, known, or_all=few)
        hint = hint or _taking(table, value, out)
    name = dotted((*path, written)) or shortened(written)
    out.add(
        "config-unknown-key", (*path, written), f"unknown key {name!r}", hint, warning=not counts
    )


def _ending(known: Iterable[str], written: str) -> str:
    """Return a hint that names the known keys whose names end in ``_`` followed by `written`. The
    hint is empty if there are no such keys, or more than `FEW`."""
    found = [name for name in known if name.endswith(f"_{written}")]
    if len(found) != 1:
        few = " or ".join(map(repr, found[:FEW]))
        return f"did you mean {few}?" if 0 < len(found) <= FEW else ""
    return Hint.of(f"did you mean {found[0]!r}?", Rename(written, found[0]))


def _longer(table: type[Table], written: str, value: Json) -> Key | None:
    """Return the only key whose name contains `written` and that accepts the word `value`. Names
    consist of parts joined by underscores, and `written` must be one or several whole parts."""
    found = [
        key
        for key in keys_of(table).values()
        if f"_{written}_" in f"_{key.name}_" and _takes_word(key.type, value)
    ]
    return found[0] if len(found) == 1 else None


def _taking(table: type[Table], value: Json, out: Reporter) -> str:
    """Return a hint that names the only key of a table that accepts the word `value`, else ''. It
    is also empty for a short word such as ``auto``, which the keys of other programs often have as
    a value."""
    if out.hopeless or not isinstance(value, str) or len(value) <= SHORT:
        return ""
    found = [name for name, key in keys_of(table).items() if _takes_word(key.type, value)]
    return f"{shown(value)} is a value of {found[0]!r}" if len(found) == 1 else ""


def _holders_of(
    table: type[Table], written: str, values: Mapping[str, Json], path: KeyPath
) -> tuple[Key, ...]:
    """Find the keys of a table below which the misplaced key `written` may belong. A key is a
    candidate if its value can be a table that has a key `written` with this value. At the top
    level, return all candidates. Elsewhere, return the first of these groups that is not empty: the
    candidates to which `values` gives a table, those to which it gives any value, the first
    candidate alone."""
    value = values[written]
    found = []
    for key in keys_of(table).values():
        kinds = tuple(_types_of(key.type, written))
        free = not kinds and any(written in parts(f)[1].get("names", ()) for f in forms(key.type))
        if free or any(_is_possible(kind, value) for kind in kinds):
            found.append(key)
    if not path:
        return tuple(found)
    given = [key for key in found if key.name in values]
    tables = [key for key in given if isinstance(values[key.name], dict)]
    return tuple(tables or given or found[:1])


def _below(holders: Iterable[Key], written: str, values: Mapping[str, Json], path: KeyPath) -> str:
    """Return a phrase that names the subtables in which the misplaced key `written` belongs."""
    places = []
    for key in holders:
        if isinstance(values.get(key.name, {}), dict):
            full = ".".join((*(part for part in path if isinstance(part, str)), key.name))
            places.append(f"below {key.name}, in [{full}]")
        else:
            places.append(f"below {key.name}, as a table: {key.name} = {{ …, {written} = … }}")
    return ", or ".join(places)


def _holds_keys_of(kind: ms.Type, value: Json) -> bool:
    """Tell whether `value` is a table whose keys and values fit a closed table. The result is False
    if it is empty or has only the key ``mode``, which several tables have."""
    table = table_of(kind)
    if table is None or not table.closed or not isinstance(value, dict):
        return False
    known = names_of(table)
    sound = all(name in known and is_meant(known[name].type, e, ()) for name, e in value.items())
    return sound and value.keys() > {*value} & {"mode"}


def _types_of(kind: ms.Type, name: str) -> Iterator[ms.Type]:
    for form in forms(kind):
        table = table_of(form)
        if table is not None and name in names_of(table):
            yield names_of(table)[name].type


def is_meant(kind: ms.Type, value: Json, path: KeyPath) -> bool:
    """Tell whether a misplaced key with this value seems meant as a key of type `kind`. `path` is
    the path of the table that contains the misplaced key. At the top level, the value must be valid
    for `kind`, since the key may belong to another program. In other tables, the value need not be
    valid, unless it is a string and `kind` is a choice of words: many programs have keys with the
    same name, such as ``mode``, and with other words as values."""
    common = choice_of(kind) is not None and isinstance(value, str)
    if path and not common:
        return True
    return accepts(kind, value) and check(kind, value, (), Reporter("")) is not INVALID


def _is_possible(kind: ms.Type, value: Json) -> bool:
    """Tell whether a value is plausible: any value is, but a word that is not among the choices."""
    words = choice_of(kind) is not None and isinstance(value, str)
    return not words or is_meant(kind, value, ())


def _takes_word(kind: ms.Type, value: Json) -> bool:
    words = choice_of(kind)
    return words is not None and not words.soft and is_meant(kind, value, ())


_ABOUT_RUNS = {"seed", "fuzz_iterations", "cause_budget"}
_TABLES = {"kernels", "ops", "policies", "rules", "sandbox", "validation"}
_OF_OPS = {
    "depends",
    "deterministic",
    "forbid",
    "gradients",
    "invariants",
    "mutates",
    "reference_dtype",
    "require_kernel",
    "schema",
    "shared",
}


@cache
def _elsewhere() -> dict[str, list[tuple[str, ms.Type]]]:
    """Map names of keys to the tables to which they belong, and the keys' types there. The keys are
    those that would weaken a check or the sandbox if they were ignored."""
    found: dict[str, list[tuple[str, ms.Type]]] = {}
    for heading, table, names in (
        ("[sandbox]", SandboxConfig, {*keys_of(SandboxConfig)}),
        ("[validation]", Validation, {*keys_of(Validation)} - _ABOUT_RUNS),
        ("[[ops]]", OpTable, _OF_OPS),
        ("[policies]", Policies, {*keys_of(Policies)} - {"rules"}),
        ("[kernels.artifact_checks]", ArtifactChecks, {*names_of(ArtifactChecks)}),
        ("[validation.tolerances], per dtype", ToleranceTable, {"atol", "rtol"}),
        ("the file itself", File, _TABLES),
    ):
        for name in names:
            found.setdefault(name, []).append((heading, names_of(table)[name].type))
    return found
