"""Merge configuration files key by key.

Tables are merged recursively. Any other value, such as an array of tables, is taken whole from the
file of highest priority that defines it.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuemu_flow.config.positions import KeyPath
from gpuemu_flow.config.read import ConfigSource
from gpuemu_flow.types import Json


def merged(sources: Sequence[ConfigSource]) -> dict[str, Json]:
    """Merge the checked keys of sources, given from the highest priority to the lowest."""
    out: dict[str, Json] = {}
    for source in reversed(sources):
        _over(out, source.tree)
    return out


def _over(low: dict[str, Json], high: dict[str, Json]) -> None:
    """Merge `high` over `low`, in place, without changing `high`."""
    for name, value in high.items():
        below = low.get(name)
        if isinstance(value, dict):
            table = dict(below) if isinstance(below, dict) else {}
            _over(table, value)
            low[name] = table
        else:
            low[name] = value


def definer(sources: Sequence[ConfigSource], path: KeyPath, default: ConfigSource) -> ConfigSource:
    """Return the source that defines a merged key; `default` if no source does."""
    for source in sources:
        node: Json = source.tree
        for part in path:
            if not isinstance(node, dict):  # inside an array, which comes from one source
                return source
            if part not in node:
                break
            node = node[part]
        else:
            return source
    return default
