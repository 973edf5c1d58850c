"""Fixtures that every folder of tests shares."""

from __future__ import annotations

from pathlib import Path

import pytest
from mini_workspace import Mini, make_mini


@pytest.fixture
def mini(tmp_path: Path) -> Mini:
    """A small real workspace, driven through the real command."""
    return make_mini(tmp_path / "workspace")
