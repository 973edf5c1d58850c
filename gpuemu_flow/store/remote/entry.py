"""Entries of a shared cache: their content, encoding and signature.

An entry is an ``ActionResult`` of Bazel's remote execution API. Servers that parse entries, such as
bazel-remote, thus know which blobs an entry needs. The field for standard output contains our
records. This module implements only the two kinds of Protocol Buffers fields that are needed.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import field

from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.store.keys import digest_json
from gpuemu_flow.store.remote.transport import MOST_ENTRY_BYTES, is_key
from gpuemu_flow.types import Json

VERSION = 1
MOST_BLOBS = 1_000_000
LEAST_KEY_BYTES = 16
_MAGIC = b"gpuemu-flow entry 1\n"
_UNSIGNED = b"-" * 64
_OUTPUT_FILES, _STDOUT_RAW, _PATH, _DIGEST, _HASH, _SIZE = 2, 5, 1, 2, 1, 2
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class EntryError(Exception):
    """Raised for bytes that are not an entry, and for an entry that is not trusted.

    Attributes
    ----------
    forged : bool
        True if the entry has no signature, or a signature by another key.
    """

    def __init__(self, reason: str, *, forged: bool = False) -> None:
        super().__init__(reason)
        self.forged = forged


@dataclass(frozen=True)
class Entry:
    """The content of one entry of a shared cache.

    Attributes
    ----------
    records : mapping of str to JSON
        Records of the action cache, by their keys.
    blobs : mapping of str to int
        Size in bytes of each blob that the records name, by sha256.
    """

    records: Mapping[str, Json]
    blobs: Mapping[str, int] = field(default_factory=dict)


def name_of(kind: str, keys: Json) -> str:
    """Return the name of the entry with the results for some keys of the action cache."""
    return digest_json(["gpuemu-flow", VERSION, kind, keys])


def encode(name: str, entry: Entry, secret: bytes | None) -> bytes:
    """Convert an entry to bytes.

    Parameters
    ----------
    name : str
        Name of the entry. The signature covers it, so that an entry is invalid under another name.
    secret : bytes or None
        Signing key; None for no signature.
    """
    content = {"records": dict(entry.records), "blobs": dict(entry.blobs)}
    payload = zlib.compress(json.dumps(content, separators=(",", ":")).encode(), 6)
    signature = _UNSIGNED if secret is None else _sign(name, payload, secret)
    parts = [
        _field(_OUTPUT_FILES, _field(_PATH, f"blobs/{digest}".encode()) + _blob(digest, size))
        for digest, size in sorted(entry.blobs.items())
    ]
    return b"".join(parts) + _field(_STDOUT_RAW, _MAGIC + signature + b"\n" + payload)


def decode(name: str, data: bytes, secret: bytes | None) -> Entry:
    """Convert untrusted bytes to an entry.

    Raises
    ------
    EntryError
    """
    raw = b""
    for number, value in _fields(data):
        if number == _STDOUT_RAW and isinstance(value, bytes):
            raw = value
    head, signature = raw[: len(_MAGIC)], raw[len(_MAGIC) : len(_MAGIC) + 64]
    payload = raw[len(_MAGIC) + 65 :]
    if head != _MAGIC or len(signature) != 64:
        raise EntryError("it is not an entry of gpuemu-flow")
    if secret is not None and not hmac.compare_digest(signature, _sign(name, payload, secret)):
        signed = "another key's" if signature != _UNSIGNED else "no"
        raise EntryError(f"it has {signed} signature", forged=True)
    try:
        content = json.loads(_inflate(payload))
        records, blobs = content["records"], content["blobs"]
    except (zlib.error, ValueError, KeyError, TypeError, RecursionError) as error:
        raise EntryError("its content cannot be read") from error
    sound = (
        isinstance(records, dict)
        and isinstance(blobs, dict)
        and len(blobs) <= MOST_BLOBS
        and all(is_key(key) for key in records)
        and all(is_key(key) and type(size) is int and size >= 0 for key, size in blobs.items())
    )
    if not sound:
        raise EntryError("its content is not that of an entry")
    return Entry(records, blobs)


def _sign(name: str, payload: bytes, secret: bytes) -> bytes:
    message = b"gpuemu-flow/ac\0" + name.encode() + b"\0" + payload
    return hmac.new(secret, message, hashlib.sha256).hexdigest().encode()


def _inflate(payload: bytes) -> bytes:
    """Decompress a payload; raise ValueError if it is larger than an entry may be."""
    inflater = zlib.decompressobj()
    content = inflater.decompress(payload, MOST_ENTRY_BYTES)
    if not inflater.eof or inflater.unused_data:
        raise ValueError("too large, or more than one content")
    return content


def _blob(digest: str, size: int) -> bytes:
    content = _field(_HASH, digest.encode())
    if size:
        content += _varint(_SIZE << 3 | _VARINT) + _varint(size)
    return _field(_DIGEST, content)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yield the number and content of each field of a message; raise EntryError if invalid."""
    place = 0
    while place < len(data):
        tag, place = _read_varint(data, place)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, place = _read_varint(data, place)
            yield number, value
            continue
        if kind == _BYTES:
            length, place = _read_varint(data, place)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise EntryError("it is not an entry of gpuemu-flow")
        if length > len(data) - place:
            raise EntryError("it is cut off")
        yield number, data[place : place + length]
        place += length


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(data):
            raise EntryError("it is cut off")
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise EntryError("it is not an entry of gpuemu-flow")
