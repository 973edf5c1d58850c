"""Names of long requests, by which they are followed and cancelled."""

from __future__ import annotations

import secrets
from contextvars import ContextVar

REQUEST_ID: ContextVar[str] = ContextVar("gpuemu_request_id", default="")
"""Identifier for the next long request, set by callers that may want to cancel it."""


def new_id() -> str:
    """Return a name for a request, by which it can be followed and cancelled."""
    return REQUEST_ID.get() or secrets.token_hex(16)
