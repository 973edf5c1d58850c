"""Findings of the checks, as data: one per check and location, with a count."""

from __future__ import annotations

import re
from collections.abc import Callable

from msgspec import Struct

from gpuemu_flow.emulator.ir import StepLocation
from gpuemu_flow.model.kernel_findings import TITLES, CodePlace, KernelFinding

CHECKS = ("mem", "init", "race", "sync", "order", "contract", "approx")
"""Names of the checks, in the order in which they are shown."""

DEFAULT_CHECKS = ("mem", "init", "race", "sync")
"""Checks that one launch makes; the others launch the kernel again."""

DOUBTS = ("contract", "approx")
"""Checks that find no mistake, but a verdict that depends on the compiler or the GPU."""


class CheckFinding(Struct, frozen=True):
    """One mistake that a check found."""

    check: str
    rule: str
    words: str
    kernel: str
    place: StepLocation
    block: tuple[int, int, int]
    thread: tuple[int, int, int]
    count: int
    there: StepLocation | None = None

    @property
    def message(self) -> str:
        """Describe the finding in words, with the second location if there is one."""
        return self.typed().message

    def typed(self, code_line: Callable[[int], int] = int) -> KernelFinding:
        """Return the finding as plain data, which does not refer to the kernel."""

        def place(found: StepLocation) -> CodePlace:
            return CodePlace(found.file, found.line, code_line(found.ptx_line))

        return KernelFinding(
            self.check, self.rule, self.kernel,
            "" if self.check in _WHOLE else _short(self.place.text), self.words,
            place(self.place), None if self.there is None else place(self.there),
            self.block, self.thread, self.count,
        )  # fmt: skip

    @property
    def title(self) -> str:
        """Return the name that compute-sanitizer gives the check."""
        return TITLES[self.check]

    def __str__(self) -> str:
        return str(self.typed())

    @property
    def where(self) -> str:
        """Return the source file and line or, without line information, kernel and PTX line."""
        return self.place.where if self.place.line else f"{self.kernel} ({self.place.where})"


def _short(text: str) -> str:
    """Shorten an instruction to its name and its state space or, without one, its first modifier.

    For example, ``ld.volatile.shared.f32 ...`` becomes ``ld.shared``.
    """
    words = text.split()
    opcode = next((word for word in words if not word.startswith("@")), "").rstrip(";")
    first, *rest = opcode.split(".")
    spaces = [part for part in rest if part.partition("::")[0] in _SPACES]
    space = next(iter(spaces or rest), "")
    return f"{first}.{space}" if space else first


_SPACES = ("global", "shared", "local", "const", "param")
_WHOLE = ("order", "trap", *DOUBTS)
"""Checks whose messages are complete without the instruction."""


def show_index(index: tuple[int, int, int]) -> str:
    """Format a block or thread index: ``3``, or ``(3, 1, 0)`` if y or z is used."""
    return str(index[0]) if index[1:] == (0, 0) else f"({index[0]}, {index[1]}, {index[2]})"


# Names that a programmer wrote, extracted from C++ symbols.


_LAST = re.compile(r"(\d{1,4})([A-Za-z_]\w*)\Z", re.ASCII)


def plain_function(symbol: str) -> str:
    """Return a function's plain name from its C++ symbol; return other text unchanged."""
    if not symbol.startswith("_Z"):
        return symbol
    rest, name = symbol[2:].lstrip("NKL"), symbol
    while rest[:1].isdigit():
        digits = len(rest) - len(rest.lstrip("0123456789"))
        length = int(rest[: min(digits, 4)])
        name, rest = rest[digits : digits + length], rest[digits + length :]
    return name


def plain_variable(symbol: str) -> str:
    """Return a static variable's plain name from its symbol; return other text unchanged."""
    if not symbol.startswith("_ZZ"):
        return symbol
    symbol = symbol.partition("_$_")[0]  # nvcc's number of a variable of that name
    for start in range(len(symbol) - 1, 2, -1):
        match = _LAST.match(symbol, start)
        if match is not None and int(match.group(1)) == len(match.group(2)):
            return match.group(2)
    return symbol
