"""Fixtures of the daemon's, the runners' and the plugin's tests, from beside what they serve."""

from __future__ import annotations

from daemon_workspace import at_home, daemon, unserved
from pytest_workspace import tested
from runner_workspace import pool, ws

__all__ = ["at_home", "daemon", "pool", "tested", "unserved", "ws"]
