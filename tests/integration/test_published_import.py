"""Published gpuemu workspaces and corpora are imported; `score` tells right from wrong.

By default a few problems with one wrong candidate; ``IMPORT_PROBLEMS=all`` tries all of them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from collection_scores import MOST, chosen, command, scored
from published_problems import PUBLISHED

pytestmark = pytest.mark.ci


@pytest.mark.parametrize("name", chosen(PUBLISHED, "relu_halves", "matmul"))
@pytest.mark.ci
def test_a_problem_of_gpuemu_is_scored(tmp_path: Path, name: str) -> None:
    PUBLISHED[name].write(tmp_path / "theirs", name, most=MOST)
    told = scored(tmp_path, "gpuemu")
    assert ("frameworks has no effect" in told) is (name == "clip")


def test_twenty_problems_are_written() -> None:
    assert len(PUBLISHED) == 20


@pytest.mark.ci
def test_a_workspace_is_imported_in_place_and_keeps_its_verdicts(tmp_path: Path) -> None:
    """A difference of 0.6e-4 is within this workspace's tolerance, and not within ours."""
    problem = PUBLISHED["square_default"]
    near = type(problem)(problem.right, "x * x + 6e-5", problem.wrong, head=problem.head)
    near.write(tmp_path, "near", most=1)
    before = {each: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()}
    refused = command(tmp_path, "import", "gpuemu", ".", code=2)
    assert not refused
    told = command(tmp_path, "import", "gpuemu", ".", "--force", "--cases", "3")
    assert "are read in place" in told
    after = {each: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()}
    config = tmp_path / "gpuemu.toml"
    assert after.pop(tmp_path / "gpuemu-0.1.0.toml") == before.pop(config)
    assert after.pop(config) != before
    assert after == before
    scores = json.loads(command(tmp_path, "score", "--no-confirm", "--format", "json"))["scores"]
    assert [one["verdict"] for one in scores] == ["correct", "wrong"]
