"""`failures` as people read it: id first, short lines, mended ones apart, values of scalars."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from mini_workspace import Mini, make_one_op

from gpuemu_flow.debug.session import DebugSession
from gpuemu_flow.engine.workspace import Workspace
from gpuemu_flow.errors import UsageError
from gpuemu_flow.reports.failure_text import failure_row, render_list
from gpuemu_flow.store.failures import FailureRecord, FailureStore
from gpuemu_flow.types import Case, CheckResult, Failure, FailureKind, InputSpec, Verdict


def test_ids_come_first_and_serve_as_arguments(mini: Mini) -> None:
    mini.without_causes()
    mini.edit("scripts/total.py", "acc +=", "acc =")
    mini.run("total", "--dtype", "float32", code=1)
    lines = mini.command("failures").stdout.splitlines()
    listed = json.loads(mini.command("failures", "--format", "json").stdout)["failures"]
    assert [line.split()[0] for line in lines] == [one["id"] for one in listed]
    assert all(len(line) <= 80 for line in lines)
    first = listed[0]
    assert lines[0].split()[1:3] == [first["op"], first["dtype"]]
    assert str(first["shape"]) in lines[0] and first["kind"] in lines[0]
    assert "still fails" in mini.command("reproduce", lines[0].split()[0], code=1).stdout
    published = mini.command("failures", "--format", "published").stdout.splitlines()
    assert published[0].startswith(f"{first['seed']} total [{first['kind']}] ")


def test_no_command_picks_one_of_several_failures_of_a_seed(mini: Mini) -> None:
    mini.without_causes()
    mini.edit("scripts/total.py", "acc +=", "acc =")
    mini.run("total", "--dtype", "float32", code=1)
    workspace = Workspace(mini.root, environ={"HOME": str(mini.root)})
    store = FailureStore(workspace.cache)
    one = store.list()[0]
    case = replace(Case.from_json(one.case), dtype="float16")
    made = FailureRecord.of("total", case, CheckResult.from_json(one.result), source="run")
    other = store.add(made, b"inputs")
    workspace.cache.close()
    seed = str(one.seed)
    for words in (("minimize", seed), ("failures", "export", seed, "--pytest")):
        said = mini.command(*words, code=2).stderr
        assert f"ambiguous-failure: 2 failures have the seed {seed}" in said
        assert f"{one.id} (total float32)" in said and f"{other} (total float16)" in said
    session = DebugSession()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(mini.root)
        with pytest.raises(UsageError, match="ambiguous-failure"):
            list(session.execute(f"show {seed}"))
    mini.command("minimize", one.id)


@pytest.mark.ci
def test_mended_failures_stand_apart(mini: Mini) -> None:
    mini.without_causes()
    mini.edit("scripts/total.py", "acc +=", "acc =")
    mini.run("total", "--dtype", "float32", code=1)
    fuzzed = mini.command(
        "fuzz", "total", "-n", "6", "--seed", "7", "--dtype", "float32", "--format", "json", code=1
    )
    (one, *_) = json.loads(fuzzed.stdout)["failures"]
    assert "mended" not in mini.command("failures").stdout
    path = mini.root / "scripts/total.py"
    path.write_text(path.read_text().replace("acc = widen", "acc += widen"))
    assert "mended" not in mini.command("failures").stdout, "nothing has run since"
    mini.run("total", "--dtype", "float32")
    standing, mended = mini.command("failures").stdout.split("\n\nmended, ")
    assert one["id"] in standing, "no run has judged this case again"
    assert one["id"] not in mended and len(mended.splitlines()) > 1
    mini.command("reproduce", one["id"])
    _, mended = mini.command("failures").stdout.split("mended, ")
    assert one["id"] in mended
    listed = json.loads(mini.command("failures", "--format", "json").stdout)["failures"]
    assert {x["id"]: x["mended"] for x in listed}[one["id"]] is True
    path.write_text(path.read_text().replace("acc += widen", "acc = widen"))
    mini.command("reproduce", one["id"], code=1)
    listed = json.loads(mini.command("failures", "--format", "json").stdout)["failures"]
    assert {x["id"]: x["mended"] for x in listed}[one["id"]] is False


def test_rows_stay_short_whatever_the_names() -> None:
    spec = InputSpec("x" * 90, (123456789,) * 12, "float8_e4m3fn")
    case = Case(0, 2**64 - 1, "float8_e4m3fn", "contiguous", "normal", (spec,))
    reason = Failure(FailureKind.UNINITIALIZED_READ, "a message\nof two lines " * 40)
    result = CheckResult(Verdict.FAILED, (reason,))
    name = "op \x1b[31m\n" * 40
    record = FailureRecord.of(name, case, result, source="run")
    for row in (failure_row(record), *render_list([record], ()), *render_list([record], ("",))):
        assert len(row) <= 120 and row.isprintable(), row


def test_scalars_and_indices_show_their_values(tmp_path: Path) -> None:
    mini = make_one_op(
        tmp_path,
        takes="x, at, k=1, causal=False, mode='sum'",
        op="return x * 2 + (k == 3)",
        reference="return x * 2",
        schema="""
        dims = { N = [4] }
        inputs.x = ["N"]
        inputs.at = { dims = [3], dtype = "int64", kind = "indices", of = "x" }
        scalars = { k = [3], causal = [true], mode = ["max"] }
        output = ["N"]
        """,
        keys='input_names = ["x", "at", "k", "causal", "mode"]',
    )
    text = mini.command("run", code=1).stdout
    shown = r"x\[4\] at\[3\]=\[\d, \d, \d\] k=3 causal=True mode='max'  layout"
    assert re.search(f"smallest: float32  {shown}", text), text
    failure = mini.command("failures").stdout.split()[0]
    assert re.search(shown, mini.command("reproduce", failure, code=1).stdout)
