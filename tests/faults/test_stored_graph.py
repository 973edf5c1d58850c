"""The file that holds a graph's tasks: torn, swapped, gone or left behind, it is never believed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mini_workspace import Mini
from test_run_damage import cache_of, flip, verdicts
from test_torn_writes import torn

from gpuemu_flow.engine.workspace import Workspace
from gpuemu_flow.errors import StoreError
from gpuemu_flow.graph import snapshot, task_file
from gpuemu_flow.graph.graph import Graph
from gpuemu_flow.graph.overrides import Overrides
from gpuemu_flow.store.cache import seal, unseal

CAUSES = False


def tasks_of(mini: Mini) -> Path:
    (found,) = cache_of(mini).glob("*.tasks")
    return found


def loaded(mini: Mini) -> snapshot.Snapshot | None:
    return snapshot.load(cache_of(mini) / "graph.json", mini.root)


def opened(mini: Mini, seed: int | None = None) -> Workspace:
    return Workspace(mini.root, environ=mini.environment(), overrides=Overrides(seed=seed))


def edit_config(mini: Mini) -> None:
    mini.edit("gpuemu.toml", "cases = 4\n", "cases = 7\n")


def whole(graph: Graph) -> list[tuple[str, Any]]:
    return [(name, json.loads(json.dumps(spec.to_json()))) for name, spec in graph.tasks.items()]


def test_a_stored_graph_is_the_compiled_one(checked_mini: Mini) -> None:
    checked_mini.command("run")  # in this folder, which tasks name
    stored = loaded(checked_mini)
    assert stored is not None
    (cache_of(checked_mini) / "graph.json").unlink()
    compiled = opened(checked_mini).graph
    assert whole(stored.graph) == whole(compiled)
    assert dict(stored.graph.groups) == dict(compiled.groups)
    assert stored.graph.skips == compiled.skips
    assert [list(o) for o in stored.graph.outlines.values()] == [
        [list(part) if isinstance(part, tuple) else part for part in outline]
        for outline in compiled.outlines.values()
    ]
    for name in compiled.tasks:
        assert stored.graph.readers(name) == compiled.readers(name)
        assert stored.graph.upstream([name]) == compiled.upstream([name])
    assert task_file.render(stored.graph) == tasks_of(checked_mini).read_bytes()


def test_one_that_is_torn_anywhere_is_not_believed(checked_mini: Mini) -> None:
    path = tasks_of(checked_mini)
    whole, root = path.read_bytes(), (cache_of(checked_mini) / "graph.json").read_bytes()
    aside: list[Path] = []
    for data in torn(whole, every=997):
        path.write_bytes(data)
        found = snapshot.load(
            cache_of(checked_mini) / "graph.json", checked_mini.root, lambda p, _: aside.append(p)
        )
        assert found is None
    assert set(aside) == {path}
    assert (cache_of(checked_mini) / "graph.json").read_bytes() == root
    path.write_bytes(whole)
    assert loaded(checked_mini) is not None


def test_a_damaged_one_is_set_aside_and_compiled_again(mini: Mini) -> None:
    undisturbed = verdicts(mini.run("scale"))
    path = tasks_of(mini)
    flip(path)
    damaged = path.read_bytes()
    report = mini.run("scale")
    assert verdicts(report) == undisturbed
    assert report["executed"] == []
    assert [problem["slug"] for problem in report["problems"]] == ["cache-damaged"]
    assert [p.read_bytes() for p in (cache_of(mini) / "quarantine").iterdir()] == [damaged]
    assert loaded(mini) is not None


def test_one_that_is_gone_is_compiled_again_without_a_word(mini: Mini) -> None:
    mini.run("scale")
    tasks_of(mini).unlink()
    report = mini.run("scale")
    assert (report["executed"], report["problems"]) == ([], [])
    assert tasks_of(mini).exists()


def test_the_tasks_of_another_graph_are_not_believed(mini: Mini) -> None:
    mini.run("scale")
    own = tasks_of(mini)
    mini.run("scale", "--seed", "7")
    other = tasks_of(mini)
    assert other.name != own.name
    content = other.read_bytes()
    mini.run("scale")
    assert tasks_of(mini).name == own.name
    own.write_bytes(content)
    assert loaded(mini) is None


@pytest.mark.parametrize("left", ["older root", "newer tasks"])
def test_a_process_that_dies_between_two_writes_leaves_a_sound_graph(mini: Mini, left: str) -> None:
    """The tasks are written first and the former ones removed last: both are there meanwhile."""
    mini.run("scale")
    root, older = (cache_of(mini) / "graph.json").read_bytes(), tasks_of(mini)
    content = older.read_bytes()
    mini.run("scale", "--seed", "7")
    newer = tasks_of(mini)
    older.write_bytes(content)
    if left == "older root":  # it died before it could write the new one
        (cache_of(mini) / "graph.json").write_bytes(root)
    found = loaded(mini)
    assert found is not None
    assert found.graph_digest.startswith((older if left == "older root" else newer).stem[6:])
    mini.run("scale")
    assert tasks_of(mini).name == older.name, "what is left over goes with the next run"


def test_two_processes_with_graphs_of_their_own_do_not_lose_one(mini: Mini) -> None:
    """One removes the tasks that the other has loaded and is about to name again."""
    mini.run("scale")
    first = opened(mini)
    second = opened(mini, seed=7)
    second.save(set())
    assert first.snapshot.graph_digest != second.snapshot.graph_digest
    first.save({"generate:scale:float32"})
    found = loaded(mini)
    assert found is not None
    assert found.current == {"generate:scale:float32"}
    assert found.graph.tasks["op:scale:float32"] == first.graph.tasks["op:scale:float32"]


def test_a_snapshot_of_the_former_format_is_compiled_again(mini: Mini) -> None:
    mini.run("scale")
    path = cache_of(mini) / "graph.json"
    content = unseal(path.read_bytes())
    path.write_bytes(seal({**content, "format": 13}))
    assert loaded(mini) is None
    report = mini.run("scale")
    assert (report["executed"], report["problems"]) == ([], [])


@pytest.fixture
def in_blocks(checked_mini: Mini, monkeypatch: pytest.MonkeyPatch) -> Mini:
    """A workspace whose graph is stored in several blocks, as that of a large one is."""
    monkeypatch.setattr(task_file, "_TASKS_OF_BLOCK", 4)
    tasks_of(checked_mini).unlink()
    workspace = opened(checked_mini)
    workspace.save(workspace.graph.tasks.keys() - workspace.stale(set(workspace.graph.tasks)))
    return checked_mini


def quarantined(mini: Mini) -> list[bytes]:
    return [path.read_bytes() for path in (cache_of(mini) / "quarantine").glob("*")]


def test_a_task_of_a_sound_block_needs_no_other_block(in_blocks: Mini) -> None:
    flip(tasks_of(in_blocks), -2)
    tasks = opened(in_blocks).graph.tasks
    names = list(tasks)
    assert tasks[names[0]].name == names[0]
    assert quarantined(in_blocks) == []
    assert tasks[names[-1]].name == names[-1]
    assert len(quarantined(in_blocks)) == 1


def test_wherever_it_is_torn_every_task_is_the_compiled_one(in_blocks: Mini) -> None:
    path = tasks_of(in_blocks)
    content, undisturbed = path.read_bytes(), whole(opened(in_blocks).graph)
    for data in torn(content, every=len(content) // 20):
        path.write_bytes(data)
        workspace = opened(in_blocks)
        assert whole(workspace.graph) == undisturbed
        assert data in quarantined(in_blocks)
        assert {problem.slug for problem in workspace.cache.problems} == {"cache-damaged"}
        path.write_bytes(content)


def test_one_that_is_torn_while_it_is_open_is_made_again(in_blocks: Mini) -> None:
    path = tasks_of(in_blocks)
    content, undisturbed = path.read_bytes(), whole(opened(in_blocks).graph)
    workspace = opened(in_blocks)
    with path.open("r+b") as file:
        file.truncate(len(content) - 1)
    assert whole(workspace.graph) == undisturbed
    workspace.save(workspace.snapshot.current)
    assert path.read_bytes() == content


def test_one_that_is_deleted_while_it_is_open_is_read_on(in_blocks: Mini) -> None:
    undisturbed = whole(opened(in_blocks).graph)
    workspace = opened(in_blocks)
    tasks_of(in_blocks).unlink()
    assert whole(workspace.graph) == undisturbed
    assert quarantined(in_blocks) == []


def test_damage_is_not_mended_by_another_configuration(in_blocks: Mini) -> None:
    workspace = opened(in_blocks)
    flip(tasks_of(in_blocks), -2)
    edit_config(in_blocks)
    with pytest.raises(StoreError) as caught:
        whole(workspace.graph)
    assert caught.value.problems[0].slug == "cache-damaged"


def test_damage_does_not_disturb_who_compiles_anyway(in_blocks: Mini) -> None:
    edit_config(in_blocks)
    flip(tasks_of(in_blocks), -2)
    report = in_blocks.run("scale")
    assert [problem["slug"] for problem in report["problems"]] == ["cache-damaged"]
    assert [result["cases"] for result in report["results"]] == [7]
    assert loaded(in_blocks) is not None
