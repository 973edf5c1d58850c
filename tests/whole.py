"""Samples of large matrices: ``WHOLE_MATRICES=all python -m pytest -m ''`` runs them whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

WHOLE = os.environ.get("WHOLE_MATRICES") == "all"


def sample(
    things: Sequence[T], every: int, *keys: Callable[[T], object], whole: bool = WHOLE
) -> list[T]:
    """Return every so many of some things, and more of them until each row and column has one.

    Parameters
    ----------
    things : sequence
    every : int
    keys : callable
        Return a thing's row, its column and so on: of each there is at least one thing.
    whole : bool
        Return all; by default where the environment has ``WHOLE_MATRICES=all``.
    """
    if whole:
        return [*things]
    chosen = set(range(0, len(things), every))
    for key in keys:
        met = {key(things[n]) for n in chosen}
        for n, thing in enumerate(things):
            if key(thing) not in met:
                met.add(key(thing))
                chosen.add(n)
    return [things[n] for n in sorted(chosen)]


def rotated(names: Sequence[T], count: int, turn: int, *, whole: bool = WHOLE) -> list[T]:
    """Return some neighbours of a list, other ones at each turn; all of it as `sample` does.

    Parameters
    ----------
    names : sequence
    count : int
        At most so many.
    turn : int
        Of the list among several: the first one's begin at its first.
    whole : bool
    """
    if whole or count >= len(names):
        return [*names]
    return [names[(turn * count + n) % len(names)] for n in range(count)]
