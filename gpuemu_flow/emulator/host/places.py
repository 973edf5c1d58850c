"""Places in a program's own source, found from return addresses, and the names of its variables."""

from __future__ import annotations

import re
import struct
import subprocess
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from gpuemu_flow.model.types import CodePlace

_SECONDS = 60
_ALLOCATES = (
    r"(?:(?:cuda|cu|hip)(?:Malloc|Mem|HostAlloc)\w*|\b(?!(?:m|c|re)alloc\b)\w*[aA]lloc\w*)"
    r"\s*(?:<[^<>;]*>)?\s*\(\s*"
)
_FIRST = re.compile(
    _ALLOCATES
    + r"(?:\(\s*[\w:\s*]+\)\s*|reinterpret_cast<[^<>]*>\s*\(\s*)?&?\s*([A-Za-z_][\w.\->\[\]]*)"
)
_SIZE = re.compile(r"sizeof\s*\(\s*([\w:\s]+?)\s*\)")
_ITEMS = {
    "char": 1, "unsigned char": 1, "int8_t": 1, "uint8_t": 1, "bool": 1, "half": 2, "__half": 2,
    "short": 2, "__nv_bfloat16": 2, "int": 4, "unsigned": 4, "unsigned int": 4, "float": 4,
    "int32_t": 4, "uint32_t": 4, "double": 8, "long": 8, "size_t": 8, "int64_t": 8, "uint64_t": 8,
    "long long": 8, "unsigned long long": 8, "float2": 8, "int2": 8, "float4": 16, "int4": 16,
    "double2": 16, "T": 0,
}  # fmt: skip
_DECLARED = r"((?:unsigned\s+)?[\w:]+)\s*\*\s*(?:\w+[^,;()]*,\s*\*\s*)*%s\b"
_VECTOR = re.compile(r"u?(?:char|short|int|long|longlong|float|double)[1-4]|unsigned \w+")
_STUB = ".cudafe1.stub.c"
_FOREIGN = ("/include/cuda", "/include/crt/", "/cccl/", "/targets/", "/usr/include/",
            "/include/c++/", "/site-packages/", "/dist-packages/", _STUB, "/_ctypes/")  # fmt: skip

_SYSTEM = ("python", "libpython", "libc.so", "libpthread", "libstdc++", "ld-linux")
"""Beginnings of the names of programs whose own source is never the user's."""


class Allocated(NamedTuple):
    """What the source says about an allocation: variable, bytes of an element, place."""

    name: str
    item: int
    place: CodePlace


class _Mapping(NamedTuple):
    start: int
    end: int
    offset: int
    path: str


