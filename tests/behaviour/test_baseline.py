"""Baselines and diffs through the real command: kernels' figures and ops' results."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from mini_workspace import Mini, make_mini
from once import once

KERNELS = Path(__file__).resolve().parent.parent.parent / "scripts" / "kernels"

CONFIG = """
[[kernels]]
name = "kernel"
ptx = "k/kernel.ptx"
cubin = "k/kernel.cubin"

[targets]
"""


def put(mini: Mini, name: str, arch: str = "sm_80") -> None:
    """Make the kernel's artifacts those of a committed one."""
    (mini.root / "k").mkdir(parents=True, exist_ok=True)
    for suffix in (".ptx", ".cubin"):
        shutil.copy(KERNELS / arch / f"{name}{suffix}", mini.root / "k" / f"kernel{suffix}")


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Mini:
    """Three ops and one kernel, stored as ``first``; not to be changed."""

    def store(folder: Path) -> Mini:
        mini = make_mini(folder)
        mini.edit("gpuemu.toml", "\n[targets]\n", CONFIG)
        mini.without_causes()
        put(mini, "softmax")
        mini.command("baseline", "first")
        return mini

    return once(tmp_path_factory, "baseline", store)


@pytest.fixture
def workspace(stored: Mini, tmp_path: Path) -> Mini:
    """The stored workspace, to be changed by one test."""
    shutil.copytree(stored.root, tmp_path / "workspace", copy_function=shutil.copy2)
    return Mini(tmp_path / "workspace")


def diff(mini: Mini, *arguments: str, code: int | None = 0) -> dict[str, Any]:
    done = mini.command("diff", "--format", "json", *arguments, code=code)
    return dict(json.loads(done.stdout))


def shown(mini: Mini, tag: str) -> dict[str, Any]:
    done = mini.command("baseline", "show", tag, "--format", "json")
    return dict(json.loads(done.stdout)["baseline"])


def statuses(found: dict[str, Any]) -> set[str]:
    return {item["status"] for item in (*found["kernels"], *found["results"])}


def test_nothing_changed(workspace: Mini) -> None:
    found = diff(workspace)
    assert statuses(found) == {"unchanged"}
    assert len(found["kernels"]) == 1
    assert len(found["results"]) == 4
    assert not found["has_regressions"]
    assert "5 unchanged" in workspace.command("diff", "first").stdout


def test_a_worse_result_is_a_regression(workspace: Mini) -> None:
    workspace.edit("scripts/scale.py", "* 3", "* 2")
    found = diff(workspace, code=1)
    worse = [r for r in found["results"] if r["status"] == "regression"]
    assert [(r["op"], r["what"], r["old"], r["new"]) for r in worse] == [
        ("scale", "verdict", "passed", "failed")
    ]
    diff(workspace, "--no-fail-on-regression", code=0)
    workspace.edit("gpuemu.toml", "[project]", "[policies]\nfail_on_regression = false\n[project]")
    diff(workspace, code=0)
    diff(workspace, "--fail-on-regression", code=1)
    assert "verdict passed -> failed" in workspace.command("diff").stdout


def test_a_grown_error_on_the_same_cases_is_a_regression(workspace: Mini) -> None:
    workspace.edit("scripts/scale.py", "* 3)", "* 3 * np.float32(1 + 3e-6))")
    workspace.edit("scripts/scale.py", "from common", "import numpy as np\nfrom common")
    found = diff(workspace, code=None)
    (worse,) = (r for r in found["results"] if r["op"] == "scale")
    assert worse["status"] == "regression"
    if worse["what"] == "max_abs":
        assert worse["new"] > worse["old"]


def test_a_mended_op_is_an_improvement(mini: Mini) -> None:
    mini.keep_only("scale")
    mini.edit("scripts/scale.py", "* 3", "* 2")
    mini.command("baseline", "store", "broken")
    mini.edit("scripts/scale.py", "* 2", "* 3")
    found = diff(mini)
    better = [r for r in found["results"] if r["status"] == "improvement"]
    assert [r["op"] for r in better] == ["scale"]


