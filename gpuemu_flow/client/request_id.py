"""Ids of long requests, by which clients query a request's progress or cancel it."""

from __future__ import annotations

import secrets
from contextvars import ContextVar

REQUEST_ID: ContextVar[str] = ContextVar("gpuemu_request_id", default="")
"""Identifier for the next long request, set by callers that may want to cancel it."""


def new_id() -> str:
    """Return a new id for a request; by this id, a client can query its progress or cancel it."""
    return REQUEST_ID.get() or secrets.token_hex(16)
