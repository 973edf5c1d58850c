"""Action keys: the digests under which results are stored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import msgspec
from msgspec import Struct, field, structs, to_builtins

from gpuemu_flow.model.types import Json

TRIGGERS = ("code", "params", "input", "env")
OBSERVED = "observed"
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)
_SORTED = msgspec.json.Encoder(order="sorted")
_MAX_DEPTH = 6  # of a part whose differences are named one by one
_OF_CODE = ("file", "link", "missing", "folder")


class BuildReason(Struct, frozen=True):
    """One reason why a task would run."""

    part: str
    name: str = ""
    old: Json = None
    new: Json = None

    @property
    def what(self) -> str:
        """Return the name of the changed part, such as ``code.scripts/softmax.py``."""
        return f"{self.part}.{self.name}" if self.name else self.part

    @property
    def trigger(self) -> str:
        """Return the member of `TRIGGERS` to which the part belongs, else the part itself. Observed
        files belong to ``code``; observed variables and packages belong to ``env``."""
        if self.part != OBSERVED:
            return self.part
        return "code" if self.name.partition(" ")[0] in _OF_CODE else "env"

    def to_json(self) -> dict[str, Json]:
        return {"what": self.what, "old": self.old, "new": self.new}


def canonical(value: Json) -> bytes:
    """Encode a JSON value in a unique way: sorted keys, no blanks, ASCII. Raises ValueError: The
    value contains a NaN or an infinity."""
    return _CANONICAL.encode(value).encode()


def encoded(value: object) -> bytes:
    """Encode a record, or a result without NaN and infinities: equal ones give equal bytes. This
    takes a tenth of the time of `canonical`, which names in bytes that are no text still need."""
    try:
        return _SORTED.encode(value)
    except (TypeError, UnicodeEncodeError):
        return canonical(structs.asdict(value) if isinstance(value, Struct) else value)


def digest_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def digest_json(value: Json) -> str:
    return digest_bytes(canonical(value))


def digest_record(value: object) -> str:
    """Return the digest of a value that `encoded` takes."""
    return digest_bytes(encoded(value))


class KeyParts(Struct, frozen=True):
    """Everything that decides whether a task must run, grouped by kind."""

    stage: str
    code: Mapping[str, str] = field(default_factory=dict)
    params: Json = None
    input: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    observed: Mapping[str, str] = field(default_factory=dict)

    def key(self) -> str:
        return digest_json(to_builtins(self))


def changed_parts(old: Mapping[str, Json], new: Mapping[str, Json]) -> list[BuildReason]:
    found: list[BuildReason] = []
    for part in ("stage", *TRIGGERS, OBSERVED):
        _differences(part, (), old.get(part), new.get(part), found)
    return found


def _differences(
    part: str, names: tuple[str, ...], old: Json, new: Json, found: list[BuildReason]
) -> None:
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict) and len(names) < _MAX_DEPTH:
        for key in sorted({*old, *new}):
            _differences(part, (*names, key), old.get(key), new.get(key), found)
    else:
        found.append(BuildReason(part, ".".join(names), old, new))