def test_spills_and_fewer_blocks_are_regressions(mini: Mini) -> None:
    """Two builds of one entry: the cubin of forced_spills under both figures."""
    mini.edit("gpuemu.toml", "\n[targets]\n", CONFIG)
    put(mini, "softmax")
    mini.command("baseline", "good")
    exported = mini.root / "good.json"
    mini.command("baseline", "export", "good", "good.json")
    data = json.loads(exported.read_text())
    entry = data["kernels"]["kernel"][0]
    entry["spill_instructions"] = 7
    entry["registers"] = entry["registers"] + 1
    exported.write_text(json.dumps(data))
    mini.command("baseline", "import", "good.json", "--tag", "spilling")
    improved = diff(mini, "--baseline", "spilling")
    (kernel,) = improved["kernels"]
    assert kernel["is_improvement"] and not kernel["is_regression"]
    entry["spill_instructions"] = 0
    entry["families"]["f64"] = 0
    entry["occupancy"]["blocks"] = entry["occupancy"]["blocks"] + 1
    exported.write_text(json.dumps(data))
    mini.command("baseline", "import", "good.json", "--tag", "better")
    worse = diff(mini, "better", code=1)
    (kernel,) = worse["kernels"]
    assert kernel["is_regression"]
    assert "occupancy" in {j["metric"] for j in kernel["judgements"] if j["kind"] == "regression"}
    assert "resident blocks" in mini.command("diff", "better", code=1).stdout


def rename_all(mini: Mini) -> None:
    mini.edit("gpuemu.toml", 'name = "kernel"', 'name = "renamed"')
    mini.edit("gpuemu.toml", 'name = "scale"', 'name = "scaled"')
    mini.edit("gpuemu.toml", 'both = ["scale",', 'both = ["scaled",')


def test_what_is_gone_and_what_is_new_and_fails_are_regressions(workspace: Mini) -> None:
    """Another program and another name."""
    text = (workspace.root / "scripts/scale.py").read_text()
    workspace.write("scripts/other.py", text.replace("* 3", "* 2"))
    workspace.edit("gpuemu.toml", "scripts/scale.py", "scripts/other.py")
    rename_all(workspace)
    found = diff(workspace, code=1)
    changed = {
        r["op"]: (r["status"], r["old"], r["new"])
        for r in found["results"]
        if r["status"] != "unchanged"
    }
    assert changed == {
        "scaled": ("regression", None, "failed"),
        "scale": ("regression", "passed", "gone"),
    }
    shown = workspace.command("diff", code=1).stdout
    assert "verdict passed -> gone" in shown
    workspace.write("scripts/other.py", text)
    diff(workspace, code=1)
    said = workspace.command("ci", "--baseline", "first", code=1).stdout
    assert "regression: scale float32: verdict passed -> gone against first" in said
    assert "gone" not in workspace.command("ci", "scaled", "--baseline", "first").stdout


def test_what_was_judged_on_other_cases_is_named(workspace: Mini) -> None:
    def said(*words: str) -> str:
        return workspace.command("ci", "--baseline", "first", *words, code=None).stdout

    assert "not compared" not in said()
    other = said("--config", "validation.cases=2")
    assert "  not compared, judged on other cases: scale float32" in other


@pytest.mark.parametrize("now", ['execution_mode = "client_side"', 'module = "nowhere.there"'])
def test_an_op_that_has_lost_its_program_is_a_regression(workspace: Mini, now: str) -> None:
    workspace.edit("gpuemu.toml", 'op = "scripts/scale.py:scale"', now)
    said = workspace.command("ci", "--baseline", "first", code=1).stdout
    assert "regression: scale float32: verdict passed -> skipped against first" in said
    assert "regression" in statuses(diff(workspace, code=1))


def test_a_kernel_that_is_gone_is_a_regression(workspace: Mini) -> None:
    workspace.edit("gpuemu.toml", CONFIG, "\n[targets]\n")
    (kernel,) = diff(workspace, code=1)["kernels"]
    assert (kernel["status"], kernel["is_regression"]) == ("missing", True)
    assert "not configured any more" in workspace.command("diff", code=1).stdout


def test_other_architectures_are_not_compared(workspace: Mini) -> None:
    put(workspace, "softmax", "sm_90")
    found = {k["arch"]: k for k in diff(workspace)["kernels"]}
    assert found["sm_90"]["status"] == "new"
    assert "architectures are not compared" in found["sm_90"]["reason"]
    assert found["sm_80"]["status"] == "missing"


def test_a_baseline_is_replaced_whole(workspace: Mini) -> None:
    workspace.edit("gpuemu.toml", 'name = "kernel"', 'name = "renamed"')
    assert "replaced" in workspace.command("baseline", "first").stdout
    assert list(shown(workspace, "first")["kernels"]) == ["renamed"]


def test_the_newest_is_compared_with_by_default(workspace: Mini) -> None:
    workspace.command("baseline", "store", "second")
    assert diff(workspace)["baseline"]["tag"] == "second"
    listed = workspace.command("baseline", "list").stdout.splitlines()
    assert [line.split(":")[0] for line in listed] == ["second", "first"]
    workspace.command("baseline", "delete", "second")
    assert diff(workspace)["baseline"]["tag"] == "first"


