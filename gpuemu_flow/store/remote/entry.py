"""Entries of a shared cache: their content, encoding and signature."""

from __future__ import annotations

import hashlib
import hmac
import json
import zlib
from typing import Annotated

import msgspec

from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.types import Json
from gpuemu_flow.store.keys import digest_json
from gpuemu_flow.store.remote.transport import MOST_ENTRY_BYTES

VERSION = 2
MOST_BLOBS = 1_000_000
LEAST_KEY_BYTES = 16
_MAGIC = b"gpuemu-flow entry 2\n"
_UNSIGNED = b"-" * 64
_Digest = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
_Size = Annotated[int, msgspec.Meta(ge=0)]


class EntryError(Exception):
    """Raised for bytes that are not an entry, and for an entry that is not trusted."""

    def __init__(self, reason: str, *, forged: bool = False) -> None:
        super().__init__(reason)
        self.forged = forged  # it has no signature, or one by another key


class Entry(msgspec.Struct, frozen=True):
    """Records of the action cache by their keys, and the sizes of the blobs that they name."""

    records: dict[_Digest, Json]
    blobs: Annotated[dict[_Digest, _Size], msgspec.Meta(max_length=MOST_BLOBS)] = {}


def name_of(kind: str, keys: Json) -> str:
    """Return the name of the entry with the results for some keys of the action cache."""
    return digest_json(["gpuemu-flow", VERSION, kind, keys])


def encode(name: str, entry: Entry, secret: bytes | None) -> bytes:
    """Convert an entry to bytes; the signature covers its name, so that it has no other."""
    content = {"records": entry.records, "blobs": entry.blobs}
    payload = zlib.compress(json.dumps(content, separators=(",", ":")).encode(), 6)
    signature = _UNSIGNED if secret is None else _sign(name, payload, secret)
    return _MAGIC + signature + b"\n" + payload


def decode(name: str, data: bytes, secret: bytes | None) -> Entry:
    """Convert untrusted bytes to an entry; raise EntryError if they are none."""
    head, signature = data[: len(_MAGIC)], data[len(_MAGIC) : len(_MAGIC) + 64]
    payload = data[len(_MAGIC) + 65 :]
    if head != _MAGIC or len(signature) != 64:
        raise EntryError("it is not an entry of gpuemu-flow")
    if secret is not None and not hmac.compare_digest(signature, _sign(name, payload, secret)):
        signed = "another key's" if signature != _UNSIGNED else "no"
        raise EntryError(f"it has {signed} signature", forged=True)
    try:
        # The standard library's JSON at both ends, as in the own cache: it has NaN and Inf.
        return convert(json.loads(_inflate(payload)), Entry)
    except (zlib.error, ValueError, RecursionError) as error:
        raise EntryError("its content is not that of an entry") from error


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
