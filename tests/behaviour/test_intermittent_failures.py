"""A failure that does not show again is mended only where code or configuration changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mini_workspace import DOUBLES, Mini, make_doubling
from msgspec.structs import replace

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.fuzz.failures import (
    CODE,
    code_key,
    fixed_ids,
)
from gpuemu_flow.store.failures import FailureStore

pytestmark = pytest.mark.ci

EVERY_SEVENTH = """
n = 0


def f(x):
    global n
    n += 1
    return x * 2 + (n % 7 == 0)
"""
NOW_AND_THEN = """
import os


def f(x):
    return x * 2 + (os.urandom(1)[0] < 128)
"""
FROM_A_FILE = """
def f(x):
    return x * float(open("factor.txt").read())
"""


def listed(mini: Mini) -> list[dict[str, Any]]:
    found = json.loads(mini.command("failures", "--format", "json").stdout)["failures"]
    assert found
    return list(found)


def test_an_unchanged_op_is_not_mended(tmp_path: Path) -> None:
    mini = make_doubling(tmp_path, EVERY_SEVENTH)
    mini.run(code=1)
    own = listed(mini)[0]["id"]
    done = mini.command("reproduce", own, code=4)
    assert "did not show again" in done.stdout and "no longer fails" not in done.stdout
    again = json.loads(mini.command("reproduce", own, "--format", "json", code=4).stdout)
    assert again["did_not_show"] and not again["still_fails"]
    assert "did not show again" in mini.command("debug", "--seed", own, code=4).stdout
    (record,) = [one for one in listed(mini) if one["id"] == own]
    assert record["intermittent"] and not record["mended"]
    shown = mini.command("failures").stdout
    assert "intermittent" in shown and own in shown and "mended" not in shown
    mini.write("op.py", DOUBLES)
    assert "no longer fails" in mini.command("reproduce", own, code=0).stdout
    (record,) = [one for one in listed(mini) if one["id"] == own]
    assert record["mended"] and "intermittent" not in record


@pytest.mark.parametrize("edited", ["ref.py", "factor.txt", "gpuemu.toml"])
def test_what_an_edit_mended_is_mended(tmp_path: Path, edited: str) -> None:
    mini = make_doubling(tmp_path, FROM_A_FILE)
    mini.write("factor.txt", "3")
    mini.run(code=1)
    own = listed(mini)[0]["id"]
    mini.command("reproduce", own, code=1)
    if edited == "ref.py":
        mini.edit("ref.py", "* 2", "* 3")
    elif edited == "factor.txt":
        mini.write("factor.txt", "2")
    else:
        mini.edit("gpuemu.toml", "[ops.schema]", 'depends = ["factor.txt"]\n[ops.schema]')
        mini.write("factor.txt", "2")
    mini.command("reproduce", own)
    assert next(one for one in listed(mini) if one["id"] == own)["mended"]


def test_an_op_that_is_wrong_now_and_then_is_told_no_cause(tmp_path: Path) -> None:
    mini = make_doubling(tmp_path, NOW_AND_THEN)
    mini.run(code=1)
    for one in listed(mini)[:3]:
        shown = mini.command("reproduce", one["id"], code=None)
        assert shown.returncode in (1, 4), shown.stdout
        assert "keeps state" not in shown.stdout and "beyond its inputs" not in shown.stdout
        assert "no longer fails" not in shown.stdout


def test_a_later_run_that_passes_mends_nothing_unless_something_changed(tmp_path: Path) -> None:
    mini = make_doubling(tmp_path, DOUBLES.replace("* 2", "* 3"))
    mini.run(code=1)
    mini.write("op.py", DOUBLES)
    mini.run()
    workspace = Workspace(mini.root, environ=mini.environment())
    store = FailureStore(workspace.cache)
    records = store.list()
    assert fixed_ids(workspace, records) == {record.id for record in records}
    now = code_key(workspace, "it", "float32")
    same = [replace(r, provenance={**r.provenance, CODE: now}) for r in records]
    assert fixed_ids(workspace, same) == set()
    old = [
        replace(r, provenance={k: v for k, v in r.provenance.items() if k != CODE}) for r in records
    ]
    assert fixed_ids(workspace, old) == {record.id for record in records}
    workspace.cache.close()
