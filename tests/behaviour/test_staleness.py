"""An edit runs the stages that it can change, and no others: all edits at once, in one run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from many_ops import Op, make_ops
from mini_workspace import Mini
from once import once

Edit = Callable[[Mini], object]
SCHEMA = 'dims = { N = [3, 5] }\ninputs = { x = ["N"] }\noutput = ["N"]'
OP, REFERENCE, GENERATE = {"op", "compare"}, {"reference", "compare"}, {"generate"}
ALL = {"generate", "op", "reference", "compare", "diff"}
NOTHING: set[str] = set()


@dataclass(frozen=True)
class Way:
    """An op that multiplies by 2 until `edit`; then `stages` run, and it gets `verdict`."""

    edit: Edit
    stages: set[str]
    verdict: str = "passed"
    op: str = "return x * 2"
    head: str = ""
    reference: str = "return x * 2"
    keys: str = ""
    files: dict[str, str] = field(default_factory=dict)
    early: bool = False


def replaced(path: str, old: str, new: str) -> Edit:
    return lambda mini: mini.edit(path, old, new)


def written(path: str, text: str) -> Edit:
    return lambda mini: mini.write(path, text)


def table(name: str, old: str, new: str) -> Edit:
    """Edit the op's own table of the configuration."""

    def act(mini: Mini) -> None:
        path = mini.root / "gpuemu.toml"
        head, mark, rest = path.read_text().partition(f'name = "{name}"\n')
        own, more, after = rest.partition("[[ops]]")
        assert old in own, own
        path.write_text(head + mark + own.replace(old, new, 1) + more + after)

    return act


def touched(path: str) -> Edit:
    return lambda mini: os.utime(mini.root / path)


def same_times(path: str, old: str, new: str) -> Edit:
    """Edit without a trace in the modification time or the size."""

    def act(mini: Mini) -> None:
        place = mini.root / path
        before = place.stat()
        mini.edit(path, old, new)
        os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert place.stat().st_size == before.st_size

    return act


def reads(path: str, text: str = "2") -> dict[str, Any]:
    """The op's factor stands in a file."""
    return {"op": f"return x * np.float32(open('{path}').read())", "files": {path: text}}


def imports(module: str, line: str = "", text: str = "F = 2\n") -> dict[str, Any]:
    line = line or f"from {module} import F"
    return {"head": f"{line}\n", "op": "return x * F", "files": {f"{module}.py": text}}


