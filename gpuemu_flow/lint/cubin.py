"""Resources of the kernels in a cubin, read from the ELF file itself: no NVIDIA tool needed.

What this module reads was compared with the output of ``cuobjdump -res-usage``, ``nvdisasm`` and
``ptxas -v`` for sm_75 to sm_121: registers, stack and spill records of ``.nv.info``; sizes of
``.nv.shared`` sections, which on sm_90 and later include 1,024 bytes that are not the kernel's;
spill bytes from the size field of the spilling instructions. Among the versions tried, 12.6 is the
oldest ptxas that records spills; 12.4 does not.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from msgspec import Struct, field

from gpuemu_flow.model.errors import Problem

EM_CUDA = 190

_LINE_TABLE = ".debug_line"
_ELF_MAGIC = b"\x7fELF"
_FORMAT_SIZED = 4
_FORMATS_SHORT = frozenset({1, 2, 3})
_STO_CUDA_ENTRY = 0x10
_STT_FUNC = 2

# EIATTR numbers of .nv.info records.
_MAX_THREADS = 0x05
_REQUIRED_THREADS = 0x10
_MIN_STACK_SIZE = 0x12
_FRAME_SIZE = 0x11
_REGISTER_COUNT = 0x2F
_TOOLKIT = 0x37
_BARRIER_COUNT = 0x4C
_ANNOTATED_INSTRUCTIONS = 0x55

_FIRST_TOOLKIT_WITH_SPILLS = 126  # CUDA 12.6; 12.4 writes none
_SPILL_ANNOTATION = 1
_INSTRUCTION_BYTES = 16
_OPCODE_MASK = 0xFFF
_STL, _LDL = 0x387, 0x983
_SIZE_SHIFT, _SIZE_MASK = 73, 7
_SIZE_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 8, 6: 16}

_ABI_VERSION_2 = 8
_ACCELERATED_ABI_1 = 0x800
_FIRST_SM_WITH_RESERVED = 90
_RESERVED_SHARED = 1024  # bytes in the section's size besides the kernel's variables
_BARRIER_SHIFT, _BARRIER_MASK = 20, 0x7F  # in the code section's flags, up to CUDA 12
_TOOL_VERSION = re.compile(rb"release (\d+\.\d+), V(\d+\.\d+\.\d+)")
_TOOL_ARCH = re.compile(rb"-(?:-gpu-name|arch)[ =]+sm_(\d{2,3}[af]?)\b")


class CubinKernel(Struct):
    """Resources of one function of a cubin."""

    name: str
    is_entry: bool = True
    registers: int = 0
    stack_bytes: int = 0
    frame_bytes: int = 0
    shared_bytes: int = 0
    spill_stores: int | None = 0
    spill_loads: int | None = 0
    spill_store_bytes: int | None = 0
    spill_load_bytes: int | None = 0
    barriers: int = 0
    max_threads: int = 0

    @property
    def spill_instructions(self) -> int | None:
        return _plus(self.spill_stores, self.spill_loads)

    @property
    def spill_bytes(self) -> int | None:
        return _plus(self.spill_store_bytes, self.spill_load_bytes)


class Cubin(Struct):
    """A cubin: its architecture, the version of its ptxas, and its kernels by name. ``arch`` keeps
    a suffix that the file records (``sm_90a``). ``tool_version`` is a version such as ``13.0.88``,
    or empty if the file does not record it."""

    arch: str
    tool_version: str = ""
    kernels: dict[str, CubinKernel] = field(default_factory=dict)


def read_cubin(data: bytes, file: str = "") -> Cubin | Problem:
    if not data.startswith(_ELF_MAGIC):
        what = "the file is empty" if not data else "no ELF file"
        return Problem("cubin-not-elf", f"{what}, so not a cubin", "", file)
    try:
        elf = Elf(data)
        if elf.machine != EM_CUDA:
            return Problem(
                "cubin-other-machine",
                f"an ELF file for machine {elf.machine}, not for CUDA ({EM_CUDA})",
                "extract the cubins of an executable with cuobjdump -xelf all",
                file,
            )
        return _Reader(elf).read()
    except CorruptElfError as error:
        return Problem("cubin-corrupt", f"a damaged cubin: {error}", "build it again", file)


def without_line_table(data: bytes) -> bytes:
    """Return a cubin whose ``.debug_line`` section is zeroed, so that equal code gives equal bytes.
    ptxas writes the modification time of the source into this section. No code here reads the
    section, because source lines come from the PTX. Data that is not an intact ELF file is returned
    unchanged."""
    try:
        lines = [s for s in Elf(data).sections if s.name == _LINE_TABLE and s.type != SHT_NOBITS]
    except CorruptElfError:
        return data
    blank = bytearray(data)
    for section in lines:
        end = min(section.offset + section.size, len(data))
        blank[section.offset : end] = bytes(max(end - section.offset, 0))
    return bytes(blank)


class _Reader:
    def __init__(self, elf: Elf) -> None:
        self._elf = elf
        self._kernels: dict[str, CubinKernel] = {}
        self._toolkit: dict[str, int] = {}
        self._annotated: set[str] = set()

    def read(self) -> Cubin:
        elf = self._elf
        symbols = elf.symbols()
        code: dict[str, ElfSection] = {}
        for section in elf.sections:
            if section.name.startswith(".text."):
                name = section.name.removeprefix(".text.")
                code[name] = section
                kernel = self._kernels.setdefault(name, CubinKernel(name))
                kernel.barriers = section.flags >> _BARRIER_SHIFT & _BARRIER_MASK
        entries = {
            s.name for s in symbols if s.info & 15 == _STT_FUNC and s.other & _STO_CUDA_ENTRY
        }
        for kernel in self._kernels.values():
            kernel.is_entry = kernel.name in entries or not entries
        for section in elf.sections:
            if section.name == ".nv.info":
                self._file_records(section, symbols)
            elif section.name.startswith(".nv.info."):
                self._kernel_records(section, code)
            elif section.name.startswith(".nv.shared."):
                self._shared(section)
        for name in self._without_spill_records():
            kernel = self._kernels[name]
            kernel.spill_stores = kernel.spill_loads = None
            kernel.spill_store_bytes = kernel.spill_load_bytes = None
        arch, tool_version = self._identity()
        return Cubin(arch, tool_version, self._kernels)

    def _shared(self, section: ElfSection) -> None:
        name = section.name.removeprefix(".nv.shared.")
        if name not in self._kernels:  # ".nv.shared.reserved.0" belongs to none
            return
        reserved = _RESERVED_SHARED if self._sm_number() >= _FIRST_SM_WITH_RESERVED else 0
        self._kernels[name].shared_bytes = max(section.size - reserved, 0)

    def _file_records(self, section: ElfSection, symbols: list[ElfSymbol]) -> None:
        for attribute, payload in _records(self._elf.content(section)):
            if len(payload) != 8:
                continue
            symbol, value = _u32(payload, 0), _u32(payload, 4)
            if symbol >= len(symbols):
                raise CorruptElfError(f"a resource record names symbol {symbol} of {len(symbols)}")
            kernel = self._kernels.get(symbols[symbol].name)
            if kernel is None:
                continue  # a device function inlined into a kernel's section: $kernel$function
            if attribute == _REGISTER_COUNT:
                kernel.registers = value
            elif attribute == _MIN_STACK_SIZE:
                kernel.stack_bytes = value
            elif attribute == _FRAME_SIZE:
                kernel.frame_bytes = value

    def _kernel_records(self, section: ElfSection, code: dict[str, ElfSection]) -> None:
        name = section.name.removeprefix(".nv.info.")
        kernel = self._kernels.get(name)
        if kernel is None:
            return
        for attribute, payload in _records(self._elf.content(section)):
            if attribute == _ANNOTATED_INSTRUCTIONS:
                self._annotated.add(name)
                _count_spills(kernel, payload, self._elf.content(code[name]))
            elif attribute == _TOOLKIT and len(payload) >= 4:
                self._toolkit[name] = _u32(payload, 0)
            elif attribute == _BARRIER_COUNT and payload:
                kernel.barriers = payload[0]
            elif attribute in (_MAX_THREADS, _REQUIRED_THREADS) and len(payload) >= 12:
                kernel.max_threads = _u32(payload, 0) * _u32(payload, 4) * _u32(payload, 8)

    def _without_spill_records(self) -> list[str]:
        """Return the names of kernels whose spills are unknown. Such a kernel has a stack, but its
        ptxas was too old to record spills."""
        return [
            kernel.name
            for kernel in self._kernels.values()
            if kernel.stack_bytes + kernel.frame_bytes > 0
            and kernel.name not in self._annotated
            and self._toolkit.get(kernel.name, 0) < _FIRST_TOOLKIT_WITH_SPILLS
        ]

    def _sm_number(self) -> int:
        flags = self._elf.flags
        return flags >> 8 & 0xFF if self._elf.abi_version >= _ABI_VERSION_2 else flags & 0xFF

    def _identity(self) -> tuple[str, str]:
        number = self._sm_number()
        arch, version = f"sm_{number}", ""
        if self._elf.abi_version < _ABI_VERSION_2 and self._elf.flags & _ACCELERATED_ABI_1:
            arch += "a"
        for section in self._elf.sections:
            if section.name == ".note.nv.tkinfo":
                note = bytes(self._elf.content(section))
                found = _TOOL_VERSION.search(note)
                version = found.group(2).decode() if found else ""
                variant = _TOOL_ARCH.search(note)
                if variant is not None and variant.group(1).rstrip(b"af") == str(number).encode():
                    arch = f"sm_{variant.group(1).decode()}"
        return arch, version


def _records(content: memoryview) -> Iterator[tuple[int, memoryview]]:
    position = 0
    while position + 4 <= len(content):
        form, attribute = content[position], content[position + 1]
        if form == _FORMAT_SIZED:
            size = int.from_bytes(content[position + 2 : position + 4], "little")
            end = position + 4 + size
            if end > len(content):
                raise CorruptElfError(f"a resource record of {size} bytes passes its section's end")
            yield attribute, content[position + 4 : end]
            position = end
        elif form in _FORMATS_SHORT:
            yield attribute, content[position + 2 : position + 4]
            position += 4
        else:
            raise CorruptElfError(f"a resource record of unknown form {form}")


def _count_spills(kernel: CubinKernel, payload: memoryview, code: memoryview) -> None:
    """Add the spills that one annotation record lists to a kernel's figures. The record holds pairs
    of (type, code offset). The size of a spill is in bits 73 to 75 of the instruction's 128-bit
    encoding (Volta and later; found by comparing encodings with nvdisasm's output)."""
    for position in range(0, len(payload) // 8 * 8, 8):
        if _u32(payload, position) != _SPILL_ANNOTATION:
            continue
        offset = _u32(payload, position + 4)
        word = int.from_bytes(code[offset : offset + _INSTRUCTION_BYTES], "little")
        operation = word & _OPCODE_MASK
        size = _SIZE_BYTES.get(word >> _SIZE_SHIFT & _SIZE_MASK)
        if operation == _STL:
            kernel.spill_stores = _plus(kernel.spill_stores, 1)
            kernel.spill_store_bytes = _plus(kernel.spill_store_bytes, size)
        elif operation == _LDL:
            kernel.spill_loads = _plus(kernel.spill_loads, 1)
            kernel.spill_load_bytes = _plus(kernel.spill_load_bytes, size)
        else:  # counted all the same: the annotation is what says that it spills
            kernel.spill_stores = _plus(kernel.spill_stores, 1)
            kernel.spill_store_bytes = None


def _plus(total: int | None, size: int | None) -> int | None:
    return None if total is None or size is None else total + size


def _u32(content: memoryview, offset: int) -> int:
    return int.from_bytes(content[offset : offset + 4], "little")


# ELF64 sections and symbols of a hostile file: every offset is checked, all work is bounded.


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


class ElfSection(Struct, frozen=True):
    """One entry of the section header table, with the section's name."""

    name: str
    type: int
    flags: int
    offset: int
    size: int
    link: int
    info: int


class ElfSymbol(Struct, frozen=True):
    """One entry of the symbol table; ``other`` contains the flag by which CUDA marks kernels."""

    name: str
    info: int
    other: int
    section: int
    size: int


class Elf:
    """Header, sections and symbols of an ELF64 little-endian file. All names and section bytes that
    are returned may together be a few times as large as the file; beyond this, an error is raised.
    Therefore, a file whose tables all point at the same bytes does not cost much more than a valid
    file."""

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
