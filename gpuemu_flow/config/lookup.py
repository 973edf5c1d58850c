"""Look up a key or table of the configuration by its path, for editors."""

from __future__ import annotations

from collections.abc import Sequence

from gpuemu_flow.config.keys import Key, Section, Tables
from gpuemu_flow.config.tables import FILE
from gpuemu_flow.config.values import Bool, Choice, Converted, Either, ListOf, TableOf, ValueType


def key_at(path: Sequence[str | int]) -> Key | None:
    """Return the key at a path such as ``("ops", 0, "timeout")``; None for an unknown key.

    Indices of arrays may be left out.
    """
    words = [part for part in path if isinstance(part, str)]
    section = section_at(words[:-1])
    return section.by_name.get(words[-1]) if section is not None and words else None


def section_at(path: Sequence[str | int]) -> Section | None:
    """Return the section at a path, or None; the empty path is the whole file."""
    found: Section | None = FILE
    rest: ValueType | None = None
    for part in path:
        if isinstance(part, int):
            continue
        if rest is not None:  # inside a table with free keys
            found, rest = _table_in(rest), None
            continue
        key = found.by_name.get(part) if found is not None else None
        if key is None:
            return None
        free = _free_values(key.type)
        found, rest = (None, free) if free is not None else (_table_in(key.type), None)
    return None if rest is not None else found


def words_of(kind: ValueType) -> tuple[str, ...]:
    """Return the words allowed for a value or its elements; ``true`` and ``false`` for booleans."""
    if isinstance(kind, Bool):
        return ("true", "false")
    if isinstance(kind, Choice):
        return kind.words
    if isinstance(kind, ListOf):
        return words_of(kind.item)
    if isinstance(kind, Converted):
        return words_of(kind.inner)
    if isinstance(kind, Either):
        return tuple(dict.fromkeys(word for option in kind.options for word in words_of(option)))
    return ()


def _table_in(kind: ValueType) -> Section | None:
    """Return the section that lists the keys of this type's tables; None if there is none."""
    if isinstance(kind, Section):
        return kind
    if isinstance(kind, Tables):
        return kind.table
    if isinstance(kind, Converted):
        return _table_in(kind.inner)
    if isinstance(kind, Either):
        tables = (_table_in(option) for option in kind.options)
        return next((table for table in tables if table is not None), None)
    return None


def _free_values(kind: ValueType) -> ValueType | None:
    """Return the type of a table's values if users choose its keys; None for any other type."""
    if isinstance(kind, TableOf):
        return kind.value
    if isinstance(kind, Either):
        values = (_free_values(option) for option in kind.options)
        return next((value for value in values if value is not None), None)
    return None
