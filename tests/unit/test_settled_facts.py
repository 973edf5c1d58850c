"""Facts about paths that hold until a folder above one of them changes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuemu_flow.build import input_names as settled
from gpuemu_flow.build.files import stamp_of
from gpuemu_flow.build.input_names import SettledFacts

MANY = 100


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of files that count as old, below folders that no other test changes."""
    monkeypatch.setattr(settled, "is_settled", lambda *_: True)
    inside = str(tmp_path)
    monkeypatch.setattr(
        settled,
        "stamp_of",
        lambda path: stamp_of(path) if path.startswith(inside) else (0, 0, 0, 0),
    )
    for n in range(MANY):
        path = tmp_path / f"site/package_{n % 5}/deep/module_{n}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "site/RECORD").touch()
    return tmp_path / "site"


def files_in(site: Path) -> frozenset[str]:
    return frozenset(map(str, site.glob("*/deep/*.py")))


def learned(site: Path, paths: frozenset[str]) -> SettledFacts[str]:
    """Return facts about paths: the name of each one's package."""
    facts: SettledFacts[str] = SettledFacts()
    facts.look_again()
    for path in paths:
        facts.keep(path, path.removeprefix(f"{site}/").partition("/")[0], (f"{site}/RECORD",))
    return facts


def test_all_are_known_again_as_one_or_each(site: Path) -> None:
    paths = files_in(site)
    facts = learned(site, paths)
    packages = {path.name for path in site.iterdir() if path.is_dir()}
    for _ in range(3):
        found, known = facts.known(paths)
        assert found == paths
        assert sorted(known) == sorted(packages)
    assert all(facts.get(path) for path in paths)


def test_others_are_not_known(site: Path) -> None:
    paths = files_in(site)
    facts = learned(site, paths)
    others = frozenset({str(site / "other.py"), "relative.py"})
    for _ in range(3):
        assert facts.known(paths | others)[0] == paths
    assert facts.known(others) == (frozenset(), ())


def test_of_fewer_paths_fewer_facts_are_known(site: Path) -> None:
    paths = files_in(site)
    facts = learned(site, paths)
    facts.known(paths)
    few = frozenset(path for path in paths if "/package_3/" in path)
    for _ in range(3):
        assert facts.known(few) == (few, ("package_3",))


def linked(site: Path) -> None:
    (site / "package_2").rename(site / "elsewhere")
    (site / "package_2").symlink_to("elsewhere")


CHANGES: dict[str, Callable[[Path], object]] = {
    "a new file": lambda site: (site / "package_2/deep/new.py").touch(),
    "a file less": lambda site: next((site / "package_2/deep").iterdir()).unlink(),
    "a new folder": lambda site: (site / "package_2/new").mkdir(),
    "a link in a folder's place": linked,
    "a record written anew": lambda site: (site / "RECORD").write_text("x"),
    "a folder around all": lambda site: (site.parent / "new").touch(),
    "a folder that is gone": lambda site: shutil.rmtree(site / "package_2"),
}


@pytest.mark.parametrize("looks", [0, 1, 2])
@pytest.mark.parametrize("what", CHANGES)
def test_a_change_above_a_path_ends_facts(what: str, looks: int, site: Path) -> None:
    paths = files_in(site)
    facts = learned(site, paths)
    for _ in range(looks):
        assert facts.known(paths)[0] == paths
    CHANGES[what](site)
    touched = {path for path in paths if "/package_2/" in path}
    found, known = facts.known(paths)
    assert not found & touched
    assert "package_2" not in known


def test_what_changed_back_is_not_known(site: Path) -> None:
    paths = files_in(site)
    facts = learned(site, paths)
    facts.known(paths)
    before = (site / "package_2/deep").stat()
    (site / "package_2/deep/new.py").touch()
    (site / "package_2/deep/new.py").unlink()
    os.utime(site / "package_2/deep", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "package_2" not in facts.known(paths)[1]
