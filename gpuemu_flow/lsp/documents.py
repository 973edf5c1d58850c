"""The open texts of an editor, with the findings of each."""

from __future__ import annotations

import re
from dataclasses import field
from pathlib import Path
from urllib.parse import urlsplit

from lsprotocol import types
from pygls.uris import to_fs_path
from pygls.workspace import PositionCodec

from gpuemu_flow.lsp.findings import Diagnosis
from gpuemu_flow.lsp.outline import Outline, Span
from gpuemu_flow.quick_dataclass import dataclass

FILE_NAME = "gpuemu.toml"
LANGUAGE = "gpuemu-toml"
_DIRECTIVE = re.compile(r"\s*#:schema\s+\S*gpuemu\.schema\.json\s*(?:\n|\r|\Z)")


@dataclass
class Document:
    """One version of an open text."""

    uri: str
    # None for a text that is not a file yet.
    path: Path | None
    text: str
    version: int | None = None
    # None until the text has been parsed.
    outline: Outline | None = None
    # Findings of this version; before this version is checked, those of the previous version.
    findings: list[Diagnosis] = field(default_factory=list)
    # True if `findings` belongs to this version.
    checked: bool = False

    @property
    def root(self) -> Path | None:
        """Return the folder of the workspace that the text configures."""
        return self.path.parent if self.path is not None else None


def path_of(uri: str) -> Path | None:
    """Return the absolute path of a ``file:`` URI, or None for any other URI."""
    try:
        if urlsplit(uri).scheme != "file":
            return None
        name = to_fs_path(uri)
    except ValueError:
        return None
    if not name or "\0" in name or not Path(name).is_absolute():
        return None
    return Path(name)


def is_config(uri: str, language: str, text: str) -> bool:
    """Tell whether a text is a configuration of this package; editors may send any TOML file."""
    path = path_of(uri)
    named = path is not None and path.name == FILE_NAME
    return named or language == LANGUAGE or _DIRECTIVE.match(text[:1000]) is not None


def to_range(span: Span, lines: list[str], codec: PositionCodec) -> types.Range:
    """Convert a span in characters to a range in the client's units."""
    line = lines[span.line]
    return types.Range(
        types.Position(span.line, codec.client_num_units(line[: span.start])),
        types.Position(span.line, codec.client_num_units(line[: span.end])),
    )


def to_column(position: types.Position, lines: list[str], codec: PositionCodec) -> int:
    """Convert a client's position to a column in characters."""
    if not 0 <= position.line < len(lines):
        return 0
    seen = 0
    for column, char in enumerate(lines[position.line]):
        if seen >= position.character:
            return column
        seen += codec.client_num_units(char)
    return len(lines[position.line])
