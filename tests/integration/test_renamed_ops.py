"""An op that is given another name has no history, and no verdict of another one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import stored_snapshot
from mini_workspace import Mini
from stale_rows import Row, make, module, rewrite, scale_by

pytestmark = [
    pytest.mark.ci,
    pytest.mark.timeout(900),
]  # some commands per test, on whatever machine

RENAME = 'name = "scale"', 'name = "renamed"'


def workspace(folder: Path, **files: str) -> Mini:
    """An op that has passed once."""
    texts = {"op.py": scale_by("3"), **{name.replace("_py", ".py"): t for name, t in files.items()}}
    mini = make(Row("renamed", texts, lambda _: None, lambda _: None), folder)
    assert verdicts(mini.run()) == {"scale": "passed"}
    return mini


def verdicts(report: dict[str, Any]) -> dict[str, str]:
    return {result["op"]: result["verdict"] for result in report["results"]}


def test_a_renamed_op_is_a_new_one_whose_cases_are_known(tmp_path: Path) -> None:
    mini = workspace(tmp_path)
    mini.edit("gpuemu.toml", *RENAME)
    report = mini.run()
    assert report["tasks"]["current"] == 0
    assert not [name for name in report["executed"] if name.startswith(("op:", "reference:"))]
    assert verdicts(report) == {"renamed": "passed"}
    for command in ("status", "report"):
        said = mini.command(command).stdout
        assert "renamed" in said, command
        assert "scale" not in said, command
    mini.edit("gpuemu.toml", *reversed(RENAME))
    assert mini.run()["executed"] == [], "back again"


def test_what_a_renamed_op_was_seen_to_use_is_still_followed(tmp_path: Path) -> None:
    mini = workspace(tmp_path, op_py=scale_by("F", late="from fac import F"), fac_py=module(3))
    mini.edit("gpuemu.toml", *RENAME)
    mini.run()
    assert mini.command("run").stdout.startswith("up to date")
    rewrite(mini, "fac.py", module(4))
    assert verdicts(mini.run(code=1)) == {"renamed": "failed"}


@pytest.mark.parametrize("path", ["op.py", "fac.py"])
def test_an_edit_together_with_the_new_name_is_seen(path: str, tmp_path: Path) -> None:
    mini = workspace(tmp_path, op_py=scale_by("F", late="from fac import F"), fac_py=module(3))
    mini.edit("gpuemu.toml", *RENAME)
    rewrite(mini, path, module(4) if path == "fac.py" else scale_by("4"))
    assert verdicts(mini.run(code=1)) == {"renamed": "failed"}


def test_a_name_that_another_result_had_before_gets_the_right_one(tmp_path: Path) -> None:
    mini = workspace(tmp_path)
    mini.edit("gpuemu.toml", *RENAME)
    rewrite(mini, "op.py", scale_by("4"))
    assert verdicts(mini.run(code=1)) == {"renamed": "failed"}
    mini.edit("gpuemu.toml", *reversed(RENAME))
    report = mini.run(code=1)
    assert verdicts(report) == {"scale": "failed"}, "the old pass of that name is not it"
    assert set(report["executed"]) <= {"diff:scale"}


def test_a_damaged_result_of_the_old_name_is_not_taken_over(tmp_path: Path) -> None:
    mini = workspace(tmp_path)
    change = (b"passed", b"other!")
    stored_snapshot.damage(mini, "compare:scale:float32", lambda data: data.replace(*change))
    mini.edit("gpuemu.toml", *RENAME)
    report = mini.run()
    assert verdicts(report) == {"renamed": "passed"}
    assert "other!" not in str(stored_snapshot.rows(mini, "result:compare:renamed"))


def test_two_ops_that_swap_their_names_keep_their_own_verdicts(tmp_path: Path) -> None:
    mini = workspace(tmp_path, bad_py=scale_by("4"))
    text = (tmp_path / "gpuemu.toml").read_text()
    head, op = text.split("[[ops]]")
    bad = op.replace('"scale"', '"other"').replace("op.py:scale", "bad.py:scale")
    mini.write("gpuemu.toml", f"{head}[[ops]]{op}\n[[ops]]{bad}")
    assert verdicts(mini.run(code=1)) == {"scale": "passed", "other": "failed"}
    swapped = op.replace('"scale"', '"other"'), bad.replace('"other"', '"scale"')
    mini.write("gpuemu.toml", f"{head}[[ops]]{swapped[0]}\n[[ops]]{swapped[1]}")
    report = mini.run(code=1)
    assert verdicts(report) == {"scale": "failed", "other": "passed"}
    assert not [name for name in report["executed"] if name.startswith(("op:", "compare:"))]


def test_a_copy_of_an_op_is_a_new_one(tmp_path: Path) -> None:
    mini = workspace(tmp_path)
    text = (tmp_path / "gpuemu.toml").read_text()
    op = text.split("[[ops]]")[1].replace('"scale"', '"copy"')
    mini.write("gpuemu.toml", f"{text}\n[[ops]]{op}")
    report = mini.run()
    assert verdicts(report) == {"scale": "passed", "copy": "passed"}
    assert "diff:copy" in report["executed"], "it has no history"


def test_without_the_old_results_all_runs_anew(tmp_path: Path) -> None:
    mini = workspace(tmp_path)
    shutil.rmtree(tmp_path / ".gpuemu-cache/state")
    shutil.rmtree(tmp_path / ".gpuemu-cache/actions")
    mini.edit("gpuemu.toml", *RENAME)
    report = mini.run()
    assert verdicts(report) == {"renamed": "passed"}
    assert "compare:renamed:float32" in report["executed"]
