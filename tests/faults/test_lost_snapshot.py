"""A snapshot that is lost, or older than the results, hides no input that programs used."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import stored_snapshot
from mini_workspace import Mini
from stored_snapshot import Tables

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


def lose(mini: Mini, _old: Tables) -> None:
    """Delete the snapshot."""
    stored_snapshot.lose(mini)


def put_back(mini: Mini, old: Tables) -> None:
    """Put back an old snapshot, as if the run had been killed before it stored its own."""
    stored_snapshot.put_back(mini, {**old, "clean_run": []})


def a_file(mini: Mini) -> None:
    mini.write("scripts/listed/two", "")


def a_variable(mini: Mini) -> None:
    mini.env["SCALE_FACTOR"] = "4"


@pytest.mark.parametrize("spoil", [lose, put_back])
@pytest.mark.parametrize(("program", "change"), [(LISTS, a_file), (LOOKS, a_variable)])
def test_an_input_of_current_results_still_counts(
    listing: Mini,
    spoil: Callable[[Mini, Tables], None],
    program: str,
    change: Callable[[Mini], None],
) -> None:
    listing.command("run")
    old = stored_snapshot.tables(listing)
    listing.write("scripts/scale.py", program)
    listing.command("run")
    spoil(listing, old)
    assert "5 current" in listing.command("run").stdout
    assert listing.command("run").stdout.startswith("up to date")
    change(listing)
    assert "failed" in listing.command("run", code=1).stdout
