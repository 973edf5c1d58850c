"""Sign reports, and check signatures: in an HTML file, or in a separate file for other formats.

Source: RFC 8032, "Edwards-Curve Digital Signature Algorithm (EdDSA)". The ed25519 signature is over
the 32 bytes of the report's SHA-256, so that ``openssl pkeyutl -verify -rawin`` can check it, too.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import functools
import hashlib
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from gpuemu_flow.model.errors import Problem, RunnerError, UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

MARKER = b"<!-- gpuemu-signature -->\n"
SUFFIX = ".sig"
MAX_FILE_BYTES = 64 << 20
MAX_KEY_BYTES = 1 << 16
_TITLE = "gpuemu-flow signed report"
_BLOCK = re.compile(
    rf"{_TITLE}\nsha256: ([0-9a-f]{{64}})\ned25519: ([A-Za-z0-9+/]{{86}}==)\n"
    r"key: ([0-9a-f]{64})\n"
)
_COMMENT = re.compile(rb"<!--\n([\x20-\x7e\n]{1,1000})-->\n")


class SignatureError(RunnerError):
    """Raised for a signature that is missing or wrong."""

    exit_code = 1


class ValidSignature(Struct, frozen=True):
    """A valid signature: the digests of the signed content and of the public key."""

    sha256: str
    key: str


def make_key(path: Path) -> Path:
    """Write a new private key that only its owner can read, and its public key in a ``.pub`` file.
    Raises UsageError: ``sign-key-exists``, ``sign-key-not-writable``. Raises RunnerError: ``sign-
    extra-missing``."""
    ed25519, serialization = _library()
    key = ed25519.Ed25519PrivateKey.generate()
    public = path.with_name(path.name + ".pub")
    for file in (path, public):
        if file.exists() or file.is_symlink():
            hint = "name another file with -o"
            raise UsageError(Problem("sign-key-exists", "the file exists already", hint, str(file)))
    private_pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public_pem = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    try:
        _create(path, private_pem, 0o600)
        _create(public, public_pem, 0o644)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(Problem("sign-key-not-writable", reason, "", str(path))) from None
    return public


def _create(path: Path, data: bytes, mode: int) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(data)


def load_private(path: Path) -> tuple[Ed25519PrivateKey, list[Problem]]:
    """Read a private key; return it with a warning if other users can read the file. Raises
    UsageError: ``sign-bad-key``. Raises RunnerError: ``sign-extra-missing``."""
    ed25519, serialization = _library()
    load = functools.partial(serialization.load_pem_private_key, password=None)
    wanted = ed25519.Ed25519PrivateKey
    key = _read_pem(path, load, wanted, "is no unencrypted ed25519 private key in PEM")
    problems = []
    with contextlib.suppress(OSError):
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            message, hint = "can be read by others", f"chmod 600 {path}"
            problems.append(Problem("sign-key-open", message, hint, str(path), warning=True))
    return key, problems


def load_public(path: Path) -> Ed25519PublicKey:
    """Read a public key, from a public or a private key's file. Raises UsageError:
    ``sign-bad-key``. Raises RunnerError: ``sign-extra-missing``."""
    ed25519, serialization = _library()
    load, wanted = serialization.load_pem_public_key, ed25519.Ed25519PublicKey
    return cast(
        "Ed25519PublicKey", _read_pem(path, load, wanted, "is no ed25519 public key in PEM")
    )


def _read_pem(path: Path, load: Callable[[bytes], Any], wanted: type, reason: str) -> Any:
    """Read a key of the type `wanted`; if that fails, raise UsageError ``sign-bad-key``."""
    data = _read(path, MAX_KEY_BYTES, _bad_key, "is too large for a key")
    try:
        key = load(data)
    except (ValueError, TypeError, _unsupported()):
        key = None
    if not isinstance(key, wanted):
        raise UsageError(_bad_key(path, reason))
    return key


def _bad_key(path: Path, reason: str) -> Problem:
    hint = "`gpuemu-flow report keygen` makes a pair"
    return Problem("sign-bad-key", reason, hint, str(path))


def fingerprint(key: Ed25519PublicKey) -> str:
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()


def sign_html(text: str, key: Ed25519PrivateKey) -> str:
    signed = text.encode("utf-8") + MARKER
    return signed.decode() + f"<!--\n{sign_detached(signed, key)}-->\n"


def sign_detached(data: bytes, key: Ed25519PrivateKey) -> str:
    digest = hashlib.sha256(data)
    signature = base64.b64encode(key.sign(digest.digest())).decode()
    mark = fingerprint(key.public_key())
    return f"{_TITLE}\nsha256: {digest.hexdigest()}\ned25519: {signature}\nkey: {mark}\n"


def verify(path: Path, key: Ed25519PublicKey) -> ValidSignature:
    """Check a file against its signature, which is in the file or in ``FILE.sig``. Raises
    UsageError: ``report-not-readable``. Raises SignatureError: ``sign-not-signed``, ``sign-
    does-not-hold``."""
    data = _read_report(path)
    start = data.rfind(MARKER)
    beside = path.with_name(path.name + SUFFIX)
    if start >= 0 and path.suffix.lower() in (".html", ".htm"):
        comment = _COMMENT.fullmatch(data, start + len(MARKER))
        block, signed = comment[1] if comment else b"", data[: start + len(MARKER)]
    elif beside.is_file():
        block, signed = _read_report(beside), data
    else:
        message = f"holds no signature, and there is no {beside.name} beside it"
        raise SignatureError(Problem("sign-not-signed", message, "", str(path)))
    return _check(path, block, signed, key)


def _check(path: Path, block: bytes, signed: bytes, key: Ed25519PublicKey) -> ValidSignature:
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - an extra

    def refuse(reason: str) -> SignatureError:
        return SignatureError(Problem("sign-does-not-hold", reason, "", str(path)))

    found = _BLOCK.fullmatch(block.decode("ascii", "replace"))
    if found is None:
        raise refuse("its signature is damaged, or something was added after it")
    digest = hashlib.sha256(signed)
    if found[1] != digest.hexdigest():
        raise refuse("it was changed after it was signed")
    if found[3] != fingerprint(key):
        raise refuse(f"it was signed with another key, {found[3]}")
    try:
        key.verify(base64.b64decode(found[2], validate=True), digest.digest())
    except (InvalidSignature, binascii.Error):
        raise refuse("the signature is not the key's") from None
    return ValidSignature(found[1], found[3])


def _unreadable(path: Path, reason: str) -> Problem:
    return Problem("report-not-readable", reason, "", str(path))


def _read_report(path: Path) -> bytes:
    return _read(path, MAX_FILE_BYTES, _unreadable, f"is larger than {MAX_FILE_BYTES >> 20} MiB")


def _read(path: Path, limit: int, problem: Callable[[Path, str], Problem], too_large: str) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise UsageError(problem(path, error.strerror or str(error))) from None
    if len(data) > limit:
        raise UsageError(problem(path, too_large))
    return data


def _library() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415
    except ImportError:
        message = "signing needs the package cryptography"
        hint = "pip install 'gpuemu-flow[sign]'"
        raise RunnerError(Problem("sign-extra-missing", message, hint)) from None
    return ed25519, serialization


def _unsupported() -> type[Exception]:
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415

    return UnsupportedAlgorithm
