"""Test that what is known of installed files is forgotten when anything that decides it changes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuemu_flow.build.discovery import Discovery
from gpuemu_flow.build.files import FileTable
from gpuemu_flow.model.types import ConfiguredEnv, Observation
from gpuemu_flow.store.keys import Discovered


def tick(probe: Path) -> None:
    """Wait until the file system gives later stamps than before: some milliseconds."""
    os.utime(probe)
    before = probe.stat().st_ctime_ns
    while probe.stat().st_ctime_ns == before:
        os.utime(probe)


def found(look: Discovery, site: Path) -> Discovered:
    names = Observation(files=frozenset({f"{site}/foo/__init__.py", f"{site}/foo/other.py"}))
    return look.discover(names, ConfiguredEnv({}, ()))


INSTALLED: dict[str, Callable[[Path], object]] = {
    "another owner": lambda s: (s / "foo-1.0.dist-info").rename(s / "bar-1.0.dist-info"),
    "no longer listed": lambda s: (s / "foo-1.0.dist-info/RECORD").write_text("foo/x.py,,\n"),
    "a link": lambda s: [(s / "foo").rename(s / "real"), (s / "foo").symlink_to("real")],
    "one more is listed": lambda s: (s / "foo-1.0.dist-info/RECORD").write_text(
        "foo/__init__.py,,\nfoo/other.py,,\n"
    ),
}


@pytest.mark.parametrize("what", INSTALLED)
def test_a_long_lived_discovery_finds_what_a_new_one_finds(what: str, tmp_path: Path) -> None:
    site = tmp_path / "site"
    (site / "foo").mkdir(parents=True)
    (site / "foo/__init__.py").touch()
    (site / "foo/other.py").touch()
    (site / "foo-1.0.dist-info").mkdir()
    (site / "foo-1.0.dist-info/RECORD").write_text("foo/__init__.py,,\n")
    look = Discovery(FileTable(tmp_path), {})
    before = found(look, site)
    assert before.packages == {"site|foo"}
    assert found(look, site) == before
    tick(site / "foo/other.py")
    INSTALLED[what](site)
    after = found(look, site)
    assert after != before
    assert after == found(Discovery(FileTable(tmp_path), {}), site)


OTHERS: dict[str, Callable[[Path], object]] = {
    "another one lists it": lambda s: (s / "bar-1.0.dist-info/RECORD").write_text(
        "bar/x.py,,\nfoo/__init__.py,,\n"
    ),
    "its own lists it no more": lambda s: (s / "zoo-1.0.dist-info/RECORD").write_text("zoo.py,,\n"),
    "a new one lists it": lambda s: [
        (s / "aaa-1.0.dist-info").mkdir(),
        (s / "aaa-1.0.dist-info/RECORD").write_text('"foo/__init__.py",,\n'),
    ],
    "one of its name lists it": lambda s: (s / "foo-1.0.dist-info/RECORD").write_text(
        "foo/__init__.py,,\n"
    ),
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_file_of_a_package_of_another_name_is_found_anew(what: str, tmp_path: Path) -> None:
    """Any distribution of the folder may become its owner."""
    site = tmp_path / "site"
    (site / "foo").mkdir(parents=True)
    for name in ("__init__.py", "other.py"):
        (site / "foo" / name).touch()
    for name, listed in (("bar", "bar/x.py"), ("foo", "foo/x.py"), ("zoo", "foo/__init__.py")):
        (site / f"{name}-1.0.dist-info").mkdir()
        (site / f"{name}-1.0.dist-info/RECORD").write_text(f"{listed},,\n")
    look = Discovery(FileTable(tmp_path), {})
    before = found(look, site)
    assert before.packages == {"site|zoo"}
    assert found(look, site) == before
    tick(site / "foo/other.py")
    OTHERS[what](site)
    after = found(look, site)
    assert after != before
    assert after == found(Discovery(FileTable(tmp_path), {}), site)
