"""Make completions for a position in gpuemu.toml: tables, keys and words."""

from __future__ import annotations

import re

from msgspec import Struct

from gpuemu_flow.config.fields import (
    Table,
    describe,
    key_at,
    keys_of,
    plain,
    rows_of,
    table_at,
    words_of,
)
from gpuemu_flow.config.tables import File
from gpuemu_flow.services.lsp.outline import Outline

_HEADER = re.compile(r"\s*\[{1,2}[\w.-]*")
_KEY = re.compile(r"\s*([\w.-]*)")
_VALUE = re.compile(r"""\s*([\w.-]+)\s*=.*?(["'][^"']*|\w*)""")


class Completion(Struct, frozen=True):
    """One completion, as an editor shows it."""

    # Text that replaces the word before the cursor.
    text: str
    # ``table``, ``key`` or ``word``.
    kind: str
    detail: str = ""
    doc: str = ""


def completions_at(outlined: Outline, line: int, column: int) -> list[Completion]:
    """List all completions at a position, whatever text is already there."""
    if not 0 <= line < len(outlined.lines):
        return []
    before = outlined.lines[line][:column]
    if _HEADER.fullmatch(before):
        return _tables()
    table = outlined.table_at(line)
    if _KEY.fullmatch(before):
        found = table_at(File, table)
        return _keys(found) if found is not None else []
    value = _VALUE.fullmatch(before)
    return (
        _words((*table, *value[1].split(".")), quoted=value[2][:1] in ("'", '"')) if value else []
    )


def _tables() -> list[Completion]:
    """Return completions for the names in table headers, including ``ops.schema``."""
    found = []
    for key in keys_of(File).values():
        array = rows_of(key.type) is not None
        found.append(
            Completion(key.name, "table", f"[[{key.name}]]" if array else f"[{key.name}]", key.doc)
        )
    found.append(Completion("ops.schema", "table", "[ops.schema]", "Dims, inputs and outputs."))
    return found


def _keys(table: type[Table]) -> list[Completion]:
    return [
        Completion(key.name, "key", describe(key.type)[:120], plain(key.doc))
        for key in keys_of(table).values()
        if rows_of(key.type) is None
    ]


def _words(path: tuple[str, ...], *, quoted: bool) -> list[Completion]:
    key = key_at(File, path)
    found = words_of(key.type) if key is not None else ()
    bare = ("true", "false")
    return [
        Completion(word if quoted or word in bare else f'"{word}"', "word")
        for word in found
        if not (quoted and word in bare)
    ]
