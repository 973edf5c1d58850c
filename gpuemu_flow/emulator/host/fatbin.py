"""PTX out of fat binaries, and several PTX files linked to one, as nvlink links machine code."""

from __future__ import annotations

import ctypes
import ctypes.util
import re
import struct
from collections import Counter
from collections.abc import Sequence

from gpuemu_flow.emulator.errors import UnsupportedError
from gpuemu_flow.model.errors import Problem

MAGIC = 0xBA55ED50
_PTX = 1
_ZSTD, _LZ4 = 0x8000, 0x2000
MAX_TEXT = 1 << 28
"""Most bytes of one PTX text: the sizes in a fat binary are the program's."""


def read_image(image: bytes, best: int) -> bytes:
    """Return the PTX of an image: PTX itself, or the PTX in a fat binary nearest to sm_`best`.
    Raises UnsupportedError if there is none, which names what there is."""
    if image[:4] != struct.pack("<I", MAGIC):
        if image[:4] == b"\x7fELF":
            raise _no_ptx("machine code without PTX cannot be run")
        return image.rstrip(b"\0")
    texts, machine = [], []
    header, size = struct.unpack_from("<HQ", image, 6)
    at, end = header, min(header + size, len(image))
    while at + 64 <= end:
        kind, _, head, size = struct.unpack_from("<HHIQ", image, at)
        packed, _, _, arch = struct.unpack_from("<IIII", image, at + 16)
        (flags,) = struct.unpack_from("<Q", image, at + 40)
        full = struct.unpack_from("<Q", image, at + 56)[0] if head >= 64 else 0
        body = image[at + head : at + head + size]
        if kind == _PTX:
            texts.append((arch, body, packed, full, flags))
        else:
            machine.append(f"sm_{arch}")
        at += head + size
    if not texts:
        has = f"for {', '.join(machine)} " if machine else ""
        raise _no_ptx(f"the program holds machine code {has}only, no PTX")
    fits = [t for t in texts if t[0] <= best]
    _, body, packed, full, flags = max(fits or texts, key=lambda t: t[0])
    if full > MAX_TEXT:
        raise _no_ptx(f"the program's PTX has {full:,} bytes")
    if flags & _ZSTD:
        body = _zstd(body[:packed], full)
    elif flags & _LZ4:
        body = _lz4(body[:packed], full)
    return body.rstrip(b"\0")


def _no_ptx(text: str) -> UnsupportedError:
    hint = "build it with PTX: nvcc -gencode arch=compute_80,code=compute_80"
    return UnsupportedError(Problem("exec-no-ptx", text, hint))


def _zstd(data: bytes, size: int) -> bytes:
    name = ctypes.util.find_library("zstd") or "libzstd.so.1"
    try:
        library = ctypes.CDLL(name)
    except OSError:
        hint = "install libzstd, or build the program with nvcc -no-compress"
        text = "the program's PTX is compressed, and libzstd is not installed"
        raise UnsupportedError(Problem("exec-no-zstd", text, hint)) from None
    unpack = library.ZSTD_decompress
    unpack.restype = ctypes.c_size_t
    unpack.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
    out = ctypes.create_string_buffer(size)
    if unpack(out, size, data, len(data)) != size:
        raise _no_ptx("the program's compressed PTX is damaged")
    return out.raw


def _lz4(data: bytes, size: int) -> bytes:
    out, at = bytearray(), 0

    def length(nibble: int) -> int:
        nonlocal at
        if nibble < 15:
            return nibble
        while True:
            nibble += data[at]
            at += 1
            if data[at - 1] != 255:
                return nibble

    try:
        while len(out) < size:
            token = data[at]
            at += 1
            count = length(token >> 4)
            out += data[at : at + count]
            at += count
            if len(out) >= size:
                break
            back = data[at] | data[at + 1] << 8
            at += 2
            for _ in range(length(token & 15) + 4):
                out.append(out[-back])
    except IndexError:
        raise _no_ptx("the program's compressed PTX is damaged") from None
    return bytes(out[:size])


_HEAD = re.compile(rb"^\s*\.(version|target|address_size)\b.*$", re.M)
_MODULE = re.compile(rb"^(?=[ \t]*\.version\b)", re.M)
_FILE = re.compile(rb"^(\s*\.file\s+)(\d+)", re.M)
_LOC = re.compile(rb"^(\s*\.loc\s+)(\d+)|(inlined_at\s+)(\d+)", re.M)
_EXTERN = re.compile(rb"^[ \t]*\.extern\s+\.(func|global|const|shared)\b([^;{]*);", re.M)
_NAME = re.compile(rb"([A-Za-z_$%][\w$%]*)\s*(?:\[[^\]]*\]\s*)*$")
_DEFINED = re.compile(
    rb"^[ \t]*(\.visible|\.weak|\.common)?\s*\.(entry|func|global|const|shared)\b([^;{=]*)([;{=])",
    re.M,
)
_FUNCTION = re.compile(rb"(?:\([^()]*\)\s*)?([A-Za-z_$%][\w$%]*)\s*(?:\(|$)")


