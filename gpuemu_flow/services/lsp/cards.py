"""Make hover texts for a position in gpuemu.toml: an op's last results, or a key's meaning."""

from __future__ import annotations

from gpuemu_flow.config.fields import describe, key_at
from gpuemu_flow.config.tables import File
from gpuemu_flow.report.failure_text import failure_row
from gpuemu_flow.report.last_results import LastResults
from gpuemu_flow.report.text import Style, render_failures, render_results
from gpuemu_flow.services.lsp.outline import OpTable, Outline

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
