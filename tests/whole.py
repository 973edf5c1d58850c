"""Samples of large matrices: the suite runs them, and ``.ci/run`` runs the matrices whole."""

from __future__ import annotations

import os
import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")

WHOLE = os.environ.get("WHOLE_MATRICES") == "all"


_EVERY = 5
_QUICK = {"unit", "gold"}
"""Folders of tests that start next to no processes.

None of theirs is left out, but for variants of tests marked ``sampled``."""


def left_out(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """Return the tests that a run of the whole suite leaves to ``pytest --left-out``.

    These are the ones marked ``long``, and a part of the variants of the others: of a test's
    variants, one for each set of parameters, every fifth is run, and at least two. Where to begin
    depends on the test's name, so that tests with the same list of parameters do not all run the
    same ones.

    Parameters
    ----------
    items : sequence of pytest.Item
        All that were collected.
    """
    found = {item for item in items if item.get_closest_marker("long")}
    variants = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        quick = _QUICK & set(Path(item.nodeid).parts[1:2])
        if item not in found and (not quick or item.get_closest_marker("sampled")):
            variants[item.nodeid.partition("[")[0]].append(item)
    for name, group in variants.items():
        step = min(_EVERY, len(group) // 2)
        if step > 1:
            first = zlib.crc32(name.encode()) % step
            found.update(item for n, item in enumerate(group) if n % step != first)
    return found


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
