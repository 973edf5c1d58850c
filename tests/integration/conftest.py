"""Fixtures of the daemon's tests; they live beside the workspace that they serve."""

from __future__ import annotations

from daemon_workspace import daemon, unserved

__all__ = ["daemon", "unserved"]
