"""Store the drawings of failures that `ci` makes, so that `report` need not run cases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuemu_flow.results.document import LEVELS, SHARES, Picture
from gpuemu_flow.results.model import CaseFailure
from gpuemu_flow.store.keys import digest_json
from gpuemu_flow.types import Json

if TYPE_CHECKING:
    from gpuemu_flow.store.workspace_cache import WorkspaceCache

VERSION = 1
_FIGURES = 4  # figures of one cell of the scatter plot
_MOST_CELLS = 1 << 16


def store_picture(cache: WorkspaceCache, failure: CaseFailure, picture: Picture) -> None:
    """Store the drawing of a failure, under a key that includes the case and its result."""
    if picture.elements:
        cache.actions.put(_key(failure), _to_json(picture))


def stored_picture(cache: WorkspaceCache, failure: CaseFailure) -> Picture | None:
    """Return the stored drawing of a failure; None if there is none for the case's present result.

    Since anybody may have written to the cache, only content that `draw` could have made is
    accepted.
    """
    record = cache.actions.get(_key(failure))
    if record is None:
        return None
    try:
        return _from_json(record)
    except (KeyError, TypeError, ValueError):
        return None


def _key(failure: CaseFailure) -> str:
    result = failure.result.to_json()
    return digest_json(["picture", VERSION, failure.op, failure.case.identity(), result])


def _to_json(picture: Picture) -> Json:
    return {
        "output": picture.output,
        "shape": list(picture.shape),
        "rows": list(picture.rows),
        "fold": picture.fold,
        "scatter": [list(cell) for cell in picture.scatter],
        "histogram": list(picture.histogram),
        "elements": picture.elements,
        "failing": picture.failing,
    }


def _from_json(data: Json) -> Picture:
    rows = tuple(str(row) for row in data["rows"])
    width = len(rows[0]) if rows else 0
    if any(len(row) != width or not set(row) <= set(LEVELS) for row in rows):
        raise ValueError("no rows of levels")
    histogram = tuple(int(count) for count in data["histogram"])
    cells = [tuple(int(figure) for figure in cell) for cell in data["scatter"]]
    small = len(rows) * width <= _MOST_CELLS and len(cells) <= _MOST_CELLS
    whole = len(histogram) == len(SHARES) + 1 and all(len(cell) == _FIGURES for cell in cells)
    if not small or not whole:
        raise ValueError("no figures of a drawing")
    return Picture(
        output=str(data["output"]),
        shape=tuple(int(size) for size in data["shape"]),
        rows=rows,
        fold=str(data["fold"]),
        scatter=tuple((x, y, count, bad) for x, y, count, bad in cells),
        histogram=histogram,
        elements=int(data["elements"]),
        failing=int(data["failing"]),
    )