class Places:
    """Return addresses of one process, as lines of its source."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._maps: list[_Mapping] = []
        self._known: dict[int, tuple[CodePlace, ...]] = {}
        self.sources: dict[str, CodePlace] = {}
        """Where texts begin that are compiled under the name of a file, such as Python strings."""

    def in_source(self, place: CodePlace) -> CodePlace:
        """Return a place in the file that holds the text, for one in the compiled text."""
        begin = self.sources.get(place.file.rpartition("/")[2])
        if begin is None or not place.line:
            return place
        return CodePlace(begin.file, begin.line + place.line - 1, place.code)

    def of(self, addresses: tuple[int, ...]) -> CodePlace:
        return next(self._own(addresses), CodePlace())

    def of_launch(self, addresses: tuple[int, ...]) -> CodePlace:
        """Return the place of a launch. What calls nvcc's stub, if there is one, has the kernel's
        own line, be that in a header of a library."""
        first = self.of(addresses)
        places = [p for a in addresses for p in self._known.get(a, ())]
        kernel = [p for stub, p in pairwise(places) if stub.file.endswith(_STUB)][-1:]
        return next((p for p in self._own(addresses) if p not in kernel), first)

    def _own(self, addresses: tuple[int, ...]) -> Iterator[CodePlace]:
        self._look_up([a for a in addresses if a not in self._known])
        for address in addresses:
            for place in self._known.get(address, ()):
                if place.line and not any(part in place.file for part in _FOREIGN):
                    yield place

    def allocated(self, addresses: tuple[int, ...]) -> Allocated:
        """Read the line of an allocation: ``cudaMalloc(&d_x, n * sizeof(float))`` is ``d_x``. Of
        several in one line, which one it is cannot be known."""
        place = self.of(addresses)
        lines = _source(place.file)[place.line - 1 : place.line + 2] if place.line else []
        name, item = "", 0
        if lines and len(set(_FIRST.findall(lines[0]))) < 2:
            found = _FIRST.search(lines[0]) or _FIRST.search(" ".join(lines))
            name = found[1] if found else ""
            size = _SIZE.search(lines[0]) or _SIZE.search(" ".join(lines))
            item = _ITEMS.get(" ".join(size[1].split()), 0) if size else 0
        return Allocated(name, item, place)

    def of_numbers(self, allocated: Allocated) -> bool:
        """Tell whether an allocation's pointer is declared as one to numbers or CUDA's vectors of
        them, which have no padding; bytes called ``char`` may hold anything."""
        names = re.findall(r"\w+", re.sub(r"\[.*", "", allocated.name))
        if not names:
            return False
        before = "\n".join(_source(allocated.place.file)[: allocated.place.line])
        found = re.findall(_DECLARED % re.escape(names[-1]), before)
        types = [t for t in found if t not in ("return", "sizeof")]
        kind = " ".join(types[-1].split()).removeprefix("std::") if types else "T"
        return kind not in ("char", "T") and (kind in _ITEMS or bool(_VECTOR.fullmatch(kind)))

    def _look_up(self, addresses: list[int]) -> None:
        by_file: dict[str, list[tuple[int, int]]] = {}
        for address in addresses:
            found = self._mapping(address)
            self._known[address] = ()
            if found is not None and not Path(found.path).name.startswith(_SYSTEM):
                offset = address - 1 - found.start + found.offset
                by_file.setdefault(found.path, []).append((address, offset))
        for path, items in by_file.items():
            loads = _load_segments(path)
            wanted = []
            for address, offset in items:
                for start, size, virtual in loads:
                    if start <= offset < start + size:
                        wanted.append((address, offset - start + virtual))
                        break
            self._ask(path, wanted)

    def _ask(self, path: str, wanted: list[tuple[int, int]]) -> None:
        if not wanted:
            return
        command = ["addr2line", "-a", "-i", "-e", path, *(hex(v) for _, v in wanted)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_SECONDS, check=False,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            return
        at = -1
        for line in done.stdout.splitlines():
            if re.fullmatch(r"0x[0-9a-f]+", line):
                at += 1
                continue
            file, _, number = line.rpartition(":")
            digits = number.split(" ")[0]
            if at < len(wanted) and digits.isdigit() and file not in ("", "??"):
                address = wanted[at][0]
                place = self.in_source(CodePlace(file, int(digits)))
                self._known[address] = (*self._known[address], place)

    def _mapping(self, address: int) -> _Mapping | None:
        for again in (False, True):
            if again:
                self._read_maps()
            for found in self._maps:
                if found.start <= address < found.end:
                    return found
        return None

    def _read_maps(self) -> None:
        self._maps = []
        try:
            text = Path(f"/proc/{self._pid}/maps").read_text(errors="replace")
        except OSError:
            return
        for line in text.splitlines():
            parts = line.split(None, 5)
            if len(parts) == 6 and "x" in parts[1] and parts[5].startswith("/"):
                start, _, end = parts[0].partition("-")
                where = _Mapping(int(start, 16), int(end, 16), int(parts[2], 16), parts[5])
                self._maps.append(where)


@cache
def _source(file: str) -> list[str]:
    try:
        return Path(file).read_text(errors="replace").splitlines()
    except OSError:
        return []


@cache
def _load_segments(path: str) -> tuple[tuple[int, int, int], ...]:
    try:
        with Path(path).open("rb") as file:
            head = file.read(64)
            if head[:5] != b"\x7fELF\x02":
                return ()
            table, size, count = (
                *struct.unpack_from("<Q", head, 32),
                *struct.unpack_from("<HH", head, 54),
            )
            file.seek(table)
            raw = file.read(size * count)
    except (OSError, struct.error):
        return ()
    found = []
    for n in range(count):
        kind, _, offset, virtual, _, length = struct.unpack_from("<IIQQQQ", raw, n * size)
        if kind == 1:
            found.append((offset, length, virtual))
    return tuple(found)


def needed_libraries(path: Path) -> list[str] | None:
    """List the shared libraries that an ELF program names as needed; None if it is no ELF file."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if data[:5] != b"\x7fELF\x02":
        return None
    table, size, count = *struct.unpack_from("<Q", data, 32), *struct.unpack_from("<HH", data, 54)
    loads = _load_segments(str(path))
    dynamic = None
    for n in range(count):
        kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", data, table + n * size)
        if kind == 2:
            dynamic = (offset, length)
    if dynamic is None:
        return []
    pairs = list(struct.iter_unpack("<qQ", data[dynamic[0] : dynamic[0] + dynamic[1] // 16 * 16]))
    strings = next((value for tag, value in pairs if tag == 5), 0)
    base = next((o + strings - v for o, n, v in loads if v <= strings < v + n), 0)
    return [
        data[base + value : data.index(b"\0", base + value)].decode(errors="replace")
        for tag, value in pairs
        if tag == 1
    ]
