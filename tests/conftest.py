"""Fixtures that every folder of tests shares."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from mini_workspace import Mini, make_mini


@pytest.fixture
def mini(tmp_path: Path) -> Mini:
    """A small real workspace, driven through the real command."""
    return make_mini(tmp_path / "workspace")


def pytest_configure() -> None:
    """Undo what a shell does to ``pytest &``: programs under test would not hear Ctrl-C."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
