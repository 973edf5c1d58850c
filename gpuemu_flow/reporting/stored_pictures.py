"""Store the drawings of failures that `ci` makes, so that `report` need not run cases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import convert, to_builtins

from gpuemu_flow.results.document import LEVELS, SHARES, Picture
from gpuemu_flow.results.model import CaseFailure
from gpuemu_flow.store.keys import digest_json

if TYPE_CHECKING:
    from gpuemu_flow.store.workspace_cache import WorkspaceCache

VERSION = 2
_MOST_CELLS = 1 << 16


def store_picture(cache: WorkspaceCache, failure: CaseFailure, picture: Picture) -> None:
    """Store the drawing of a failure, under a key that includes the case and its result."""
    if picture.elements:
        cache.actions.put(_key(failure), to_builtins(picture))


def stored_picture(cache: WorkspaceCache, failure: CaseFailure) -> Picture | None:
    """Return the stored drawing of a failure; None if there is none for the case's present result.

    Since anybody may have written to the cache, only content that `draw` could have made is
    accepted.
    """
    record = cache.actions.get(_key(failure))
    if record is None:
        return None
    try:
        return _checked(convert(record, Picture))
    except ValueError:
        return None


def _key(failure: CaseFailure) -> str:
    result = failure.result.to_json()
    return digest_json(["picture", VERSION, failure.op, failure.case.identity(), result])


def _checked(picture: Picture) -> Picture:
    rows = picture.rows
    width = len(rows[0]) if rows else 0
    if any(len(row) != width or not set(row) <= set(LEVELS) for row in rows):
        raise ValueError("no rows of levels")
    small = len(rows) * width <= _MOST_CELLS and len(picture.scatter) <= _MOST_CELLS
    if not small or len(picture.histogram) != len(SHARES) + 1 or picture.inputs or picture.note:
        raise ValueError("no figures of a drawing")
    return picture
