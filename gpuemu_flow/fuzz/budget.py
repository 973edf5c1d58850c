"""Limit the number of cases that an experiment runs, and their time."""

from __future__ import annotations

import math
import time

SECONDS = 20.0
"""Time in seconds that an experiment should take; a slow op gets fewer cases."""

MOST_SECONDS = 3 * SECONDS
"""Time in seconds after which an experiment ends in any case."""

FEWEST_CASES = 4


class Budget:
    """The number of cases that may still be run, which is reduced if cases take long.

    Attributes
    ----------
    left, used : int
        Number of cases that may still be run, and number of cases run so far.
    cut : bool
        True if the time limit, not the number of cases, has ended the experiment.
    """

    def __init__(self, cases: int) -> None:
        self.left = cases
        self.used = 0
        self.cut = False
        self._begin = time.monotonic()
        self._fastest = math.inf

    def take(self) -> bool:
        """Take one case out of the budget; return False if no case or no time is left."""
        if self.left <= 0 or self.late():
            return False
        if self.used and self._fastest > SECONDS:
            self.cut, self.left = True, 0
            return False
        if self.used == FEWEST_CASES:
            # The fastest case shows how long the op takes; others may have waited for a processor.
            most = int(min(SECONDS / max(self._fastest, 1e-9), 1e9))
            allowed = max(0, most - FEWEST_CASES)
            self.cut = self.cut or allowed < self.left
            self.left = min(self.left, allowed)
            if self.left <= 0:
                return False
        self.left -= 1
        self.used += 1
        return True

    def late(self) -> bool:
        """Tell whether the time limit of the experiment has passed."""
        over = time.monotonic() - self._begin > MOST_SECONDS
        if over:
            self.cut, self.left = True, 0
        return over

    def took(self, seconds: float) -> None:
        """Record how long a case took.

        `take` uses the shortest duration so far to limit the number of cases.
        """
        self._fastest = min(self._fastest, seconds)
