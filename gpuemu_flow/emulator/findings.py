"""What the checks find, as data: one finding per check and place, with a count."""

from __future__ import annotations

from dataclasses import dataclass

from gpuemu_flow.emulator.ir import Place

CHECKS = ("mem", "init", "race", "sync", "order", "contract", "approx")
"""Names of the checks, in the order in which they are shown."""

DEFAULT_CHECKS = ("mem", "init", "race", "sync")
"""Checks that one launch makes; the others launch the kernel again."""

DOUBTS = ("contract", "approx")
"""Checks that find no mistake but a verdict that is none: it flips with the compiler or GPU."""

TITLES = {
    "mem": "memcheck",
    "init": "initcheck",
    "race": "racecheck",
    "sync": "synccheck",
    "order": "ordercheck",
    "contract": "contraction",
    "approx": "approximation",
    "trap": "trap",
}


@dataclass(frozen=True)
class Finding:
    """One thing that a check found.

    Attributes
    ----------
    check : str
        One of `CHECKS`, or ``trap``.
    rule : str
        What kind of mistake, kebab-case: ``out-of-bounds``, ``read-after-write``.
    message : str
        What happened, with block, thread and address, without the place.
    kernel : str
    place : Place
    block, thread : tuple of int
        The first that did it: (x, y, z) each.
    count : int
        How often it happened, over all threads.
    """

    check: str
    rule: str
    message: str
    kernel: str
    place: Place
    block: tuple[int, int, int]
    thread: tuple[int, int, int]
    count: int

    @property
    def title(self) -> str:
        """Name of the check as compute-sanitizer has it."""
        return TITLES[self.check]

    def __str__(self) -> str:
        times = "once" if self.count == 1 else f"{self.count:,} times"
        return f"{self.title}: {self.where} {self.message} · {times}"

    @property
    def where(self) -> str:
        """Source file and line, or the PTX line where there is no line information."""
        return self.place.where if self.place.line else f"{self.kernel} ({self.place.where})"


def show_index(index: tuple[int, int, int]) -> str:
    """Show a block or thread index: ``3``, or ``(3, 1, 0)`` where more than x counts."""
    return str(index[0]) if index[1:] == (0, 0) else f"({index[0]}, {index[1]}, {index[2]})"
