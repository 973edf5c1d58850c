"""ELF64 sections and symbols of a hostile file: every offset is checked, all work is bounded."""

from __future__ import annotations

import struct

from gpuemu_flow.quick_dataclass import dataclass

SHT_SYMTAB = 2
SHT_NOBITS = 8
SHN_XINDEX = 0xFFFF

_HEADER_BYTES = 64
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_MAX_NAME_BYTES = 1 << 15
_ELFCLASS64 = 2
_ELFDATA2LSB = 1


class CorruptElfError(Exception):
    """Raised for a file that is not ELF64, or whose tables are inconsistent."""


@dataclass(frozen=True)
class ElfSection:
    """One entry of the section header table, with the section's name."""

    name: str
    type: int
    flags: int
    offset: int
    size: int
    link: int
    info: int


@dataclass(frozen=True)
class ElfSymbol:
    """One entry of the symbol table; ``other`` contains the flag by which CUDA marks kernels."""

    name: str
    info: int
    other: int
    section: int
    size: int


class Elf:
    """Header, sections and symbols of an ELF64 little-endian file.

    All names and section bytes that are returned may together be a few times as large as the file;
    beyond this, an error is raised. Therefore, a file whose tables all point at the same bytes does
    not cost much more than a valid file.

    Raises
    ------
    CorruptElfError
        The only exception that the constructor and the methods raise.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._budget = 8 * len(data) + (1 << 20)
        if len(data) < _HEADER_BYTES:
            raise CorruptElfError(f"{len(data)} bytes, shorter than an ELF header")
        if data[4] != _ELFCLASS64 or data[5] != _ELFDATA2LSB:
            raise CorruptElfError("not a 64-bit little-endian ELF file")
        self.abi_version = data[8]
        self.machine = self._u16(18)
        self.flags = self._u32(48)
        self.sections = self._read_sections()

    def content(self, section: ElfSection) -> memoryview:
        """Return the bytes of a section (none for a NOBITS section)."""
        if section.type == SHT_NOBITS:
            return memoryview(b"")
        self._spend(section.size)
        self._check(section.offset, section.size, f"section {section.name}")
        return memoryview(self._data)[section.offset : section.offset + section.size]

    def symbols(self) -> list[ElfSymbol]:
        """Return the symbol table; empty when the file has none."""
        table = next((s for s in self.sections if s.type == SHT_SYMTAB), None)
        if table is None:
            return []
        if table.link >= len(self.sections):
            raise CorruptElfError(f"symbol table links to section {table.link}")
        strings = self.sections[table.link]
        content = self.content(table)
        symbols = []
        for position in range(0, len(content) // _SYMBOL.size * _SYMBOL.size, _SYMBOL.size):
            name, info, other, section, _, size = _SYMBOL.unpack_from(content, position)
            symbols.append(ElfSymbol(self._name(strings, name), info, other, section, size))
        return symbols

    def _read_sections(self) -> list[ElfSection]:
        table_offset = self._u64(40)
        entry_size, count, names_index = self._u16(58), self._u16(60), self._u16(62)
        if table_offset == 0:
            raise CorruptElfError("no section table")
        if entry_size != _SECTION.size:
            raise CorruptElfError(
                f"section headers of {entry_size} bytes, expected {_SECTION.size}"
            )
        if count == 0:  # the real count does not fit: it is in the first header
            self._check(table_offset, entry_size, "section table")
            count = self._u64(table_offset + 32)
        self._check(table_offset, count * entry_size, "section table")
        raw = [
            _SECTION.unpack_from(self._data, table_offset + i * entry_size) for i in range(count)
        ]
        if names_index == SHN_XINDEX and raw:
            names_index = raw[0][6]
        if names_index >= len(raw):
            raise CorruptElfError(f"section name table {names_index} of {len(raw)} sections")
        header = raw[names_index]
        names = ElfSection("", header[1], header[2], header[4], header[5], header[6], header[7])
        return [
            ElfSection(self._name(names, s[0]), s[1], s[2], s[4], s[5], s[6], s[7]) for s in raw
        ]

    def _name(self, strings: ElfSection, offset: int) -> str:
        self._check(strings.offset, strings.size, "string table")
        if offset >= strings.size:
            raise CorruptElfError(f"name at {offset} of a string table of {strings.size} bytes")
        start = strings.offset + offset
        limit = min(strings.offset + strings.size, start + _MAX_NAME_BYTES)
        end = self._data.find(b"\0", start, limit)
        if end < 0:
            raise CorruptElfError("a name is not terminated")
        self._spend(end - start + 1)
        return self._data[start:end].decode("utf-8", "backslashreplace")

    def _check(self, offset: int, size: int, what: str) -> None:
        if offset + size > len(self._data):
            raise CorruptElfError(
                f"{what} at {offset} with {size} bytes, the file has {len(self._data)}"
            )

    def _spend(self, amount: int) -> None:
        self._budget -= amount
        if self._budget < 0:
            raise CorruptElfError("sections or names overlap many times over")

    def _u16(self, offset: int) -> int:
        return int.from_bytes(self._data[offset : offset + 2], "little")

    def _u32(self, offset: int) -> int:
        return int.from_bytes(self._data[offset : offset + 4], "little")

    def _u64(self, offset: int) -> int:
        return int.from_bytes(self._data[offset : offset + 8], "little")
