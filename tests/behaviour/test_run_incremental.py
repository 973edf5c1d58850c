"""`gpuemu-flow run` runs exactly what an edit affects."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from mini_workspace import Mini

CAUSES = SEEDED = False

ALL = {
    "generate:scale:float32", "op:scale:float32", "reference:scale:float32",
    "compare:scale:float32", "diff:scale",
    "generate:total:float32", "op:total:float32", "reference:total:float32",
    "compare:total:float32", "generate:total:float16", "op:total:float16",
    "reference:total:float16", "compare:total:float16", "diff:total",
    "generate:relu:float32", "op:relu:float32", "reference:relu:float32",
    "compare:relu:float32", "diff:relu",
}  # fmt: skip


def executed(report: dict[str, Any]) -> set[str]:
    return set(report["executed"])


@pytest.fixture
def done(checked_mini: Mini) -> Mini:
    """A workspace whose first run is over."""
    return checked_mini


def test_the_first_run_runs_everything(mini: Mini) -> None:
    report = mini.run()
    assert executed(report) == ALL
    assert report["tasks"] == {
        "total": 19, "current": 0, "ran": 19, "restored": 0, "failed": 0, "skipped": 0,
    }  # fmt: skip
    assert [(r["op"], r["dtype"], r["verdict"], r["cases"]) for r in report["results"]] == [
        ("scale", "float32", "passed", 4),
        ("total", "float32", "passed", 4),
        ("total", "float16", "passed", 4),
        ("relu", "float32", "passed", 4),
    ]
    assert report["failures"] == []


def test_nothing_changed_nothing_runs(done: Mini) -> None:
    report = done.run()
    assert executed(report) == set()
    assert report["tasks"]["current"] == 19
    assert all(result["cached"] for result in report["results"])
    assert "up to date: 19 tasks; 4 passed (16 cases)" in done.command("run").stdout
    # The plain run above was clean; now the front answers without looking at the graph.
    again = done.command("run")
    assert again.stdout == "up to date: 19 tasks; 4 passed (16 cases)\n"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('name = "mini"', 'name = "renamed"'),
        ("[targets]", '[targets]\nfresh = ["relu"]'),
        ("seed = 42", "seed = 42\n\n[execution]\nparallel = 7"),
        ('name = "scale"', '# a comment\nname = "scale"\ntimeout = 30'),
    ],
)
def test_what_no_result_depends_on_runs_nothing(done: Mini, old: str, new: str) -> None:
    done.edit("gpuemu.toml", old, new)
    assert executed(done.run()) == set()


def test_the_order_of_ops_and_job_counts_do_not_matter(done: Mini) -> None:
    text = (done.root / "gpuemu.toml").read_text()
    head, scale, total, relu_and_rest = text.split("[[ops]]")
    relu, targets = relu_and_rest.split("[targets]")
    (done.root / "gpuemu.toml").write_text(
        "[[ops]]".join([head, relu, total, scale]) + "[targets]" + targets
    )
    assert executed(done.run("-j", "1")) == set()


def test_a_renamed_op_is_restored_from_the_action_cache(done: Mini) -> None:
    text = (done.root / "gpuemu.toml").read_text().replace('"scale"', '"triple"')
    (done.root / "gpuemu.toml").write_text(text)
    report = done.run()
    assert not [n for n in executed(report) if n.split(":")[0] in ("op", "reference", "compare")]


def test_more_cases_run_only_the_new_ones(done: Mini) -> None:
    done.edit("gpuemu.toml", "cases = 4", "cases = 9")
    report = done.run()
    assert {r["cases"] for r in report["results"]} == {9}
    done.command("clean", "op:scale")  # forgetting a result is not forgetting the work
    assert "op:scale:float32" not in executed(done.run("scale"))


@pytest.mark.ci
def test_switching_back_is_served_from_the_action_cache(done: Mini) -> None:
    path = done.root / "scripts/total.py"
    original = path.read_text()
    path.write_text(original.replace("acc +=", "acc ="))
    assert any(r["verdict"] == "failed" for r in done.run(code=1)["results"])
    path.write_text(original)
    report = done.run()
    assert not {n for n in executed(report) if n.split(":")[0] in ("op", "reference", "compare")}
    assert report["tasks"]["restored"] >= 4
    assert {r["verdict"] for r in report["results"]} == {"passed"}


def test_a_copy_of_the_workspace_with_its_cache_runs_nothing(done: Mini, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(done.root, copy)
    report = Mini(copy, env=dict(done.env)).run()
    assert executed(report) == set()


def test_triggers_narrow_what_counts(done: Mini) -> None:
    done.edit("scripts/scale.py", "* 3)", "* 3.5)")
    assert executed(done.run("--rerun-triggers", "params,env")) == set()
    assert "op:scale:float32" in executed(done.run(code=1))


def test_force_runs_everything_selected(done: Mini) -> None:
    assert executed(done.run("--force", "scale")) == {n for n in ALL if ":scale" in n}


def test_a_seed_of_its_own_makes_other_cases(done: Mini) -> None:
    report = done.run("--seed", "7", "relu")
    assert executed(report) == {n for n in ALL if ":relu" in n}
    back = done.run()
    assert not [n for n in executed(back) if n.split(":")[0] in ("op", "reference", "compare")]


def test_a_reference_that_no_verdict_needs_is_not_loaded(done: Mini, tmp_path: Path) -> None:
    """Under a given tolerance, only a case that does not pass needs it after an edit of the op."""
    loads = tmp_path / "loads"
    config = (done.root / "gpuemu.toml").read_text()
    done.write(
        "gpuemu.toml", config.replace('name = "scale"', 'name = "scale"\ntolerance = "table"')
    )
    done.write(
        "scripts/scale_ref.py",
        f"with open({str(loads)!r}, 'a') as file:\n    file.write('.')\n\n\n"
        "def reference(x):\n    return (x + x + x).astype(x.dtype)\n",
    )
    done.run("scale")
    loads.write_text("")
    done.edit("scripts/scale.py", "* 3)", "* 3.000001)")
    assert "compare:scale:float32" in executed(done.run("scale"))
    assert loads.read_text() == ""
    done.edit("scripts/scale.py", "* 3.000001)", "* 4)")
    assert done.run("scale", code=1)["results"][0]["failed"] > 0
    assert loads.read_text() != ""
