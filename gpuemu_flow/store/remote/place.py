"""Determine the shared cache of a run and its access rights, from configuration and environment.

A workspace's configuration can come from a pull request. Therefore, a cache that only the
configuration names is read, but does not get the user's secret header. Results are stored in it
only if it is on this machine. A cache that the environment names has no such restrictions.
"""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

import msgspec

from gpuemu_flow.model.errors import Problem, UsageError
from gpuemu_flow.store.remote.entry import LEAST_KEY_BYTES
from gpuemu_flow.store.remote.transport import Transport

REMOTE = "GPUEMU_CACHE_REMOTE"
MODE = "GPUEMU_CACHE_MODE"
HEADER = "GPUEMU_CACHE_HEADER"
KEY = "GPUEMU_CACHE_KEY"
TIMEOUT = "GPUEMU_CACHE_TIMEOUT"
PATIENCE_SECONDS = 10.0
"""Seconds that a request may take, besides those that its bytes need."""
LONGEST_PATIENCE = 3600.0
NONE = "none"
READ, WRITE = "read", "write"
HTTP = ("http", "https")
THROUGH_FSSPEC = ("s3", "gs", "az")


class CacheAccess(msgspec.Struct, frozen=True):
    """A shared cache, and the access rights of this run."""

    url: str
    mode: str
    header: tuple[str, str] | tuple[()] = ()
    secret: bytes | None = None  # the signing key; None for unsigned entries
    problems: tuple[Problem, ...] = ()  # rights that were configured, but not granted
    patience: float = PATIENCE_SECONDS

    def transport(self, cancel: threading.Event | None = None) -> Transport:
        """Make the transport for the cache, without sending a request.

        Raises UsageError: ``cache-remote-package`` if a package is missing.
        """
        return Transport(self.url, self.header, patience=self.patience, cancel=cancel)


def place_of(remote: str, mode: str, environ: Mapping[str, str]) -> CacheAccess | None:
    """Return the shared cache of a run; None if there is none.

    `remote` and `mode` are the configuration's settings; `remote` may be empty.

    Raises UsageError: ``cache-remote-value`` for invalid values of environment variables.
    """
    named = environ.get(REMOTE, "")
    url = named or remote
    if not url or url == NONE:
        return None
    parts = _split(url)
    mode = environ.get(MODE, "") or mode
    if mode not in (READ, WRITE):
        raise _wrong(MODE, f"it is neither {READ} nor {WRITE}")
    header = _header(environ.get(HEADER, ""))
    problems = []
    granted = urlsplit(named) == parts if named else False
    if header and not granted:
        problems.append(_ungranted(url, f"{HEADER} is not sent"))
        header = ()
    if mode == WRITE and not granted and not _is_near(parts):
        problems.append(_ungranted(url, "nothing is stored"))
        mode = READ
    secret = _secret(environ.get(KEY, ""))
    return CacheAccess(
        url, mode, header, secret, tuple(problems), _patience(environ.get(TIMEOUT, ""))
    )


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise _wrong(REMOTE, str(error)) from error
    known = parts.scheme in ("file", *HTTP, *THROUGH_FSSPEC)
    if not known or not url.isprintable() or " " in url or (port == 0):
        raise _wrong(REMOTE, "it is no URL of a cache: file, https, http, s3, gs or az")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise _wrong(REMOTE, f"it has a user or a query; what grants access belongs to {HEADER}")
    if parts.scheme == "file" and (parts.netloc or not parts.path.startswith("/")):
        raise _wrong(REMOTE, "a file's URL has three slashes and an absolute path")
    if parts.scheme != "file" and not parts.hostname:
        raise _wrong(REMOTE, "it names no host")
    return parts


def _is_near(parts: SplitResult) -> bool:
    """Tell whether a cache is on this machine: a folder, or a server at a local address."""
    if parts.scheme == "file" or parts.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False


def _header(text: str) -> tuple[str, str] | tuple[()]:
    if not text:
        return ()
    name, colon, value = text.partition(":")
    sound = name.replace("-", "").isalnum() and name.isascii()
    if not colon or not sound or not value.strip() or not value.isprintable():
        raise _wrong(HEADER, "it is not NAME: VALUE")
    if not value.isascii():
        raise _wrong(HEADER, "it holds letters beyond ASCII")
    return name, value.strip()


def _secret(text: str) -> bytes | None:
    if not text:
        return None
    if len(text.encode()) < LEAST_KEY_BYTES:
        raise _wrong(KEY, f"it has less than {LEAST_KEY_BYTES} bytes")
    return text.encode()


def _patience(text: str) -> float:
    if not text:
        return PATIENCE_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds <= LONGEST_PATIENCE:
        raise _wrong(TIMEOUT, f"it is no number of seconds up to {LONGEST_PATIENCE:g}")
    return seconds


def _wrong(variable: str, reason: str) -> UsageError:
    # The value may be a secret, and is not shown.
    return UsageError(Problem("cache-remote-value", f"{variable} cannot be used: {reason}"))


def _ungranted(url: str, effect: str) -> Problem:
    return Problem(
        "cache-remote-ungranted",
        f"only the file of the workspace names {url}: {effect}",
        f"set {REMOTE} to its URL to allow that",
        warning=True,
    )
