"""A run of the whole suite and ``pytest --left-out`` together run each test once."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
CONFTEST = """
import sys
sys.path.insert(0, {tests!r})
from suite_part import *
from suite_part import choose_part, keep_part

def pytest_configure(config):
    choose_part(config)

def pytest_collection_modifyitems(config, items):
    keep_part(config, items)
"""
VARIANTS = """
import pytest

@pytest.mark.parametrize("n", range({count}))
def test_{name}(n): pass

def test_alone_{name}(): pass

@pytest.mark.long
def test_long_{name}(): pass
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Make files with a test of 9, 5, 3, 30 and 10 variants, one with none, and a long one."""
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = tests\nmarkers =\n long\n sampled")
    for folder, name, count in (
        ("cli", "nine", 9),
        ("exploits", "five", 5),
        ("cli", "three", 3),
        ("unit", "thirty", 30),
        ("unit", "ten", 10),
    ):
        file = tmp_path / "tests" / folder / f"test_{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        text = VARIANTS.format(name=name, count=count)
        if name == "ten":
            text = text.replace("@pytest.mark.para", "@pytest.mark.sampled\n@pytest.mark.para")
        file.write_text(text)
    (tmp_path / "tests" / "conftest.py").write_text(CONFTEST.format(tests=str(TESTS)))
    return tmp_path


def _run(project: Path, *words: str) -> tuple[set[str], str]:
    """Return the names of the tests that passed, and all that was printed."""
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *words]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=True)
    names = re.findall(r"^(?:\[gw\d\].*PASSED )?(tests/\S+::\S+)", done.stdout, re.MULTILINE)
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) == len(set(names)), done.stdout
    return set(names), done.stdout


def _count(names: set[str], word: str) -> int:
    return sum(f"test_{word}[" in name for name in names)


@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.long
def test_both_parts_together_are_all(project: Path, workers: str) -> None:
    sample, text = _run(project, "-n", workers)
    rest, _ = _run(project, "-n", workers, "--left-out")
    everything, whole = _run(project, "-n", workers, "tests")
    assert sample | rest == everything
    assert not sample & rest
    assert len(everything) == 9 + 5 + 3 + 30 + 10 + 5 + 5
    found = {word: _count(sample, word) for word in ("nine", "five", "three", "thirty", "ten")}
    assert found["nine"] in (2, 3)
    assert found["five"] in (2, 3)
    assert (found["three"], found["thirty"], found["ten"]) == (3, 30, 2)
    assert not any("test_long" in name for name in sample)
    assert f"{len(rest)} long tests and variants of tests were left out: pytest --left-out" in text
    assert "left out" not in whole


def test_what_is_asked_for_by_name_runs_whole(project: Path) -> None:
    named, text = _run(project, "-k", "nine")
    assert _count(named, "nine") == 9
    assert "left out" not in text
