"""Find the symbolic links that the path of a file passes through."""

from __future__ import annotations

import os
from collections.abc import Iterator

_MOST_LINKS = 40


def has_link(path: str, known: dict[str, bool]) -> bool:
    """Tell whether a path passes through a symbolic link or ``..``; cache answers in `known`."""
    above = known.get(path.rpartition("/")[0])
    if above is not None and path not in known:
        known[path] = above or os.path.islink(path)  # noqa: PTH114 - hot
        return known[path] or "/../" in path
    folders: list[str] = []
    place, found = path, False
    while len(place) > 1:
        if place in known:
            found = known[place]
            break
        folders.append(place)
        if os.path.islink(place):  # noqa: PTH114 - hot
            found = True
            break
        folder = os.path.dirname(place)  # noqa: PTH120 - hot
        place = folder if folder != place else ""
    known.update(dict.fromkeys(folders, found))
    return found or "/../" in path


def links_of(path: str) -> Iterator[str]:
    """Yield the symbolic links that lead from a path to its file, in the order of following."""
    for _ in range(_MOST_LINKS):
        place, rest = "", path.strip("/").split("/")
        for n, part in enumerate(rest):
            if part == "..":
                place = os.path.dirname(place)  # noqa: PTH120
                continue
            if part in ("", "."):
                continue
            place = f"{place}/{part}"
            try:
                target = os.readlink(place)  # noqa: PTH115
            except OSError:
                continue
            yield place
            head = target if target.startswith("/") else f"{os.path.dirname(place)}/{target}"  # noqa: PTH120
            path = "/".join((head, *rest[n + 1 :]))
            break
        else:
            return
