"""A small file system of its own, where the user may mount one."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of four megabytes; only root may mount one."""
    folder = Path(tempfile.mkdtemp(prefix="gf-"))
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        folder.rmdir()
        pytest.skip("mounting a small tmpfs needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
    folder.rmdir()
