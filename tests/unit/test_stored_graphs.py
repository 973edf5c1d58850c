"""The graph and the stamps that the next command finds: as stored, or not at all."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from for_each import for_each
from msgspec.structs import replace

from gpuemu_flow.build import snapshot, stamps
from gpuemu_flow.build.discovery import ObservedSets
from gpuemu_flow.build.files import FileTable
from gpuemu_flow.build.graph import Graph, Skip
from gpuemu_flow.build.snapshot import GRAPH, PROGRESS, Basis, Settings, Snapshot
from gpuemu_flow.store.cache import WorkspaceCache, seal, unseal
from gpuemu_flow.store.keys import Discovered
from gpuemu_flow.tasks.base import TaskInput, TaskSpec

SETTINGS = Settings(2, "", 7, True, {"add": 3}, 5, {}, 0.1, None)
BASIS = Basis({"cases": 1}, "own", [("a", "b")], {"python": "3"}, "v", "landlock 7", [["c", "d"]],
              [("*.py", ["a.py"])], [("x", "y")], None, {"a.py": ["1", "2"]}, ["b.py"])  # fmt: skip


@pytest.fixture
def cache(tmp_path: Path) -> WorkspaceCache:
    made = WorkspaceCache(tmp_path / stamps.CACHE_NAME)
    made.create()
    return made


def make(root: Path, name: str = "") -> Snapshot:
    (root / "a.py").write_text("1")
    specs = [
        TaskSpec("op:add:float32", "op", "1", "add", "float32", ("a.py",), (), {"k": [1]},
                 {"p": name}),
        TaskSpec("compare:add:float32", "compare", "1", "add", "float32", (),
                 (TaskInput("op", "op:add:float32"),), {}, None, ("numpy",), ("out",)),
    ]  # fmt: skip
    graph = Graph({s.name: s for s in specs}, {"add": ("op:add:float32",)}, (Skip("m", "f", "r"),))
    files = FileTable(root)
    files.digest("a.py")
    observed = ObservedSets()
    observed.record("op:add:float32", Discovered(files=frozenset({"seen"})), {"file seen": "3"})
    return Snapshot(graph, SETTINGS, BASIS, files, {"op:add:float32"}, observed)


@pytest.mark.parametrize("name", ["é", "a file's name that is no text: \udce9"])
def test_what_is_stored_is_found(cache: WorkspaceCache, tmp_path: Path, name: str) -> None:
    made = make(tmp_path, name)
    assert snapshot.load(cache, tmp_path) is None
    snapshot.save(cache.state, made)
    for _ in range(2):
        found = snapshot.load(cache, tmp_path)
        assert found is not None
        assert not cache.problems
        assert (found.graph.tasks, found.graph.groups) == (made.graph.tasks, made.graph.groups)
        assert (found.graph.skips, found.settings) == (made.graph.skips, SETTINGS)
        assert (found.basis, found.current) == (BASIS, made.current)
        assert found.files.entries == made.files.entries
        assert found.observed.stored == made.observed.stored
        assert (found.graph_mark, found.mark) == (made.graph_mark, made.mark)
        assert cache.problems == []
        found.current = set(made.graph.tasks)
        made.current = set(made.graph.tasks)
        snapshot.save(cache.state, found)
        made.mark = found.mark
    other = replace(found, graph=Graph({}, {}), graph_mark="", current=set())
    snapshot.save(cache.state, other)
    found = snapshot.load(cache, tmp_path)
    assert found is not None
    assert (found.graph.tasks, found.current) == ({}, set())


def rewritten(part: str, **changes: object) -> Callable[[sqlite3.Connection], None]:
    def change(connection: sqlite3.Connection) -> None:
        query = "SELECT content FROM snapshot WHERE part = ?"
        record = unseal(connection.execute(query, (part,)).fetchone()[0], part)
        content = seal({**record, **changes}, part)
        connection.execute("UPDATE snapshot SET content = ? WHERE part = ?", (content, part))

    return change


def statement(text: str) -> Callable[[sqlite3.Connection], None]:
    return lambda connection: connection.execute(text) and None


@for_each(
    ("change", "is_damage"),
    [
        (rewritten(PROGRESS, format=snapshot.FORMAT + 1), False),
        (rewritten(PROGRESS, tool="0.0.1"), False),
        (statement("UPDATE snapshot SET content = 'gf9\n' || content WHERE part = 'graph'"), True),
        (rewritten(GRAPH, groups={}), True),
        (rewritten(PROGRESS, stale=None), True),
        (rewritten(PROGRESS, stamps="other"), True),
        (statement("DELETE FROM snapshot WHERE part = 'graph'"), True),
        (statement("DELETE FROM snapshot"), False),
        (statement("DELETE FROM stamps"), True),
        (statement("UPDATE stamps SET size = size + 1"), True),
        (statement("DROP TABLE clean_run"), False),
    ],
)
def test_what_is_not_as_stored_is_made_again(
    tmp_path: Path, change: Callable[[sqlite3.Connection], None], is_damage: bool
) -> None:
    cache = WorkspaceCache(tmp_path / stamps.CACHE_NAME)
    cache.create()
    snapshot.save(cache.state, make(tmp_path))
    cache.state.sql(change)
    assert snapshot.load(cache, tmp_path) is None
    assert [problem.slug for problem in cache.problems] == ["cache-damaged"] * is_damage


def test_a_clean_run_holds_until_another_snapshot_is_stored(
    cache: WorkspaceCache, tmp_path: Path
) -> None:
    root, environ, made = str(tmp_path), {"HOME": "/"}, make(tmp_path)
    known = stamps.identity(environ, str(cache.folder.resolve()))

    def said() -> str | None:
        return stamps.clean_summary(root, environ)

    snapshot.save(cache.state, made)
    assert said() is None
    row = stamps.row_of(stamps.ABSENT, f"{root}/none")
    snapshot.save_clean(cache.state, made, [row], "all passed", known)
    assert said() == "all passed"
    (tmp_path / "none").write_text("")
    assert said() is None
    (tmp_path / "none").unlink()
    assert said() == "all passed"
    snapshot.forget_clean(cache.state)
    assert said() is None
    snapshot.save_clean(cache.state, replace(made, mark="of another run"), [row], "no", known)
    assert said() is None
    snapshot.save_clean(cache.state, made, [row], "\ud800", known)
    assert (said(), cache.problems) == (None, []), "a text that is none is no damage"
    snapshot.save_clean(cache.state, made, [row], "all passed", known)
    assert said() == "all passed"
    snapshot.save(cache.state, made)
    assert said() is None