WAYS = {
    "untouched": Way(lambda mini: None, NOTHING),
    "op_wrong": Way(replaced("ops/op_wrong.py", "x * 2", "x * 3"), OP | {"diff"}, "failed"),
    "op_comment": Way(replaced("ops/op_comment.py", "x * 2", "x * 2  # same"), {"op"}),
    "op_rewritten": Way(replaced("ops/op_rewritten.py", "x * 2", "x + x"), {"op"}),
    "op_touched": Way(touched("ops/op_touched.py"), NOTHING),
    "op_same_size": Way(same_times("ops/op_same_size.py", "x * 2", "x * 3"), OP, "failed"),
    "op_replaced": Way(
        lambda mini: (
            mini.write("new.py", "def op(x): return x * 3\n"),
            (mini.root / "new.py").replace(mini.root / "ops/op_replaced.py"),
        ),
        OP | {"diff"},
        "failed",
    ),
    "reference_wrong": Way(
        replaced("refs/reference_wrong.py", "x * 2", "x * 3"), REFERENCE | {"diff"}, "failed"
    ),
    "reference_comment": Way(
        replaced("refs/reference_comment.py", "x * 2", "x * 2  # same"), REFERENCE
    ),
    "helper": Way(
        written("shared_helper.py", "F = 3\n"), OP | {"diff"}, "failed", **imports("shared_helper")
    ),
    "helper_comment": Way(written("noted.py", "F = 2  # same\n"), {"op"}, **imports("noted")),
    "helper_late": Way(
        written("late.py", "F = 3\n"),
        OP | {"diff"},
        "failed",
        op="from late import F\nreturn x * F",
        files={"late.py": "F = 2\n"},
    ),
    "helper_of_helper": Way(
        written("deep2.py", "F = 3\n"),
        OP | {"diff"},
        "failed",
        head="from deep1 import F\n",
        op="return x * F",
        files={"deep1.py": "from deep2 import F\n", "deep2.py": "F = 2\n"},
    ),
    "package": Way(
        written("pkg/part.py", "F = 3\n"),
        OP | {"diff"},
        "failed",
        head="from pkg import part\n",
        op="return x * part.F",
        files={"pkg/__init__.py": "", "pkg/part.py": "F = 2\n"},
    ),
    "package_init": Way(
        written("pkg2/__init__.py", "F = 3\n"),
        OP | {"diff"},
        "failed",
        head="import pkg2\n",
        op="return x * pkg2.F",
        files={"pkg2/__init__.py": "F = 2\n"},
    ),
    "not_imported": Way(written("other.py", "F = 3\n"), NOTHING, files={"other.py": "F = 2\n"}),
    "imported_by_reference": Way(
        written("ref_helper.py", "F = 3\n"),
        REFERENCE | {"diff"},
        "failed",
        reference="from ref_helper import F\nreturn x * F",
        files={"ref_helper.py": "F = 2\n"},
    ),
    "computed_import": Way(
        written("fac1.py", "F = 3\n"),
        OP | {"diff"},
        "failed",
        head="from importlib import import_module\nM = import_module('fa' + 'c1')\n",
        op="return x * M.F",
        files={"fac1.py": "F = 2\n"},
    ),
    "data": Way(written("data.txt", "3"), OP | {"diff"}, "failed", **reads("data.txt")),
    "data_spaces": Way(written("data2.txt", "2 "), {"op"}, **reads("data2.txt")),
    "data_touched": Way(touched("data3.txt"), NOTHING, **reads("data3.txt")),
    "depends": Way(
        written("tables/b.txt", "7"),
        {"op", "reference", "compare"},
        keys='depends = ["tables/*.txt"]',
        files={"tables/a.txt": "1"},
    ),
    "depends_not": Way(
        written("tables2/b.csv", "7"),
        NOTHING,
        keys='depends = ["tables2/*.txt"]',
        files={"tables2/a.txt": "1"},
    ),
    "listed_folder": Way(
        written("listed/b", "7"),
        OP | {"diff"},
        "failed",
        head="import os\n",
        op="return x * (1 + len(os.listdir('listed')))",
        files={"listed/a": "1"},
    ),
    "asked_in_vain": Way(
        written("flag", ""),
        OP | {"diff"},
        "failed",
        head="import os\n",
        op="return x * (3 if os.path.exists('flag') else 2)",
    ),
    "tried_in_vain": Way(
        written("flag2", "3"),
        OP | {"diff"},
        "failed",
        op="try:\n    f = int(open('flag2').read())\nexcept OSError:\n    f = 2\nreturn x * f",
    ),
    "variable": Way(
        lambda mini: mini.env.update(FACTOR="3"),
        {"op", "reference", "compare", "diff"},
        "failed",
        head="import os\n",
        op="return x * int(os.environ.get('FACTOR', 2))",
        keys='env = ["FACTOR"]',
    ),
    "variable_unnamed": Way(
        lambda mini: mini.env.update(UNNAMED="3"),
        NOTHING,
        head="import os\n",
        op="return x * int(os.environ.get('UNNAMED', 2))",
    ),
    "variable_set": Way(
        table("variable_set", '"2"', '"3"'),
        {"op", "reference", "compare", "diff"},
        "failed",
        head="import os\n",
        op="return x * int(os.environ['MINE'])",
        keys='env = { MINE = "2" }',
    ),
    "schema": Way(table("schema", "N = [3, 5]", "N = [4, 6]"), ALL - {"diff"}),
    "more_cases": Way(
        table("more_cases", "cases = 2", "cases = 4"), ALL - {"diff"}, keys="cases = 2"
    ),
    "strategies": Way(
        table("strategies", '"normal"', '"wide"'), ALL - {"diff"}, keys='strategies = ["normal"]'
    ),
    "layouts": Way(
        table("layouts", '"contiguous"', '"strided"'),
        ALL - {"diff"},
        keys='layouts = ["contiguous"]',
    ),
    "tolerances": Way(
        table("tolerances", "1e-3", "1e-2"), {"compare"}, keys="tolerances = { float32 = 1e-3 }"
    ),
    "nan_policy": Way(
        table("nan_policy", '"match"', '"strict"'),
        {"compare"},
        keys='nan_policy = "match"\nstrategies = ["normal"]',
    ),
    "invariants": Way(
        table("invariants", '["finite"]', '["no_nan"]'),
        {"compare"},
        keys='invariants = ["finite"]\nstrategies = ["normal"]',
    ),
    "kwargs": Way(
        table("kwargs", "f = 2", "f = 3"),
        {"op", "reference", "compare"},
        op="return x * f",
        reference="return x * f",
        keys="kwargs = { f = 2 }",
    ),
    "timeout": Way(table("timeout", "timeout = 30", "timeout = 40"), NOTHING, keys="timeout = 30"),
    "isolation": Way(table("isolation", '"fork"', '"warm"'), NOTHING, keys='isolation = "fork"'),
    "another_file": Way(
        table("another_file", "ops/another_file.py", "again.py"),
        {"op"},
        files={"again.py": "def op(x): return x * 2\n"},
    ),
    "another_reference": Way(
        table("another_reference", "refs/another_reference.py", "ref3.py"),
        {"op", "reference", "compare", "diff"},
        "failed",
        files={"ref3.py": "def reference(x): return x * 3\n"},
    ),
    "link": Way(
        lambda mini: ((mini.root / "v").unlink(), (mini.root / "v").symlink_to("v3")),
        OP | {"diff"},
        "failed",
        op="return x * np.float32(open('v').read())",
        files={"v": "2", "v3": "3"},
    ),
    "deleted": Way(
        lambda mini: (mini.root / "there").unlink(),
        OP | {"diff"},
        "failed",
        head="import os\n",
        op="return x * (2 if os.path.exists('there') else 3)",
        files={"there": ""},
    ),
}