def link(texts: Sequence[bytes]) -> bytes:
    """Link PTX files, as nvlink does for ``nvcc -rdc=true``: one name, one definition. A name that
    several files keep to themselves gets the file's number; declarations of what another file
    defines go, as do second definitions of ``.weak`` names."""
    if len(texts) == 1:
        return texts[0]
    public = {name for text in texts for name, shown in _definitions(text) if shown}
    count = Counter(name for text in texts for name in {name for name, _ in _definitions(text)})
    seen: set[bytes] = set()
    parts, head = [], b""
    for number, text in enumerate(texts):
        own = {name for name, shown in _definitions(text) if not shown and count[name] > 1}
        if not head:
            head = b"\n".join(m.group(0) for m in _HEAD.finditer(text)) + b"\n"
        body = _HEAD.sub(b"", text)
        body = _renumber_files(body, 1000 * number)
        body = _EXTERN.sub(lambda m: b"" if _name(m[1], m[2]) in public else m[0], body)
        body = _drop_repeated(body, seen)
        if own:
            body = _rename(body, own, b"$m%d" % number)
        parts.append(body)
    return head + b"\n".join(parts)


def link_modules(data: bytes) -> bytes:
    """Link the modules of a PTX file, if one of them declares a function that another defines."""
    texts = _MODULE.split(data)
    texts = [texts[0] + texts[1], *texts[2:]] if len(texts) > 1 else texts
    if len(texts) == 1:
        return data
    wanted = {_name(m[1], m[2]) for text in texts for m in _EXTERN.finditer(text)}
    defined = {name for text in texts for name, shown in _definitions(text) if shown}
    return link(texts) if wanted & defined else data


def _renumber_files(text: bytes, shift: int) -> bytes:
    text = _FILE.sub(lambda m: m[1] + b"%d" % (int(m[2]) + shift), text)
    return _LOC.sub(lambda m: (m[1] or m[3]) + b"%d" % (int(m[2] or m[4]) + shift), text)


def _rename(text: bytes, names: set[bytes], suffix: bytes) -> bytes:
    longest_first = sorted((re.escape(name) for name in names), key=lambda n: -len(n))
    pattern = re.compile(rb"(?<![\w$%.])(?:" + b"|".join(longest_first) + rb")(?![\w$])")
    return pattern.sub(lambda m: m[0] + suffix, text)


def _name(kind: bytes, declared: bytes) -> bytes:
    if kind in (b"func", b"entry"):
        found = _FUNCTION.search(declared.strip())
        return found[1] if found else b""
    found = _NAME.search(declared.strip())
    return found[1] if found else b""


def _depth_zero(text: bytes) -> list[re.Match[bytes]]:
    """Find the declarations that stand outside of functions."""
    found, depth, at = [], 0, 0
    for match in _DEFINED.finditer(text):
        depth += text.count(b"{", at, match.start()) - text.count(b"}", at, match.start())
        at = match.start()
        if depth == 0:
            found.append(match)
    return found


def _definitions(text: bytes) -> list[tuple[bytes, bool]]:
    return [
        (_name(m[2], m[3]), bool(m[1]) or m[2] == b"entry")
        for m in _depth_zero(text)
        if not (m[2] in (b"func", b"entry") and m[4] == b";") and b".extern" not in m[0]
    ]


def _drop_repeated(text: bytes, seen: set[bytes]) -> bytes:
    out, at = [], 0
    for match in _depth_zero(text):
        kind, name = match[2], _name(match[2], match[3])
        if kind in (b"func", b"entry") and match[4] == b";":
            continue
        if match[1] and name in seen and match.start() >= at:
            end = _end_of(text, match)
            out.append(text[at : match.start()])
            at = end
        elif match[1]:
            seen.add(name)
    return b"".join(out) + text[at:]


def _end_of(text: bytes, match: re.Match[bytes]) -> int:
    if match[4] == b";":
        return match.end()
    if match[4] == b"=":
        return text.index(b";", match.end()) + 1
    depth, at = 1, match.end()
    for brace in re.compile(rb"[{}]").finditer(text, at):
        depth += 1 if brace[0] == b"{" else -1
        if not depth:
            return brace.end()
    return len(text)
