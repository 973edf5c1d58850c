"""Run commands of gpuemu-flow on imported problems, in a process of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def command(folder: Path, *words: str, code: int = 0) -> str:
    """Run gpuemu-flow in a folder; return what it prints, and check its exit code."""
    done = subprocess.run(
        [sys.executable, "-m", "gpuemu_flow", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=3000,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout
