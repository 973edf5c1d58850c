"""Fixtures of the daemon's faults, from beside the daemon's own tests."""

from __future__ import annotations

from daemon_workspace import at_home, daemon, unserved

__all__ = ["at_home", "daemon", "unserved"]