def stages(report: dict[str, Any]) -> dict[str, set[str]]:
    """The stages that ran, by op."""
    found: dict[str, set[str]] = {}
    for task in report["executed"]:
        stage, op, *_ = task.split(":")
        found.setdefault(op, set()).add(stage)
    return found


@dataclass(frozen=True)
class Told:
    """What a workspace's commands said before and after all the edits."""

    mini: Mini
    first: dict[str, Any]
    nothing: dict[str, Any]
    explained: dict[str, Any]
    dry: dict[str, Any]
    second: dict[str, Any]
    third: dict[str, Any]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return once(tmp_path_factory, "staleness", tell)


def tell(folder: Path) -> Told:
    mini = make(folder)
    first, nothing = mini.run(code=None), mini.run(code=None)
    for way in WAYS.values():
        way.edit(mini)
    explained = json.loads(mini.command("explain", "--format", "json").stdout)
    dry = json.loads(mini.command("run", "--dry-run", "--format", "json").stdout)
    return Told(mini, first, nothing, explained, dry, mini.run(code=None), mini.run(code=None))


def make(folder: Path) -> Mini:
    ops = {
        name: Op("x" if "kwargs" not in way.keys else "x, f", way.op, way.reference, SCHEMA,
                 way.keys, way.head)
        for name, way in WAYS.items()
    }  # fmt: skip
    files = {path: text for way in WAYS.values() for path, text in way.files.items()}
    return make_ops(folder, ops, 'cases = 2\ntolerance = "table"', files=files, own=True)


