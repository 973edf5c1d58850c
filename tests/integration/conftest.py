"""Fixtures of the daemon's and the runners' tests; they live beside the workspaces they serve."""

from __future__ import annotations

from daemon_workspace import daemon, unserved
from runner_workspace import pool, ws

__all__ = ["daemon", "pool", "unserved", "ws"]
