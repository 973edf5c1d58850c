"""Tasks: the words that name them, the parts of their keys, and whose result is read."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from for_each import for_each
from msgspec.structs import replace

from gpuemu_flow.build.files import FileTable, own_code_digest
from gpuemu_flow.build.graph import Graph, Shard, Skip, code_digest, owned, parting_commit
from gpuemu_flow.build.session import StartDigests
from gpuemu_flow.build.states import TaskStates
from gpuemu_flow.model.errors import Problem, StoreError, UsageError
from gpuemu_flow.model.types import Verdict
from gpuemu_flow.store.cache import WorkspaceCache
from gpuemu_flow.store.keys import TRIGGERS, Discovered
from gpuemu_flow.tasks.base import (
    MADE_FROM,
    RECORD,
    RESULT,
    StageResult,
    TaskInput,
    TaskSpec,
    read_result,
)
from gpuemu_flow.tasks.lint import Linted


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


SHARDS = [["mul", "old"], ["k"], ["add"]]


def test_each_op_is_in_one_shard() -> None:
    """Those that cannot run here, too; the name alone decides, on all machines alike."""
    subjects = {"add", "mul", "k", "old"}
    for count in range(1, 6):
        shards = [owned(GRAPH, Shard(index, count)) for index in range(1, count + 1)]
        assert sorted(name for shard in shards for name in shard) == sorted(subjects)
    assert [sorted(owned(GRAPH, Shard(index, 3))) for index in (1, 2, 3)] == SHARDS
    alone = Graph({NAMES[0]: SPECS[0]}, {})
    assert [owned(alone, Shard(n, 3)) for n in (1, 2, 3)] == [
        {"add"} & {*names} for names in SHARDS
    ]
    assert str(Shard(2, 3)) == "2/3"


def test_machines_with_the_same_commit_have_the_same_code(tmp_path: Path) -> None:
    top = tmp_path / "repo"
    for name in ("repo/a.py", "repo/made.py", "beside.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
    own = {"a": 1, "seed": 2, "python": "bin/python", "sandbox": "landlock 1", "tools": ["nvcc"]}

    def digest(drawn: bool = False, stage: str = "op", more: str = "", **params: Any) -> str:
        given = {**own, **params}
        sources = ("a.py", "made.py", "../beside.py", given["python"])
        task = spec(f"{stage}:add:float32", sources=sources, params=given)
        made = spec("rule:made", outputs=("made.py",))
        code = spec("code:k", params={"a": more})
        graph = Graph({one.name: one for one in (task, made, code)}, {})
        return code_digest(graph, FileTable(top), top, drawn=drawn)

    first, drawn = digest(), digest(drawn=True)
    assert digest(sandbox="none", tools=[], python="other", more="compiled") == first
    assert digest(drawn=True, seed=3) == drawn
    for name in ("repo/made.py", "beside.py"):
        (tmp_path / name).write_text("2")
    assert digest() == first
    assert first not in (drawn, digest(seed=3), digest(a=2), digest(stage="reference"))
    (top / "a.py").write_text("2")
    assert digest() != first


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


def done(values: dict[str, Any], used: Discovered | None = None, **more: Any) -> StageResult:
    return StageResult({"stage": "op"}, values=values, discovered=used or Discovered(), **more)


def test_what_changed_since_a_success_is_named(cache: WorkspaceCache, tmp_path: Path) -> None:
    source, made = tmp_path / "a.py", tmp_path / "made"
    source.write_text("1")
    made.write_text("1")
    task = spec("op:add:float32", sources=("a.py",), outputs=("made",), params={"a": 1})

    def states(triggers: tuple[str, ...] = TRIGGERS, version: str = "3") -> TaskStates:
        return TaskStates(cache, FileTable(tmp_path), {"python": version}, triggers)

    def reasons(given: TaskStates, which: TaskSpec = task, again: bool = False) -> list[str]:
        found = [reason.what for reason in given.reasons(which, given.parts(which))]
        assert given.moved(which) is (bool(found) and not again), found
        return found

    assert reasons(states()) == ["state"]
    assert (states().digest(task.name), states().finished([task.name])) == ("", set())
    first, values = states(), {"outputs": {"made": states().output("made")}, "duration_s": 2}
    used = Discovered(files=frozenset({"a.py", "seen"}))
    first.save(task, first.parts(task), done(values, used), values)
    assert states().finished([task.name, "op:other:float32"]) == {task.name}
    assert states().duration(task.name) == 2.0
    assert states().as_made(task) == {"made"}
    assert set(states().records([task.name, "none"])) == {task.name}
    assert states().digest(task.name) == states().record(task.name).digest  # type: ignore[union-attr]
    now = states()
    now.save(task, now.parts(task), done(values, used), values)
    assert reasons(states()) == []
    source.write_text("2")
    assert reasons(states()) == ["code.a.py"], "and not once more as a file that was seen"
    assert reasons(states(("params",))) == []
    assert reasons(states(version="4")) == ["code.a.py", "env.python"]
    other = replace(task, params={"a": 2}, version="2")
    assert reasons(states(("params",)), other) == ["stage", "params.a"]
    (tmp_path / "seen").write_text("")
    assert reasons(states()) == ["code.a.py", "observed.file seen"]
    made.chmod(0o755)
    assert reasons(states()) == ["code.a.py", "observed.file seen", "output.made"]
    assert states().as_made(task) == set()
    last = states()
    values = {"outputs": {"made": last.output("made")}}
    last.save(task, last.parts(task), done(values, used, complete=False), values)
    assert reasons(states(), again=True) == ["state"], "for the cases that ended in an error"
    assert states().duration(task.name) is None
    cache.state.delete(MADE_FROM + task.name)  # as where its row is damaged
    assert reasons(states()) == ["state"]


def test_why_a_task_failed_is_known_until_it_changes(cache: WorkspaceCache, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    task = spec("op:add:float32", sources=("a.py",))

    def states() -> TaskStates:
        return TaskStates(cache, FileTable(tmp_path), {})

    before = states()
    before.save(task, before.parts(task), done({}), {})
    assert not states().has_failed(task.name)
    problem = Problem("op-exception", "it raised", "mend it", "a.py", 3)
    states().save_broken(task, [problem])
    assert states().record(task.name) is None
    assert states().made_from(task.name) is None
    assert states().broken(task) == [problem]
    assert states().has_failed(task.name)
    found = cache.state.get(f"broken:{task.name}")
    for other in ({**found, "version": 0}, {**found, "key": "other"}, ["junk"]):
        cache.state.put(f"broken:{task.name}", other)
        assert states().broken(task) is None
    cache.state.put(f"broken:{task.name}", found)
    assert states().broken(task) == [problem]
    (tmp_path / "a.py").write_text("2")
    assert states().broken(task) is None
    now = states()
    with now.only_writer():
        assert now.record(task.name) is None
        now.save(task, now.parts(task), done({}), {})
        assert now.record(task.name) is not None
        now.forget(task.name)
        assert now.record(task.name) is None
        now.save(task, now.parts(task), done({}), {})
    assert states().broken(task) is None
    assert states().has_failed(task.name), "once"


def test_verdicts_rest_on_files_that_did_not_change(cache: WorkspaceCache, tmp_path: Path) -> None:
    for name in ("ref.py", "other.py", "gpuemu.toml", "made/table", "kept/table"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
    wall = {"op": {"sandbox": {"writable": [str(tmp_path / "made")]}}}
    reads = TaskInput("reference", "reference:add:float32")
    compare = replace(
        spec("compare:add:float32", sources=("ref.py",)), inputs=(reads,), settings=wall
    )
    graph = Graph({t.name: t for t in (
        compare, spec("reference:add:float32", sources=("ref.py",)),
        replace(spec("compare:mul:float32", sources=("other.py",)), settings={"op": {}}),
    )}, {})  # fmt: skip
    files = FileTable(tmp_path)
    judge = own_code_digest(files)
    config = [str(tmp_path / "gpuemu.toml")]
    start = StartDigests.take(graph, graph.tasks, files, judge, config)

    def changed(*made: str) -> dict[str, str]:
        found = start.changed(FileTable(tmp_path), made)
        assert {problem.slug for problem in found.values()} <= {"judged-by-changed"}
        return {name.split(":")[1]: p.message.split()[1] for name, p in found.items()}

    assert changed() == {}
    (tmp_path / "ref.py").write_text("2")
    assert changed() == {"add": "ref.py"}
    assert changed("ref.py") == {}, "a rule made it"
    (tmp_path / "gpuemu.toml").write_text("2")
    assert changed("ref.py") == dict.fromkeys(("add", "mul"), config[0])
    other = replace(start, judge="of another version")
    assert set(other.changed(files, ())) == {compare.name, "compare:mul:float32"}

    states = TaskStates(cache, files, {})

    def touched(*used: str) -> set[str]:
        task = graph.tasks["reference:add:float32"]
        seen = Discovered(files=frozenset(used))
        states.save(task, states.static_parts(task), done({}, seen), {})
        late = replace(start, began=max(start.began, 1))
        return set(late.touched(graph, states, tmp_path))

    assert touched("kept/table", "other.py") == set()
    (tmp_path / "made/table").write_text("2")
    assert touched("made/table") == {compare.name}
    assert touched("made/gone") == {compare.name}
    start = replace(start, began=(tmp_path / "made/table").stat().st_ctime_ns + 1)
    assert touched("made/table") == set()


@for_each(
    ("kernels", "problems", "verdict"),
    [
        ("", "", "error"),
        ("passed", "", "passed"),
        ("passed passed", "warning", "passed"),
        ("passed", "warning error", "error"),
        ("passed inconclusive", "", "inconclusive"),
        ("inconclusive", "", "inconclusive"),
        ("passed skipped", "", "inconclusive"),
        ("inconclusive failed", "error", "failed"),
    ],
)
def test_what_a_lint_says_of_several_kernels(kernels: str, problems: str, verdict: str) -> None:
    records: list[Any] = [SimpleNamespace(verdict=Verdict(name)) for name in kernels.split()]
    found = [Problem("slug", "why", warning=kind == "warning") for kind in problems.split()]
    assert Linted(records=records, problems=found).verdict.value == verdict


def test_a_result_is_read_as_that_of_its_stage(cache: WorkspaceCache) -> None:
    cache.state.put_many((RESULT + name, {"stage": name, "n": 1}) for name in ("op", "lint"))
    assert read_result(cache, "op", "op") == {"stage": "op", "n": 1}
    cache.state.put_many([(RESULT + "list", ["stage"]), (RECORD + "lint", {}), (RECORD + "op", {})])
    for task, stage in (("lint", "op"), ("none", "op"), ("list", "op")):
        with pytest.raises(StoreError, match="there is no result of"):
            read_result(cache, task, stage)
    assert cache.lost == {"lint"}, "it has a record, and so would not run again"
    assert cache.state.among([RECORD + "lint", RECORD + "op"]) == {RECORD + "op"}
