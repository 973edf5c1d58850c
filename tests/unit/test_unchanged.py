"""Test that a set of inputs is looked at anew after each change, and cheaply without one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuemu_flow.build.discovery import Discovery
from gpuemu_flow.build.files import FileTable
from gpuemu_flow.model.types import ConfiguredEnv, Observation
from gpuemu_flow.store.keys import Discovered

Environ = dict[str, str]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    for name, text in {
        "op.py": "1",
        "v1/op.py": "one",
        "v2/op.py": "two",
        "config/size": "4",
        "site/foo/__init__.py": "F = 1",
        "site/Foo_Bar-1.0.dist-info/RECORD": "foo/__init__.py,sha256=x,5\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "current").symlink_to("v1")
    return folder


def made(root: Path) -> tuple[Discovery, Discovered, Environ]:
    environ = {"SCALE": "1"}
    look = Discovery(FileTable(root), environ, staging=root / ".gpuemu-cache/staging")
    paths = ("op.py", "current/op.py", "site/foo/__init__.py")
    seen = Observation(
        files=frozenset([*(str(root / path) for path in paths), os.__file__]),
        missed=frozenset({str(root / "new.py")}),
        looked=frozenset({str(root / "config")}),
    )
    return look, look.discover(seen, ConfiguredEnv({}, ("SCALE",))), environ


def put_back(root: Path) -> None:
    """Write a file of the same size, with the time of modification that it had."""
    before = (root / "op.py").stat()
    (root / "op.py").write_text("2")
    os.utime(root / "op.py", ns=(before.st_atime_ns, before.st_mtime_ns))


def released(root: Path) -> None:
    record = root / "site/Foo_Bar-1.0.dist-info"
    record.rename(root / "site/foo_bar-1.1.dist-info")


def linked_anew(root: Path) -> None:
    (root / "current").unlink()
    (root / "current").symlink_to("v2")


CHANGES: dict[str, Callable[[Path], object]] = {
    "file op.py": put_back,
    "link current": linked_anew,
    "file current/op.py": lambda r: (r / "v1/op.py").write_text("1"),
    "missing new.py": lambda r: (r / "new.py").symlink_to("nothing"),
    "look config": lambda r: (r / "config").chmod(0o700),
    "package foo-bar": released,
}


@pytest.mark.parametrize("what", CHANGES)
def test_each_change_shows_after_any_number_of_looks(what: str, root: Path) -> None:
    look, names, _ = made(root)
    before = look.parts(names)
    assert look.parts(names) == before
    CHANGES[what](root)
    after = look.parts(names)
    assert after[what] != before[what]
    assert after == made(root)[0].parts(names)


def test_a_variable_that_changes_shows(root: Path) -> None:
    look, names, environ = made(root)
    before = look.parts(names)
    environ["SCALE"] = "2"
    assert look.parts(names)["variable SCALE"] != before["variable SCALE"]


def test_each_change_counts_as_moved_after_any_number_of_looks(root: Path) -> None:
    look, names, _ = made(root)
    begun = look.now()
    look.moved(names, begun)
    (root / "op.py").write_text("2")
    assert "op.py" in look.moved(names, begun)
    (root / "new.py").touch()
    assert "new.py" in look.moved(names, begun)


def test_the_answer_belongs_to_the_caller(root: Path) -> None:
    look, names, _ = made(root)
    begun = look.now()
    look.parts(names).clear()
    look.moved(names, begun).append("x")
    assert look.parts(names)
    assert "x" not in look.moved(names, begun)
