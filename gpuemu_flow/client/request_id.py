"""Ids of long requests, which clients use to query a request's progress or to cancel it."""

from __future__ import annotations

import secrets
from contextvars import ContextVar

REQUEST_ID: ContextVar[str] = ContextVar("gpuemu_request_id", default="")
"""Identifier for the next long request, set by callers that may want to cancel it."""


def new_id() -> str:
    """Return a new id for a request, to query its progress or to cancel it."""
    return REQUEST_ID.get() or secrets.token_hex(16)
