"""What the last run left: torn, swapped, gone or of another graph, it is never believed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mini_workspace import Mini
from msgspec import to_builtins
from stored_snapshot import database, flip, loaded, lose, put_back, rewrite, tables
from test_run_damage import verdicts

from gpuemu_flow.build.graph import Graph
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.config.model import Overrides

CAUSES = False
OP = "op:scale:float32"


def opened(mini: Mini, seed: int | None = None) -> Workspace:
    return Workspace(mini.root, environ=mini.environment(), overrides=Overrides(seed=seed))


def whole(graph: Graph) -> list[tuple[str, Any]]:
    return [(name, json.loads(json.dumps(to_builtins(spec)))) for name, spec in graph.tasks.items()]


def test_a_stored_graph_is_the_compiled_one(checked_mini: Mini) -> None:
    checked_mini.command("run")  # in this folder, which tasks name
    stored = loaded(checked_mini)
    assert stored is not None
    lose(checked_mini)
    compiled = opened(checked_mini).graph
    assert whole(stored.graph) == whole(compiled)
    assert dict(stored.graph.groups) == dict(compiled.groups)
    assert stored.graph.skips == compiled.skips
    for name in compiled.tasks:
        assert stored.graph.readers(name) == compiled.readers(name)
        assert stored.graph.upstream([name]) == compiled.upstream([name])


@pytest.mark.parametrize("part", ["graph", "progress"])
def test_a_damaged_part_is_said_and_made_again(mini: Mini, part: str) -> None:
    undisturbed = verdicts(mini.run("scale"))
    flip(mini, part)
    assert loaded(mini) is None
    report = mini.run("scale")
    assert verdicts(report) == undisturbed
    assert report["executed"] == []
    assert [problem["slug"] for problem in report["problems"]] == ["cache-damaged"]
    assert loaded(mini) is not None
    assert mini.run("scale")["problems"] == []


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM stamps WHERE path = CAST('scripts/scale.py' AS BLOB)",
        "UPDATE stamps SET state = CAST('0' AS BLOB) WHERE path = CAST('scripts/scale.py' AS BLOB)",
        "UPDATE stamps SET path = 3 WHERE path = CAST('scripts/scale.py' AS BLOB)",
    ],
    ids=["lost", "another digest", "no path"],
)
def test_stamps_that_changed_are_not_believed(mini: Mini, statement: str) -> None:
    mini.run("scale")
    with database(mini) as connection:
        assert connection.execute(statement).rowcount == 1
    assert loaded(mini) is None
    mini.edit("scripts/scale.py", "* 3)", "* 4)")
    assert OP in mini.run("scale", code=1)["executed"]


def test_one_that_is_gone_is_compiled_again_without_a_word(mini: Mini) -> None:
    mini.run("scale")
    lose(mini)
    report = mini.run("scale")
    assert (report["executed"], report["problems"]) == ([], [])
    assert loaded(mini) is not None


def test_tables_of_a_stranger_are_set_aside(mini: Mini) -> None:
    undisturbed = verdicts(mini.run("scale"))
    with database(mini) as connection:
        connection.execute("DROP TABLE snapshot")
        connection.execute("CREATE TABLE snapshot (what TEXT)")
    report = mini.run("scale")
    assert verdicts(report) == undisturbed
    assert [problem["slug"] for problem in report["problems"]] == ["cache-damaged"]
    assert mini.run("scale")["problems"] == []


def test_the_tasks_of_another_graph_are_not_believed(mini: Mini) -> None:
    mini.run("scale")
    own = tables(mini)
    mini.run("scale", "--seed", "7")
    other = tables(mini)
    graphs = [dict(found["snapshot"])["graph"] for found in (own, other)]
    assert graphs[0] != graphs[1]
    parts = {**dict(own["snapshot"]), "graph": graphs[1]}
    put_back(mini, {**own, "snapshot": list(parts.items())})
    assert loaded(mini) is None


def test_two_processes_with_graphs_of_their_own_do_not_lose_one(mini: Mini) -> None:
    """One replaces the graph that the other has loaded and is about to name again."""
    mini.run("scale")
    first = opened(mini)
    second = opened(mini, seed=7)
    second.save(set())
    assert first.snapshot.graph_mark != second.snapshot.graph_mark
    first.save({"generate:scale:float32"})
    found = loaded(mini)
    assert found is not None
    assert found.current == {"generate:scale:float32"}
    assert found.graph.tasks[OP] == first.graph.tasks[OP]


def test_a_run_that_another_one_overtook_is_no_clean_one(mini: Mini) -> None:
    mini.command("run")
    first = opened(mini)
    assert tables(mini)["clean_run"]
    second = opened(mini)
    second.save(set())
    first.save_clean((), "all is well")
    assert not tables(mini)["clean_run"]


def test_a_snapshot_of_the_former_format_is_compiled_again(mini: Mini) -> None:
    mini.run("scale")
    rewrite(mini, "progress", lambda old: {**old, "format": 13})
    assert loaded(mini) is None
    report = mini.run("scale")
    assert (report["executed"], report["problems"]) == ([], [])
