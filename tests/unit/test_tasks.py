"""Tasks: the words that name them, the parts of their keys, and whose result is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from for_each import for_each

from gpuemu_flow.build.files import FileTable
from gpuemu_flow.build.graph import Graph, Skip, parting_commit
from gpuemu_flow.build.states import TaskStates
from gpuemu_flow.model.errors import StoreError, UsageError
from gpuemu_flow.store.cache import WorkspaceCache
from gpuemu_flow.tasks.base import RECORD, RESULT, TaskInput, TaskSpec, read_result


def spec(name: str, *reads: str, **more: Any) -> TaskSpec:
    stage, subject, dtype, *_ = (*name.split(":"), "")
    inputs = tuple(TaskInput(read.partition(":")[0], read) for read in reads)
    return TaskSpec(name, stage, "1", subject, dtype, more.pop("sources", ()), inputs,
                    more.pop("params", {}), {}, **more)  # fmt: skip


SPECS = (
    spec("op:add:float32"), spec("compare:add:float32", "op:add:float32"),
    spec("op:add:float16"), spec("compare:add:float16", "op:add:float16"),
    spec("op:mul:float32"), spec("compare:mul:float32", "op:mul:float32"),
    spec("lint:k", "compare:mul:float32"),
)  # fmt: skip
NAMES = [task.name for task in SPECS]
GRAPH = Graph(
    {task.name: task for task in SPECS},
    {"add": tuple(NAMES[:4]), "mul": tuple(NAMES[4:6]), "both": (NAMES[1], NAMES[6]), "ops": ()},
    (Skip("old", "float64", "it has no dtype"),),
)


@for_each(
    ("words", "dtypes", "chosen"),
    [
        ([], [], NAMES),
        ([], ["float16"], NAMES[2:4]),
        (["op:mul:float32"], [], NAMES[4:5]),
        (["mul", "both"], [], [NAMES[1], *NAMES[4:]]),
        (["both"], ["float32"], [NAMES[1]]),
        (["ops"], [], []),
        (["add:float16"], [], NAMES[2:4]),
        (["op:*"], [], NAMES[0:5:2]),  # tasks alone
        (["o?s"], [], []),  # a group alone
        (["bot[h]"], [], [NAMES[1], NAMES[6]]),
        (["a*:float32"], [], NAMES[:2]),
        (["*"], ["float32", "float16"], NAMES[:6]),
        (["nul"], [], "'nul' is no op, task, group or target; did you mean 'mul'?"),
        (["add:float64"], [], "'add:float64' is no op, task, group or target"),
        (["x*"], [], "'x*' is no op, task, group or target"),
        (
            ["op:old:float64"],
            [],
            "'op:old:float64' is no task, because old has none: it has",
        ),
        (["mul"], ["float16"], "'mul' is not checked in float16; only in float32"),
        ([], ["float8"], "no op is checked in 'float8'"),
    ],
)
def test_words_name_tasks(words: list[str], dtypes: list[str], chosen: list[str] | str) -> None:
    if isinstance(chosen, str):
        with pytest.raises(UsageError) as caught:
            GRAPH.select(words, dtypes)
        assert chosen in str(caught.value)
    else:
        assert GRAPH.select(words, dtypes) == set(chosen)


def test_what_depends_on_a_task() -> None:
    assert GRAPH.downstream([NAMES[4]]) == {NAMES[4], NAMES[5], NAMES[6]}
    assert GRAPH.upstream([NAMES[6], NAMES[0]]) == {NAMES[0], *NAMES[4:]}
    assert GRAPH.readers(NAMES[0]) == [NAMES[1]]
    assert GRAPH.readers(NAMES[6]) == []


@for_each("ref", ["", "-x", "--output=f", "a\0b"])
def test_what_is_no_name_of_a_commit_never_reaches_git(tmp_path: Path, ref: str) -> None:
    with pytest.raises(UsageError, match="it is no name of a commit"):
        parting_commit(tmp_path, ref)


@pytest.fixture
def cache(tmp_path: Path) -> WorkspaceCache:
    made = WorkspaceCache(tmp_path / "cache")
    made.create()
    return made


def test_the_environment_counts_for_programs(cache: WorkspaceCache, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("")
    states = TaskStates(cache, FileTable(tmp_path), {"python": "3"})
    for more, env in (
        ({"sources": ("a.py",)}, {"python": "3"}),
        ({"sources": ("a.py",), "packages": ("pytest", "no-such-package")},
         {"python": "3", "pytest": pytest.__version__}),
        ({"packages": ("pytest",)}, {"python": "3", "pytest": pytest.__version__}),
        ({"params": {"a": 1}}, {}),
    ):  # fmt: skip
        parts = states.static_parts(spec("op:add:float32", "generate:add:float32", **more))
        assert parts.env == env, more
        assert parts.input == {"generate": ""}
        assert list(parts.code) == list(more.get("sources", ()))
    waits = spec("op:add:float32", "after rule:rule:r")
    assert states.static_parts(waits).stage == "op/1"


def test_a_result_is_read_as_that_of_its_stage(cache: WorkspaceCache) -> None:
    cache.state.put_many((RESULT + name, {"stage": name, "n": 1}) for name in ("op", "lint"))
    assert read_result(cache, "op", "op") == {"stage": "op", "n": 1}
    cache.state.put_many([(RESULT + "list", ["stage"]), (RECORD + "lint", {}), (RECORD + "op", {})])
    for task, stage in (("lint", "op"), ("none", "op"), ("list", "op")):
        with pytest.raises(StoreError, match="there is no result of"):
            read_result(cache, task, stage)
    assert cache.lost == {"lint"}, "it has a record, and so would not run again"
    assert cache.state.among([RECORD + "lint", RECORD + "op"]) == {RECORD + "op"}
