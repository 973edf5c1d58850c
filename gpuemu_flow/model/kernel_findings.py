"""Findings of the checks of compiled kernels, with messages and source lines as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from gpuemu_flow.model.decoding import convert

THERE = "{there}"
"""Placeholder, in a finding's `words`, for the second place of the finding."""

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
"""Names of the checks as compute-sanitizer has them."""


class CodePlace(Struct, frozen=True):
    """The place of an instruction."""

    file: str = ""  # Source file, relative to the workspace if inside; empty if unknown
    line: int = 0  # line in `file`, 1-based; 0 if unknown
    # Line (1-based) in the PTX without comments and line information; 0 if unknown. Unlike `line`,
    # it does not change when a comment is added to the source.
    code: int = 0

    @property
    def is_inside(self) -> bool:
        """Tell whether the place is a line of a workspace file, which an editor can show."""
        return bool(self.line and self.file) and not self.file.startswith(("/", "../"))

    def __str__(self) -> str:
        if self.line:
            return f"{self.file.rpartition('/')[2]}:{self.line}"
        return f"PTX line {self.code}"


class KernelFinding(Struct, frozen=True):
    """One error that a check found at one place."""

    # ``mem``, ``init``, ``race``, ``sync``, ``order``, ``contract``, ``approx`` or ``trap``
    check: str
    rule: str  # Kind of mistake, kebab-case
    kernel: str  # name of the entry
    instruction: str  # Short name of the instruction, such as ``ld.shared``
    words: str  # Message, in which `THERE` stands for the line of `there`
    place: CodePlace
    there: CodePlace | None  # for a race, the other access; for a barrier, the other barrier
    # Indices (x, y, z) of the first block and thread with the error
    block: tuple[int, ...]
    thread: tuple[int, ...]
    count: int  # number of occurrences, over all threads

    @property
    def message(self) -> str:
        """Describe what happened, without check and place."""
        there = "" if self.there is None else str(self.there)
        return f"{self.instruction} {self.words.replace(THERE, there)}".strip()

    def __str__(self) -> str:
        times = "once" if self.count == 1 else f"{self.count:,} times"
        where = str(self.place) if self.place.line else f"{self.kernel} ({self.place})"
        return f"{TITLES.get(self.check, self.check)}: {where} {self.message} · {times}"

    def moved(self, now: Callable[[CodePlace], CodePlace]) -> KernelFinding:
        """Return a copy of the finding in which ``now(place)`` replaces each place."""
        there = None if self.there is None else now(self.there)
        return replace(self, place=now(self.place), there=there)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON; `from_json` is its inverse."""
        plain: dict[str, Any] = to_builtins(self)
        return plain

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> KernelFinding:
        """Undo `to_json`; raise ValueError for other data."""
        return convert(data, cls)
