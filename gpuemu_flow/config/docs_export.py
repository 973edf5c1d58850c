"""Writes ``docs/config.md``, the reference page of all keys, from the tables of keys.

``python -m gpuemu_flow.config.docs_export > docs/config.md``
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator

from gpuemu_flow.cases.op_schema import BUILTIN_SCHEMAS
from gpuemu_flow.config.docs_prose import CONCEPTS, INTRODUCTION
from gpuemu_flow.config.keys import Key, Section, Tables
from gpuemu_flow.config.tables import FILE
from gpuemu_flow.config.values import ListOf
from gpuemu_flow.types import (
    DTYPE_ALIASES,
    DTYPES,
    INVARIANTS,
    LAYOUTS,
    STRATEGY_GROUPS,
    Json,
)


def config_page() -> str:
    """Return the page as Markdown."""
    parts = [INTRODUCTION.strip()]
    for key in FILE.keys:
        parts.append(_section(key))
    parts.append(_words())
    parts.append(CONCEPTS.strip().replace("BUILTIN_SCHEMAS", _listed(BUILTIN_SCHEMAS)))
    return "\n\n".join(parts) + "\n"


def _listed(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _words() -> str:
    """Return every word allowed for a value, with its other spellings."""
    aliases = ", ".join(f"`{alias}` = `{name}`" for alias, name in DTYPE_ALIASES.items())
    groups = "; ".join(f"`{name}`: {_listed(words)}" for name, words in STRATEGY_GROUPS.items())
    return "\n".join(
        (
            "## Words",
            "",
            "In any case.",
            "",
            f"- dtypes: {_listed(DTYPES)}; {aliases}",
            f"- layouts: {_listed(LAYOUTS)}",
            f"- strategies: {groups}; of the P3 study, `nan_injected` is `special`, `adversarial` "
            "is `stress`, `default` is `core`",
            f"- invariants: {_listed(INVARIANTS)}",
            "- frameworks: `torch` = `pytorch`, `tf` = `tensorflow`",
            "- sizes: `KB`, `MB`, `GB`, `TB` (powers of 1000), `KiB`, … `TiB` (of 1024)",
        )
    )


def _section(key: Key) -> str:
    kind = key.type
    if isinstance(kind, Tables):
        heading, keys = f"[[{key.name}]]", list(_flat(kind.table, ""))
    elif isinstance(kind, Section):
        heading, keys = f"[{key.name}]", list(_flat(kind, ""))
    elif isinstance(kind, ListOf):
        heading, keys = key.name, []
    else:
        heading, keys = f"[{key.name}]", []
    lines = [f"## `{heading}`", "", key.doc, ""]
    if keys:
        lines += ["| Key | Value | Default | Meaning |", "|---|---|---|---|"]
        lines += [_row(name, k) for name, k in keys]
    else:
        lines.append(f"{_sentence(kind.describe())} ({'ours' if key.ours else 'documented'}).")
    return "\n".join(lines).rstrip()


def _flat(section: Section, prefix: str) -> Iterator[tuple[str, Key]]:
    """Yield the keys of a section with those of the tables in it, under their dotted names."""
    for key in section.keys:
        if isinstance(key.type, Section):
            yield from _flat(key.type, f"{prefix}{key.name}.")
        else:
            yield prefix + key.name, key


def _meaning(key: Key) -> str:
    """Explain a key, or say that it does nothing."""
    return f"{key.doc} No effect, and a warning: {key.unread}." if key.unread else key.doc


def _row(name: str, key: Key) -> str:
    names = "<br>".join(
        [f"`{name}`{'' if key.ours else ' ●'}", *(f"`{alias}`" for alias in key.aliases)]
    )
    if key.required:
        default = "required"
    elif key.default_text:
        default = key.default_text
    elif key.default is None:
        default = "none"
    else:
        default = f"`{_toml(key.default)}`"
    cells = (names, key.type.describe(), default, _meaning(key))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _toml(value: Json) -> str:
    """Return a default as it would stand in the file."""
    if isinstance(value, dict):
        return "{}" if not value else "{ … }"
    return json.dumps(value, ensure_ascii=False)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


if __name__ == "__main__":
    sys.stdout.write(config_page())
