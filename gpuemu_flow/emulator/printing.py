"""Text that a kernel prints by ``printf``, and its failed assertions."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

import numpy as np

from gpuemu_flow.emulator.memory import GLOBAL_BASE, LOCAL_BASE
from gpuemu_flow.emulator.types import Array
from gpuemu_flow.emulator.wmma import WarpGroups

MAX_PRINTED = 1 << 20
"""Largest number of characters that are kept of the output of one launch."""

MAX_TEXT = 4096
_DIRECTIVE = re.compile(
    r"%([-+ #0]{0,5})(\d{1,3})?(?:\.(\d{1,3}))?(hh|h|ll|l|j|z|t)?([diouxXeEfFgGaAcsp%])", re.ASCII
)
_LONG = ("ll", "l", "j", "z", "t")


class Printing(WarpGroups):
    """Executes ``vprintf`` and reports failed assertions, for one batch of blocks."""

    def print(self, words: Array, arguments: Array, mask: Array | None, step: int) -> Array:
        active = self.spread(self.live if mask is None else mask)
        words, arguments = self.spread(words), self.spread(arguments)
        counts = np.zeros(self.full.shape, np.uint32)
        kept = sum(map(len, self.launch.printed))
        for flat in np.flatnonzero(active).tolist():
            if kept > MAX_PRINTED:
                break
            row, lane = divmod(flat, self.width)
            form = self._text(int(words[row, lane]))
            base = int(arguments[row, lane])

            def fetch(offset: int, size: int, flat: int = flat, base: int = base) -> bytes:
                return self._bytes(base + offset, size, flat)

            text, counts[row, lane] = format_c(form, fetch, self._text)
            self.launch.printed.append(text)
            kept += len(text)
        return counts

    def assertion_failed(
        self, message: Array, file: Array, line: Array, mask: Array | None, step: int
    ) -> None:
        """Report a failed ``assert``."""
        active = self.spread(self.live if mask is None else mask)
        numbers = np.flatnonzero(active)
        if not numbers.size:
            return
        row, lane = divmod(int(numbers[0]), self.width)
        said = self._text(int(self.spread(message)[row, lane]))
        where = self._text(int(self.spread(file)[row, lane])).rpartition("/")[2]
        at = int(self.spread(line)[row, lane])
        who = self.who(int(numbers[0]))
        self.report_lanes(
            "trap", "assertion", numbers, step,
            lambda _: f"assertion {said!r} of {where}:{at} failed in {who}",
        )  # fmt: skip

    def _bytes(self, address: int, size: int, flat: int) -> bytes:
        """Read bytes at a generic address; return zeros if any of them lies outside of memory."""
        data, start, limit = self.launch.arena.data, address - GLOBAL_BASE, 0
        if address >> 36 == LOCAL_BASE >> 36:
            start = address - LOCAL_BASE
            inside = start >= 0 and start + size <= self.launch.program.local_bytes
            data, start = self.local, start + flat * self.local_stride
            limit = len(data) if inside else 0
        else:
            limit = len(data)
        if start < 0 or start + size > limit:
            return bytes(size)
        return data[start : start + size].tobytes()

    def _text(self, address: int) -> str:
        start = address - GLOBAL_BASE
        if not 0 <= start < len(self.launch.arena.data):
            return "(no text)"
        raw = self.launch.arena.data[start : start + MAX_TEXT].tobytes()
        return raw.partition(b"\0")[0].decode("utf-8", "replace")


def format_c(
    form: str, fetch: Callable[[int, int], bytes], text: Callable[[int], str]
) -> tuple[str, int]:
    """Format as C's ``printf`` does."""
    out: list[str] = []
    position = offset = count = 0
    for match in _DIRECTIVE.finditer(form):
        out.append(form[position : match.start()])
        position = match.end()
        flags, width, precision, length, kind = match.groups()
        if kind == "%":
            out.append("%")
            continue
        size = 8 if kind in "eEfFgGaAsp" or length in _LONG else 4
        offset = -(-offset // size) * size
        raw = fetch(offset, size)
        offset += size
        count += 1
        out.append(_one(raw, flags, width, precision, length, kind, text))
    out.append(form[position:])
    return "".join(out), count


def _one(
    raw: bytes, flags: str, width: str | None, precision: str | None, length: str | None,
    kind: str, text: Callable[[int], str],
) -> str:  # fmt: skip
    number = int.from_bytes(raw, "little")
    spec = f"%{flags}{width or ''}" + (f".{precision}" if precision is not None else "")
    if kind in "eEfFgG":
        return (spec + kind) % struct.unpack("<d", raw)[0]
    if kind in "aA":
        said = float(struct.unpack("<d", raw)[0]).hex()
        return said.upper() if kind == "A" else said
    if kind == "s":
        return (spec + "s") % text(number)
    if kind == "p":
        return f"0x{number:x}"
    if kind == "c":
        return f"%{flags}{width or ''}s" % chr(number & 255)
    bits = {"hh": 8, "h": 16}.get(length or "", 8 * len(raw))
    number &= (1 << bits) - 1
    if kind in "di" and number >> (bits - 1):
        number -= 1 << bits
    return (spec + ("d" if kind in "diu" else kind)) % number
