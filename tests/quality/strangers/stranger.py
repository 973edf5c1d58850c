"""Type of a bug that a stranger planted, with its true cause."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import tomli


class Bug(NamedTuple):
    """One bug: its set, reference, schema's name, cause, true statements, and dtypes."""

    folder: str
    name: str
    reference: str
    schema: str
    cause: str
    true: tuple[str, ...]
    dtypes: tuple[str, ...] = ("float32",)


def read_set(folder: Path) -> tuple[tuple[Bug, ...], dict[str, str]]:
    """Read the bugs of a set and their schemas from its ``truths.toml``."""
    found = tomli.loads((folder / "truths.toml").read_text(encoding="utf-8"))
    bugs = (
        Bug(folder.name, b["name"], b["reference"], b["schema"], b["cause"], tuple(b["true"]))
        for b in found["bugs"]
    )
    return tuple(bugs), found["schemas"]
