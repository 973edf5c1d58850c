"""Findings of the checks of compiled kernels, with messages and source lines as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from gpuemu_flow.quick_dataclass import dataclass

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


@dataclass(frozen=True)
class CodePlace:
    """The place of an instruction."""

    file: str = ""
    line: int = 0
    code: int = 0

    @property
    def is_inside(self) -> bool:
        """Tell whether the place is a line of a workspace file, which an editor can show."""
        return bool(self.line and self.file) and not self.file.startswith(("/", "../"))

    def __str__(self) -> str:
        if self.line:
            return f"{self.file.rpartition('/')[2]}:{self.line}"
        return f"PTX line {self.code}"


@dataclass(frozen=True)
class KernelFinding:
    """One error that a check found at one place."""

    check: str
    rule: str
    kernel: str
    instruction: str
    words: str
    place: CodePlace
    there: CodePlace | None
    block: tuple[int, ...]
    thread: tuple[int, ...]
    count: int

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
        return {**asdict(self), "block": list(self.block), "thread": list(self.thread)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> KernelFinding:
        """Undo `to_json`; raise KeyError, TypeError or ValueError for other data."""
        texts = ("check", "rule", "kernel", "instruction", "words")
        return cls(
            **{name: str(data[name]) for name in texts},
            place=_place(data["place"]),
            there=None if data["there"] is None else _place(data["there"]),
            block=tuple(int(n) for n in data["block"]),
            thread=tuple(int(n) for n in data["thread"]),
            count=int(data["count"]),
        )


def _place(data: Mapping[str, Any]) -> CodePlace:
    return CodePlace(str(data["file"]), int(data["line"]), int(data["code"]))