def test_export_and_import_round_trip(workspace: Mini, tmp_path: Path) -> None:
    file = tmp_path / "kept.json"
    workspace.command("baseline", "export", "first", str(file))
    before = shown(workspace, "first")
    workspace.command("baseline", "delete", "first")
    workspace.command("baseline", "import", str(file))
    assert shown(workspace, "first") == before
    assert statuses(diff(workspace)) == {"unchanged"}


def test_a_tag_is_never_a_path(mini: Mini) -> None:
    for tag in ("../evil", "a/../b", "..", ".hidden", "a//b", "", "a b", "ä", "x" * 200, "a\nb",
                "-x/"):  # fmt: skip
        done = mini.command("baseline", "store", "--", tag, code=2)
        assert "baseline-bad-tag" in done.stderr
    assert not list(mini.root.parent.rglob("*.baseline"))


def test_a_tag_may_look_like_a_branch(workspace: Mini) -> None:
    workspace.command("baseline", "release/1.2+cu13")
    assert diff(workspace, "release/1.2+cu13")["baseline"]["tag"] == "release/1.2+cu13"
    (folder,) = workspace.root.rglob("baselines")
    assert all(path.is_file() for path in folder.iterdir())


def test_an_unknown_tag_names_the_nearest(workspace: Mini) -> None:
    done = workspace.command("diff", "--baseline", "frist", code=2)
    assert "unknown-baseline" in done.stderr and "'first'" in done.stderr
    assert "unknown-baseline" in workspace.command("baseline", "show", "other", code=2).stderr
    assert "unknown-baseline" in workspace.command("baseline", "delete", "other", code=2).stderr


def test_without_any_baseline_it_says_how_to_make_one(mini: Mini) -> None:
    assert "baseline store" in mini.command("diff", code=2).stderr


HOSTILE = (
    "",
    "[]",
    "{}",
    "[" * 100_000,
    '{"kind": "gpuemu-flow baseline", "format": 99}',
    '{"kind": "gpuemu-flow baseline", "format": 1, "tag": "x", "created": "", "tool": "", '
    '"environment": {}, "kernels": {"k": [{"name": 3}]}, "results": {}}',
    '{"kind": "gpuemu-flow baseline", "format": 1, "tag": "../x", "created": "", "tool": "", '
    '"environment": {}, "kernels": {}, "results": {}}',
    '{"kind": "gpuemu-flow baseline", "format": 1, "tag": "x", "created": "", "tool": "", '
    '"environment": {}, "kernels": {}, "results": {"op": {"float32": {"verdict": "maybe"}}}}',
)


def test_a_hostile_file_is_refused(mini: Mini) -> None:
    for content in HOSTILE:
        mini.write("bad.json", content)
        done = mini.command("baseline", "import", "bad.json", code=2)
        assert "baseline-bad" in done.stderr, content[:200]
    assert "no baselines" in mini.command("baseline", "list").stdout


def test_more_baselines_than_are_to_be_kept_drop_the_oldest(mini: Mini) -> None:
    mini.keep_only("scale")
    mini.edit("gpuemu.toml", "[project]", "[storage]\nmax_baselines = 2\n[project]")
    mini.command("baseline", "first")
    mini.command("baseline", "export", "first", "first.json")
    mini.command("baseline", "second")
    done = mini.command("baseline", "store", "--format", "json", "third")
    assert json.loads(done.stdout)["dropped"] == ["first"]
    done = mini.command("baseline", "import", "first.json")  # old, and yet what is wanted now
    assert "max_baselines" in done.stderr
    assert "second" in done.stderr
    shown = json.loads(mini.command("baseline", "list", "--format", "json").stdout)["baselines"]
    assert [one["tag"] for one in shown] == ["third", "first"]
    assert json.loads(mini.command("baseline", "store", "--format", "json", "third").stdout) == {
        "schema_version": 1, "baseline": shown[0] | {"created": ANY}, "replaced": True,
        "dropped": [],
    }  # fmt: skip


def test_a_damaged_baseline_is_set_aside_and_the_others_stay(workspace: Mini) -> None:
    workspace.command("baseline", "second")
    (path,) = workspace.root.rglob("second.baseline")
    path.write_bytes(path.read_bytes()[:-5])
    assert "second" not in workspace.command("baseline", "list").stdout
    assert diff(workspace)["baseline"]["tag"] == "first"
