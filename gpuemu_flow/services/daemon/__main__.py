"""Run a daemon in the foreground; clients and ``daemon start --background`` exec this."""

from __future__ import annotations

from gpuemu_flow.services.daemon.lifecycle import main

if __name__ == "__main__":
    main()