def test_the_first_run_runs_all_and_passes(told: Told) -> None:
    assert {r["verdict"] for r in told.first["results"]} == {"passed"}
    assert stages(told.first) == dict.fromkeys(WAYS, ALL)
    counts = dict(told.first["tasks"])
    assert counts.pop("ran") + counts.pop("restored") == 5 * len(WAYS)
    assert counts == {"total": 5 * len(WAYS), "current": 0, "failed": 0, "skipped": 0}


def test_without_an_edit_nothing_runs(told: Told) -> None:
    assert told.nothing["executed"] == []
    assert told.nothing["tasks"]["current"] == 5 * len(WAYS)
    assert all(result["cached"] for result in told.nothing["results"])


def test_an_edit_runs_what_it_can_change(told: Told) -> None:
    results = {r["op"]: r for r in told.second["results"]}
    for name, way in WAYS.items():
        ran = stages(told.second).get(name, set())
        assert results[name]["verdict"] == way.verdict, name
        assert ran - {"diff"} == way.stages - {"diff"}, name
        assert results[name]["cached"] == (not ran - {"diff"}), name


def test_what_runs_was_explained_before(told: Told) -> None:
    explained = [task["task"].split(":") for task in told.explained["tasks"]]
    would = [task["task"].split(":") for task in told.dry["would_run"]]
    for name in WAYS:
        stale = {stage for stage, op, *_ in explained if op == name}
        ran = stages(told.second).get(name, set())
        assert ran <= stale, (name, "what ran was said to be stale")
        assert bool(stale) == bool(ran), (name, "and nothing else")
        assert ran <= {stage for stage, op, *_ in would if op == name}, name


def test_then_nothing_is_left_to_run(told: Told) -> None:
    assert told.third["executed"] == []
    assert [r["verdict"] for r in told.third["results"]] == [
        r["verdict"] for r in told.second["results"]
    ]


def test_the_reason_is_the_file_the_key_or_the_variable(told: Told) -> None:
    changes = {
        task["task"]: {change["what"] for change in task["changes"]}
        for task in told.explained["tasks"]
    }
    assert changes["op:op_wrong:float32"] == {"code.ops/op_wrong.py"}
    assert changes["op:helper_of_helper:float32"] == {"code.deep2.py"}
    assert changes["reference:reference_wrong:float32"] == {"code.refs/reference_wrong.py"}
    because = {task["task"]: {b["task"] for b in task["because"]}
               for task in told.explained["tasks"]}  # fmt: skip
    assert because["compare:op_wrong:float32"] == {"op:op_wrong:float32"}
    assert because["compare:reference_wrong:float32"] == {"reference:reference_wrong:float32"}


def test_variables_that_all_programs_get_count_and_secrets_reach_none(tmp_path: Path) -> None:
    names = ("LC_MINE", "CUDA_MINE", "MY_OWN", "CUDA_MY_TOKEN", "UNNAMED")
    ops = {
        name: Op(
            op=f"return x * int(os.environ.get({name!r}, 2))", schema=SCHEMA, head="import os\n",
            keys='env = ["MY_*"]' if name == "MY_OWN" else "",
        )
        for name in names
    }  # fmt: skip
    mini = make_ops(tmp_path / "w", ops, 'cases = 2\ntolerance = "table"')
    assert {r["verdict"] for r in mini.run()["results"]} == {"passed"}
    mini.env.update(dict.fromkeys(names, "3"))
    verdicts = {r["op"]: r["verdict"] for r in mini.run(code=1)["results"]}
    assert verdicts == {
        "LC_MINE": "failed", "CUDA_MINE": "failed", "MY_OWN": "failed", "CUDA_MY_TOKEN": "passed",
        "UNNAMED": "passed",
    }  # fmt: skip
    for name in names:
        del mini.env[name]
    report = mini.run()
    assert {r["verdict"] for r in report["results"]} == {"passed"}
    assert not [task for task in report["executed"] if task.startswith(("op:", "reference:"))]
