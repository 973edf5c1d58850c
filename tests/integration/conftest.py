"""Fixtures of the daemon's and the runners' tests; they live beside the workspaces they serve."""

from __future__ import annotations

from daemon_workspace import at_home, daemon, unserved
from runner_workspace import pool, ws

__all__ = ["at_home", "daemon", "pool", "unserved", "ws"]
