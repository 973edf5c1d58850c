"""Judge unknown keys: those whose loss could weaken a check or a wall are errors."""

from __future__ import annotations

from collections.abc import Iterable

MOST_EDITS = 2
SHORT = 5
"""Names of at most this length are misspelt by one edit only: of two, ``jobs`` is near ``ops``."""
SHORTEST = 3


def is_misspelt(written: str, known: Iterable[str]) -> bool:
    """Tell whether a name is one or two typing errors away from a known one."""
    return any(_near(written, name) for name in known)


def _near(written: str, name: str) -> bool:
    if len(name) < SHORTEST:
        return False
    most = 1 if len(name) <= SHORT else MOST_EDITS
    return abs(len(written) - len(name)) <= most and edits(written.lower(), name) <= most


def edits(first: str, second: str) -> int:
    """Return how many typing errors lie between two words.

    One error is a character too many, too few, or another one, or two neighbours exchanged
    (Damerau and Levenshtein's distance, each place changed once).
    """
    above: list[int] = []
    row = list(range(len(second) + 1))
    for i, a in enumerate(first, start=1):
        further, above, row = above, row, [i]
        for j, b in enumerate(second, start=1):
            least = min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (a != b))
            if i > 1 and j > 1 and a == second[j - 2] and first[i - 2] == b:
                least = min(least, further[j - 2] + 1)
            row.append(least)
    return row[-1]
