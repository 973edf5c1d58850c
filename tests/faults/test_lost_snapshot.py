"""A snapshot that is lost, or older than the results, hides no input that programs used."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from mini_workspace import Mini

CAUSES = False

LISTS = """
import os

def scale(x):
    return x * x.dtype.type(2 + len(os.listdir(os.path.dirname(__file__) + "/listed")))
"""
LOOKS = """
import os

def scale(x):
    return x * x.dtype.type(int(os.environ.get("SCALE_FACTOR", "3")))
"""


@pytest.fixture
def listing(mini: Mini) -> Mini:
    mini.keep_only("scale")
    mini.edit("gpuemu.toml", 'name = "scale"', 'name = "scale"\nenv = ["SCALE_FACTOR"]')
    mini.write("scripts/listed/one", "")
    return mini


def lose(mini: Mini, old: Path) -> None:
    """Delete the snapshot."""
    (mini.root / ".gpuemu-cache" / "graph.json").unlink()


def put_back(mini: Mini, old: Path) -> None:
    """Put back an old snapshot, as if the run had been killed before it stored its own."""
    shutil.copy(old, mini.root / ".gpuemu-cache" / "graph.json")


def a_file(mini: Mini) -> None:
    mini.write("scripts/listed/two", "")


def a_variable(mini: Mini) -> None:
    mini.env["SCALE_FACTOR"] = "4"


@pytest.mark.parametrize("spoil", [lose, put_back])
@pytest.mark.parametrize(("program", "change"), [(LISTS, a_file), (LOOKS, a_variable)])
def test_an_input_of_current_results_still_counts(
    listing: Mini,
    tmp_path: Path,
    spoil: Callable[[Mini, Path], None],
    program: str,
    change: Callable[[Mini], None],
) -> None:
    cache = listing.root / ".gpuemu-cache"
    listing.command("run")
    old = shutil.copy(cache / "graph.json", tmp_path)
    listing.write("scripts/scale.py", program)
    listing.command("run")
    spoil(listing, Path(old))
    (cache / "plan").unlink()
    assert "5 current" in listing.command("run").stdout
    assert listing.command("run").stdout.startswith("up to date")
    change(listing)
    assert "failed" in listing.command("run", code=1).stdout
