"""Kept results of comparisons that passed say what their manifests say, or nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mini_workspace import Mini
from test_run_damage import cache_of, flip, verdicts

from gpuemu_flow.store.cache import seal, unseal

CAUSES = False
_TIMES = re.compile(r" *\d+(\.\d+)? (ms|s|min|h)\b| +")
"""Times, and spaces, whose number depends on the longest time."""
COMPARISON = "compare:scale:float32"


def rows_of(mini: Mini) -> Path:
    return cache_of(mini) / "passed.json"


def kept(mini: Mini) -> dict[str, Any]:
    return dict(unseal(rows_of(mini).read_bytes()))


def without_times(mini: Mini) -> tuple[str, list[dict[str, Any]]]:
    mini.write("scripts/scale.py", (mini.root / "scripts/scale.py").read_text() + "\n# edited\n")
    text = _TIMES.sub(" ", mini.command("run").stdout)
    results = mini.run()["results"]
    return text, [{k: v for k, v in one.items() if k != "duration_s"} for one in results]


def test_a_report_from_kept_results_is_the_one_from_manifests(mini: Mini) -> None:
    mini.run()
    assert set(kept(mini)["rows"]) == {
        COMPARISON, "compare:relu:float32", "compare:total:float32", "compare:total:float16",
    }  # fmt: skip
    from_rows = without_times(mini)
    rows_of(mini).unlink()
    again = without_times(mini)
    assert again == from_rows


def test_results_that_did_not_pass_are_not_kept(mini: Mini) -> None:
    mini.run()
    mini.edit("scripts/scale.py", "* 3", "* 4")
    report = mini.run(code=1)
    assert report["results"][0]["verdict"] == "failed"
    assert verdicts(mini.run(code=1)) == verdicts(report)


def forged(mini: Mini, change: Callable[[list[Any]], list[Any]]) -> None:
    content = kept(mini)
    content["rows"][COMPARISON] = change(content["rows"][COMPARISON])
    rows_of(mini).write_bytes(seal(content))


@pytest.mark.parametrize(
    "change",
    [
        lambda row: ["0" * 64, 77, *row[2:]],
        lambda row: ["", 77, *row[2:]],
        lambda row: row[:-1],
        lambda row: [row[0], *[None] * (len(row) - 1)],
    ],
    ids=["another manifest", "no manifest", "too short", "nothing in it"],
)
def test_a_row_of_something_else_does_not_count(
    mini: Mini, change: Callable[[list[Any]], list[Any]]
) -> None:
    undisturbed = verdicts(mini.run("scale"))
    forged(mini, change)
    assert verdicts(mini.run("scale")) == undisturbed


def test_a_comparison_damaged_in_place_is_not_answered_from_its_row(mini: Mini) -> None:
    undisturbed = verdicts(mini.run("scale"))
    path = cache_of(mini) / "tasks/compare/scale@float32.json"
    path.write_text(path.read_text().replace('"verdict":"passed"', '"verdict":"failed"'))
    report = mini.run("scale")
    assert verdicts(report) == undisturbed
    assert [problem["slug"] for problem in report["problems"]] == ["cache-damaged"]


def test_rows_of_another_graph_do_not_count(mini: Mini) -> None:
    mini.run("scale")
    forged(mini, lambda row: [*row[:2], 77, *row[3:]])
    assert mini.run("scale")["results"][0]["cases"] == 77, "else this test shows nothing"
    mini.edit("gpuemu.toml", 'name = "scale"', 'name = "scale"\ntimeout = 50')
    report = mini.run("scale")
    assert report["executed"] == [], "a time limit is part of the graph, and of no key"
    assert report["results"][0]["cases"] == 4


def test_a_damaged_file_is_set_aside_and_made_again(mini: Mini) -> None:
    undisturbed = verdicts(mini.run("scale"))
    flip(rows_of(mini))
    damaged = rows_of(mini).read_bytes()
    report = mini.run("scale")
    assert verdicts(report) == undisturbed
    assert [problem["slug"] for problem in report["problems"]] == ["cache-damaged"]
    assert [p.read_bytes() for p in (cache_of(mini) / "quarantine").iterdir()] == [damaged]
    assert COMPARISON in kept(mini)["rows"]
    assert json.dumps(mini.run("scale")["problems"]) == "[]"
