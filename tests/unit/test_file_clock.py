"""The clock that dates changes of files."""

from __future__ import annotations

import gc
import os
import shutil
from pathlib import Path

import pytest

from gpuemu_flow.build.files import FileClock
from gpuemu_flow.model.errors import StoreError


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    return tmp_path / "cache/staging"


def changed(path: Path) -> int:
    path.write_text(f"{path}{os.urandom(4).hex()}")
    return path.stat().st_ctime_ns


def test_it_orders_changes_before_and_after(staging: Path, tmp_path: Path) -> None:
    clock = FileClock(staging)
    for n in range(200):
        before = changed(tmp_path / f"{n % 7}")
        now = clock.now()
        after = changed(tmp_path / f"{n % 5}")
        assert before <= now <= after <= clock.now()


def test_it_leaves_no_file(staging: Path) -> None:
    clock = FileClock(staging)
    clock.now()
    assert not list(staging.iterdir())


def test_its_folder_may_be_emptied_meanwhile(staging: Path) -> None:
    clock = FileClock(staging)
    first = clock.now()
    shutil.rmtree(staging)
    assert clock.now() >= first


def test_its_folder_is_no_link(staging: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    staging.parent.mkdir()
    staging.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="cache"):
        FileClock(staging).now()
    assert not list((tmp_path / "elsewhere").iterdir())


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_its_file_is_closed_with_it(staging: Path) -> None:
    gc.collect()  # what other tests left open
    before = descriptors()
    clock = FileClock(staging)
    clock.now()
    assert descriptors() == before + 1
    del clock
    gc.collect()
    assert descriptors() == before
