"""Copies what one JSON Schema shares with another into it, so that each can be read alone.

An object whose ``$comment`` is ``as in FILE#/POINTER`` is a copy of what lies there, and is made
anew by ``python docs/generate.py``. To share something more, write an object that holds this
comment and nothing else. Definitions that copies refer to are copied too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

Json = Any

COMMENT = "as in "
_LOCAL = "#/definitions/"


def share(schema: Json, source: str, given: Json) -> Json:
    """Make every copy in a schema anew.

    Parameters
    ----------
    schema, given : dict
        Two schemas: the one that holds copies, and the one that they are of.
    source : str
        Name of the file of `given`.

    Returns
    -------
    dict

    Raises
    ------
    ValueError
        When a copy refers to a definition whose name the schema uses for another one.
    """

    def fresh(value: Json) -> Json:
        where = _copied_from(value, source)
        if where is None:
            return None
        return {"$comment": value["$comment"], **copy.deepcopy(_find(given, where))}

    made = _replaced(_own(schema, source), fresh)
    own = made["definitions"]
    copies = [one for one in _objects(made) if _copied_from(one, source) is not None]
    taken: dict[str, Json] = {}
    waiting = list(_names(made))
    while waiting:
        name = waiting.pop()
        if name not in own and name not in taken:
            found = copy.deepcopy(given["definitions"][name])
            taken[name] = {"$comment": f"{COMMENT}{source}{_LOCAL}{name}", **found}
            waiting += _names(found)
    for one in (*copies, *taken.values()):
        if clash := own.keys() & set(_names(one)):
            raise ValueError(f"definitions of its own and of {source}: {', '.join(clash)}")
    return {**made, "definitions": {**own, **dict(sorted(taken.items()))}}


def refer(schema: Json) -> Json:
    """Put references to other files in place of copies, for a page that shows each thing once.

    Parameters
    ----------
    schema : dict

    Returns
    -------
    dict
    """
    copied = {
        name: where
        for name, value in schema.get("definitions", {}).items()
        if (where := _copied_from(value)) is not None
    }

    def reference(value: Json) -> Json:
        where = _copied_from(value)
        if where is not None:
            return {"$ref": where}
        name = str(value.get("$ref", "")).removeprefix(_LOCAL)
        return {"$ref": copied[name]} if name in copied else None

    definitions = {k: v for k, v in schema.get("definitions", {}).items() if k not in copied}
    rest = {**schema, "definitions": definitions} if definitions else schema
    return _replaced(rest, reference)


def _own(schema: Json, source: str) -> Json:
    """The schema without the definitions that are copies."""
    definitions = {
        name: value
        for name, value in schema["definitions"].items()
        if _copied_from(value, source) is None
    }
    return {**schema, "definitions": definitions}


def _copied_from(value: Json, source: str = "") -> str | None:
    """``FILE#/POINTER`` of a copy, from `source` if it is given; None for all else."""
    if not isinstance(value, dict):
        return None
    comment = value.get("$comment", "")
    if not isinstance(comment, str) or not comment.startswith(f"{COMMENT}{source}"):
        return None
    where = comment.removeprefix(COMMENT)
    return where if "#/" in where else None


def _find(schema: Json, where: str) -> Json:
    """Return what a pointer leads to, through a reference that stands there."""
    found = schema
    for word in where.partition("#/")[2].split("/"):
        found = found[word]
    return found


def _replaced(value: Json, change: Callable[[Json], Json | None]) -> Json:
    """A copy of a value in which `change` has replaced objects, outermost first."""
    if isinstance(value, dict):
        changed = change(value)
        if changed is not None:
            return changed
        return {key: _replaced(one, change) for key, one in value.items()}
    return [_replaced(one, change) for one in value] if isinstance(value, list) else value


def _objects(value: Json) -> Iterator[Json]:
    if isinstance(value, dict):
        yield value
    for one in value.values() if isinstance(value, dict) else value:
        if isinstance(one, dict | list):
            yield from _objects(one)


def _names(value: Json) -> Iterator[str]:
    """Definitions of the same file that a value refers to."""
    for one in _objects(value):
        target = one.get("$ref")
        if isinstance(target, str) and target.startswith(_LOCAL):
            yield target.removeprefix(_LOCAL).partition("/")[0]
