"""Write tables of a configuration as TOML, with one key to a line."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from gpuemu_flow.types import Json

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def table_text(heading: str, table: Mapping[str, Json]) -> str:
    """Return a table under its heading, such as ``[validation]`` or ``[[ops]]``.

    Nested tables are written inline, in braces.
    """
    lines = [heading, *(f"{_key(name)} = {toml_value(value)}" for name, value in table.items())]
    return "\n".join(lines) + "\n"


def toml_value(value: Json) -> str:
    """Return a value as TOML, in one line."""
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(key)} = {toml_value(one)}" for key, one in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(toml_value, value))}]"
    if type(value) is float:
        return repr(value)
    if isinstance(value, str):
        # JSON's escapes are TOML's, too, but JSON leaves one control character as it is.
        return json.dumps(value).replace("\x7f", "\\u007f")
    return json.dumps(value)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else toml_value(name)
