"""Judge unknown keys: a key whose loss could weaken a check or a limit is an error."""

from __future__ import annotations

from collections.abc import Iterable

MOST_EDITS = 2
SHORT = 5
"""Words of at most this length count as misspelt only if they differ by one edit.

With two edits, ``jobs`` would be near ``ops``. Longer words may differ by two.
"""
SHORTEST = 3


STEM = 4
ENDING = 3


def is_misspelt(written: str, known: Iterable[str]) -> bool:
    """Tell whether a name is a variant of a known name, or one or two typing errors away from it.

    Variants are the known name cut short (``grad`` for ``gradients``) and the known name with a
    short ending (``depends_on`` for ``depends``, ``forbidden`` for ``forbid``).
    """
    return any(_near(written, name) or _is_form(written.lower(), name) for name in known)


def _is_form(written: str, name: str) -> bool:
    if len(written) < STEM or len(name) < STEM:
        return False
    ended = written.startswith(name) and len(written) - len(name) <= ENDING
    return ended or name.startswith(written)


def _near(written: str, name: str) -> bool:
    if len(name) < SHORTEST:
        return False
    longer = len(name) > SHORT and (len(written) > SHORT or _omits_letters(written.lower(), name))
    most = MOST_EDITS if longer else 1
    return abs(len(written) - len(name)) <= most and edits(written.lower(), name) <= most


def _omits_letters(written: str, name: str) -> bool:
    letters = iter(name)
    return all(letter in letters for letter in written)


def edits(first: str, second: str) -> int:
    """Return the number of typing errors between two words.

    One error is an additional, missing or wrong character, or an exchange of two neighbours (the
    Damerau-Levenshtein distance in its restricted form, in which each character changes at most
    once).
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
