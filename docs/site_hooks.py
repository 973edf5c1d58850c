"""Hooks of mkdocs: files beside ``docs/`` which pages link to; nothing from other hosts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

REPOSITORY = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"\]\(\.\./([\w./-]+)(#[\w-]+)?\)")
_MERMAID = re.compile(r"<!-- (graph|house) -->\n```mermaid\n.*?```", re.DOTALL)
_DRAWN = {
    "graph": "![The task graph of one op, from its cases to its verdict](images/graph.svg)",
    "house": "![The packages by floor, from commands to plain data](images/house.svg)",
}


def on_files(files: Files, config: Any) -> Files:
    """Add the changelog and the schemas, which lie outside of the folder of pages."""
    changelog = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    changelog = changelog.replace("](docs/", "](")  # it lies among these pages here
    files.append(File.generated(config, "changelog.md", content=changelog))
    for schema in sorted((REPOSITORY / "schemas").glob("*.json")):
        path = str(schema)
        files.append(File.generated(config, f"schemas/{schema.name}", abs_src_path=path))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Point links to such files to where they lie in the site, and show diagrams as pictures.

    The theme would fetch the program that draws Mermaid from another host.
    """

    def moved(match: re.Match[str]) -> str:
        names = {"CHANGELOG.md": "changelog.md", "README.md": "index.md"}
        return f"]({names.get(match[1], match[1])}{match[2] or ''})"

    return _MERMAID.sub(lambda match: _DRAWN[match[1]], _LINK.sub(moved, markdown))
