"""Findings of the checks, as data: one per check and location, with a count."""

from __future__ import annotations

import re
from collections.abc import Callable

from msgspec import Struct

from gpuemu_flow.emulator.ir import StepLocation
from gpuemu_flow.model.types import TITLES, CodePlace, KernelFinding

CHECKS = ("mem", "init", "race", "sync", "order")
"""Names of the checks, in the order in which they are shown."""

WRAPPED = "a product that wrapped around in 32 bits"


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
        return TITLES[self.check]

    def __str__(self) -> str:
        return str(self.typed())

    @property
    def where(self) -> str:
        """Return the source file and line or, without line information, kernel and PTX line."""
        return self.place.where if self.place.line else f"{self.kernel} ({self.place.where})"


def _short(text: str) -> str:
    """Shorten an instruction to its name and its state space or, without one, its first modifier.
    For example, ``ld.volatile.shared.f32 ...`` becomes ``ld.shared``."""
    words = text.split()
    opcode = next((word for word in words if not word.startswith("@")), "").rstrip(";")
    first, *rest = opcode.split(".")
    spaces = [part for part in rest if part.partition("::")[0] in _SPACES]
    space = next(iter(spaces or rest), "")
    return f"{first}.{space}" if space else first


_SPACES = ("global", "shared", "local", "const", "param")
_WHOLE = ("order", "trap")
"""Checks whose messages are complete without the instruction."""


def show_index(index: tuple[int, int, int]) -> str:
    return str(index[0]) if index[1:] == (0, 0) else f"({index[0]}, {index[1]}, {index[2]})"


# Names that a programmer wrote, extracted from C++ symbols.


_LAST = re.compile(r"(\d{1,4})([A-Za-z_]\w*)\Z", re.ASCII)


def plain_function(symbol: str) -> str:
    """Return a function's name from its C++ symbol, without namespaces and template arguments.
    Other text is returned unchanged."""
    return readable_function(symbol).partition("<")[0].rpartition("::")[2] or symbol


def readable_function(symbol: str) -> str:
    """Return a function's name as C++ writes it, such as ``ns::scale<float, 4>``. Other text, and
    symbols whose template arguments are no types and numbers, are returned unchanged or without
    these arguments."""
    return _Symbol(symbol).function() if symbol.startswith("_Z") else symbol


_TYPES = {
    "v": "void", "b": "bool", "c": "char", "a": "signed char", "h": "unsigned char", "s": "short",
    "t": "unsigned short", "i": "int", "j": "unsigned int", "l": "long", "m": "unsigned long",
    "x": "long long", "y": "unsigned long long", "f": "float", "d": "double",
}  # fmt: skip
_AFTER = {"P": "*", "R": "&", "O": "&&", "K": " const"}


class _Symbol:
    """A C++ symbol (Itanium ABI) that is being read."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 2
        self._known: list[str] = []
        self._begun = text

    def function(self) -> str:
        try:
            return self._name(outermost=True) or self._text
        except (IndexError, ValueError):
            return self._begun

    def _takes(self, text: str) -> bool:
        found = self._text.startswith(text, self._at)
        self._at += len(text) * found
        return found

    def _name(self, *, outermost: bool = False) -> str:
        """Read a name, with its template arguments; remember what later parts may refer to."""
        nested, name = self._takes("N"), ""
        while nested and self._text[self._at] in "rVK":
            self._at += 1
        while not (nested and self._takes("E")):
            name += ("::" if name else "") + self._part()
            if self._text[self._at : self._at + 1] == "I":
                self._known.append(name)
                self._begun = name if outermost else self._begun
                before = self._at
                try:
                    name += self._arguments()
                except (IndexError, ValueError):
                    if nested:
                        raise
                    self._at = before
                    return name
            if not nested:
                break
            if self._text[self._at] != "E":
                self._known.append(name)
        return name

    def _part(self) -> str:
        self._takes("L")
        if self._takes("St"):
            return f"std::{self._part()}"
        if self._takes("S"):
            return self._reference()
        start = self._at
        while self._text[self._at].isdigit():
            self._at += 1
        length = int(self._text[start : self._at])
        self._at += length
        name = self._text[self._at - length : self._at]
        if len(name) < length:
            raise IndexError
        return "(anonymous namespace)" if name.startswith("_GLOBAL__N_") else name

    def _reference(self) -> str:
        digits = self._text[self._at : self._text.index("_", self._at)]
        self._at += len(digits) + 1
        return self._known[int(digits, 36) + 1 if digits else 0]

    def _arguments(self) -> str:
        self._takes("I")
        found = []
        while not self._takes("E"):
            if self._takes("J"):
                continue
            found.append(self._literal() if self._takes("L") else self._type())
        return f"<{', '.join(found)}>"

    def _literal(self) -> str:
        kind, end = self._type(), self._text.index("E", self._at)
        value = self._text[self._at : end].replace("n", "-")
        self._at = end + 1
        return {"0": "false", "1": "true"}[value] if kind == "bool" else value

    def _type(self) -> str:
        code = self._text[self._at]
        if code in _TYPES:
            self._at += 1
            return _TYPES[code]
        if code in _AFTER:
            self._at += 1
            name = self._type() + _AFTER[code]
        elif self._text.startswith("DF16b", self._at):
            self._at += 5
            return "__bf16"
        elif code == "S" and self._text[self._at + 1] != "t":
            self._at += 1
            name = self._reference()
            if self._text[self._at] != "I":
                return name
            name += self._arguments()
        elif code == "N" or code.isdigit() or code == "S":
            name = self._name()
        else:
            raise ValueError
        self._known.append(name)
        return name


def plain_variable(symbol: str) -> str:
    if not symbol.startswith("_ZZ"):
        return symbol
    symbol = symbol.partition("_$_")[0]  # nvcc's number of a variable of that name
    for start in range(len(symbol) - 1, 2, -1):
        match = _LAST.match(symbol, start)
        if match is not None and int(match.group(1)) == len(match.group(2)):
            return match.group(2)
    return symbol
