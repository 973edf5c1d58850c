"""Make completions and hover texts for a position in gpuemu.toml."""

from __future__ import annotations

import re

from lsprotocol.types import CompletionItem, CompletionItemKind

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
from gpuemu_flow.report.failure_text import failure_row
from gpuemu_flow.report.last_results import LastResults
from gpuemu_flow.report.text import Style, render_failures, render_results
from gpuemu_flow.services.lsp.outline import OpTable, Outline

_HEADER = re.compile(r"\s*\[{1,2}[\w.-]*")
_KEY = re.compile(r"\s*([\w.-]*)")
_VALUE = re.compile(r"""\s*([\w.-]+)\s*=.*?(["'][^"']*|\w*)""")


def completions_at(outlined: Outline, line: int, column: int) -> list[CompletionItem]:
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


def _tables() -> list[CompletionItem]:
    """Return completions for the names in table headers, including ``ops.schema``."""
    found = []
    for key in keys_of(File).values():
        array = rows_of(key.type) is not None
        found.append(
            _item(
                key.name,
                CompletionItemKind.Module,
                f"[[{key.name}]]" if array else f"[{key.name}]",
                key.doc,
            )
        )
    schema = "ops.schema", CompletionItemKind.Module, "[ops.schema]", "Dims, inputs and outputs."
    found.append(_item(*schema))
    return found


def _keys(table: type[Table]) -> list[CompletionItem]:
    return [
        _item(key.name, CompletionItemKind.Property, describe(key.type)[:120], plain(key.doc))
        for key in keys_of(table).values()
        if rows_of(key.type) is None
    ]


def _words(path: tuple[str, ...], *, quoted: bool) -> list[CompletionItem]:
    key = key_at(File, path)
    found = words_of(key.type) if key is not None else ()
    bare = ("true", "false")
    return [
        _item(word if quoted or word in bare else f'"{word}"', CompletionItemKind.EnumMember)
        for word in found
        if not (quoted and word in bare)
    ]


def _item(text: str, kind: CompletionItemKind, detail: str = "", doc: str = "") -> CompletionItem:
    return CompletionItem(text, kind=kind, detail=detail or None, documentation=doc or None)


# Hover texts: an op's last results, or a key's meaning.

MAX_LINES = 40
MAX_WIDTH = 240
RECENT = 5


def hover(outlined: Outline, last: LastResults, line: int, column: int, *, rich: bool) -> str:
    """Return the hover text for a position, as Markdown if `rich`; empty if there is none."""
    for table in outlined.ops:
        if line in (table.header, table.place.line) and table.name:
            return results_card(table, last, rich=rich)
    path = outlined.path_at(line, column)
    key = key_at(File, path) if path and isinstance(path[-1], str) else None
    if key is None:
        return ""
    return "\n\n".join(part for part in (f"{_title(key.name, rich=rich)}: {describe(key.type)}",
                                         key.doc, _default(key.default_text)) if part)  # fmt: skip


def _title(name: str, *, rich: bool) -> str:
    return f"**`{name}`**" if rich else name


def _default(text: str) -> str:
    return f"Default: {text}." if text else ""


def results_card(table: OpTable, last: LastResults, *, rich: bool) -> str:
    """Return an op's last results and its recorded failures."""
    results = last.results.get(table.name, ())
    failures = last.failures.get(table.name, ())
    style = Style(False)
    if not results and not failures:
        return f"{table.name}: no results yet"
    lines = ["something changed since these results"] if table.name in last.outdated else []
    lines += render_results(results, style) if results else []
    lines += ["", *render_failures(results, style)]
    if failures:
        lines += ["", f"recorded failures: {len(failures)}"]
        lines += [failure_row(record) for record in failures[:RECENT]]
    shown = [line[:MAX_WIDTH] for line in "\n".join(lines).strip("\n").split("\n")]
    if len(shown) > MAX_LINES:
        shown = [*shown[:MAX_LINES], "…"]
    text = "\n".join(shown)
    if not rich:
        return text
    # In a fenced block nothing is markup, but the text must not contain its closing fence.
    return "```text\n" + text.replace("```", "'''") + "\n```"
