"""The state of a workspace's daemon, as ``daemon status`` and ``status`` show it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone

from msgspec import Struct

from gpuemu_flow.model.types import Json

_NOT_SHOWN = ("type", "workspace", "config")
"""Keys of a ping's answer that status commands leave out."""


class DaemonState(Struct, frozen=True):
    """The state of a daemon, as seen from another process."""

    pid: int | None = None
    socket: str = ""
    log: str = ""
    started: float = 0.0
    pong: Mapping[str, Json] | None = None
    full: bool = False

    @property
    def running(self) -> bool:
        """Tell whether the daemon runs, which means that a process holds its lock."""
        return self.pid is not None

    @property
    def answers(self) -> bool:
        """Tell whether the daemon answered."""
        return self.pong is not None

    @property
    def config_error(self) -> str:
        """Return the error of a configuration that the daemon could not load; empty if none."""
        return str((self.pong or {}).get("config_error", ""))

    def line(self, version: str) -> str:
        """Describe the daemon in one line that an editor extension reads."""
        if not self.running:
            # The extension searches this line for "running", so do not use that word here.
            start = "start one with `gpuemu-flow daemon start --background`"
            return f"gpuemu-flow{f' v{version}' * bool(version)} daemon stopped; {start}"
        if self.full:
            return (
                f"daemon (process {self.pid}) lives, but takes no more clients: "
                "end some, or raise [daemon] max_connections"
            )
        if self.pong is None:
            return f"daemon (process {self.pid}) does not answer; see its log: {self.log}"
        since = datetime.fromtimestamp(self.started, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
        version, uptime, requests = (
            self.pong[name] for name in ("version", "uptime_secs", "requests")
        )
        return (
            f"gpuemu-flow v{version} daemon running, uptime {uptime}s, since {since} UTC, "
            f"process {self.pid}, {requests} requests, socket {self.socket}"
        )

    def to_json(self) -> dict[str, Json]:
        """Return the JSON that ``daemon status`` and ``status`` print."""
        out: dict[str, Json] = {"running": self.running, "answers": self.answers}
        if self.full:
            out["full"] = True
        if self.running:
            out |= {"pid": self.pid, "socket": self.socket, "log": self.log}
            out["started"] = self.started
        told = (self.pong or {}).items()
        return out | {name: value for name, value in told if name not in _NOT_SHOWN}
