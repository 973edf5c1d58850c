"""Causes on the command line: confirmed once, shared by every command, kept in the cache."""

from __future__ import annotations

import json

import pytest
from mini_workspace import Mini

BUG = """
import numpy as np

def scale(x):
    y = (x * np.float32(3)).astype(x.dtype)
    if x.shape[-1] > 16:
        y[..., -1] = 0
    return y
"""


@pytest.fixture
def buggy(mini: Mini) -> Mini:
    mini.write("scripts/scale.py", BUG)
    mini.edit("gpuemu.toml", "cases = 4", "cases = 24")
    return mini


def causes(mini: Mini, *options: str) -> list[dict]:
    text = mini.command("run", "scale", "--format", "json", *options, code=1).stdout
    found: list[dict] = next(r for r in json.loads(text)["results"] if r["failed"])["causes"]
    return found


@pytest.mark.ci
def test_a_stated_cause_is_confirmed_by_new_cases_and_the_same_in_every_command(
    buggy: Mini,
) -> None:
    (first,) = causes(buggy)
    assert first["stated"]
    assert [c["sentence"] for c in first["conditions"]] == ["N is above 16"]
    assert first["counts"]["inside"] >= 8 and first["counts"]["outside_failed"] == 0
    assert causes(buggy) == [first], "from the cache"
    shown = buggy.command("run", "scale", code=1).stdout
    assert f"cause: {first['text']}" in shown
    written = json.loads(buggy.command("ci", "scale", "--format", "json", code=1).stdout)
    assert first["text"] in {failure["cause"] for failure in written["failures"]}
    known = json.loads(buggy.command("report", "--format", "json").stdout)
    assert first["text"] in {failure["cause"] for failure in known["failures"]}


def test_without_new_cases_nothing_is_stated(buggy: Mini) -> None:
    assert causes(buggy, "--no-confirm") == []
    shown = buggy.command("run", "scale", "--no-confirm", code=1).stdout
    assert "cause:" not in shown
    assert "seen with: " in shown
    buggy.edit("gpuemu.toml", "[validation]", "[validation]\ncause_budget = 0")
    assert causes(buggy) == []
