"""Options of `gpuemu-flow run` that change which cases there are, what counts, or who is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from mini_workspace import Mini
from stored_snapshot import results

import gpuemu_flow

SCHEMA = Path(gpuemu_flow.__file__).parent / "schemas" / "run.schema.json"


def up_to_date(mini: Mini) -> bool:
    return mini.command("run", code=None).stdout.startswith("up to date")


def figures(report: dict[str, Any]) -> list[tuple[Any, ...]]:
    names = ("op", "dtype", "verdict", "cases", "max_abs", "max_rel", "max_ulp", "tolerance_used")
    return [tuple(result[name] for name in names) for result in report["results"]]


def test_another_seed_does_not_answer_for_the_files_own(mini: Mini) -> None:
    mini.keep_only("scale")
    mini.run()
    assert up_to_date(mini)
    mini.run("--seed", "7")
    assert not up_to_date(mini), "what --seed 7 found was shown as what seed 42 finds"
    assert up_to_date(mini)


def test_seed_zero_draws_new_cases_for_every_run(mini: Mini) -> None:
    mini.keep_only("scale")
    mini.edit("gpuemu.toml", "seed = 42", "seed = 0")
    generated = []
    for _ in range(2):
        assert not up_to_date(mini)
        generated.append(results(mini)["generate:scale:float32"])
    assert generated[0] != generated[1]


def test_narrowed_triggers_never_leave_an_old_verdict_on_a_new_output(mini: Mini) -> None:
    mini.without_causes()
    mini.run("scale")
    mini.edit("scripts/scale.py", "* 3)", "* 4)")
    report = mini.run("--rerun-triggers", "code", "scale", code=1)
    assert report["executed"] == ["op:scale:float32", "compare:scale:float32", "diff:scale"]
    assert report["results"][0]["verdict"] == "failed"


@pytest.mark.parametrize(
    ("edit", "trigger"),
    [
        (("scale", "scripts/scale.py", "* 3)", "* 3 )"), "code"),
        (("relu", "gpuemu.toml", "{ N = [1, 7, 32] }", "{ N = [2, 9, 33] }"), "params"),
    ],
)
def test_each_trigger_alone_lets_its_own_changes_count(
    mini: Mini, edit: tuple[str, str, str, str], trigger: str
) -> None:
    op = edit[0]
    mini.run(op)
    mini.edit(*edit[1:])
    others = ",".join(t for t in ("code", "params", "input", "env") if t != trigger)
    ignored = mini.run("--rerun-triggers", others, op)
    assert ignored["executed"] == []
    assert [p["slug"] for p in ignored["problems"]] == ["ignored-changes"]
    assert mini.run("--rerun-triggers", trigger, op)["executed"] != []


@pytest.mark.ci
def test_the_number_of_jobs_changes_no_result(mini: Mini) -> None:
    one = mini.run("-j", "1")
    first = results(mini)
    many = mini.run("-j", "4", "--force")
    assert len(many["executed"]) == 19
    assert figures(many) == figures(one)
    assert results(mini) == first


NOISY = """
import os, sys
print("loading")
os.write(1, b"raw\\n")
os.system("echo from a shell")
def scale(x):
    print("calling")
    sys.stderr.write("a warning\\n")
    os.write(1, b"raw again\\n")
    return x * 3
"""


def test_standard_output_is_one_json_object_whatever_ops_print(mini: Mini) -> None:
    mini.write("scripts/scale.py", NOISY)
    mini.edit("gpuemu.toml", 'name = "mini"', 'name = "mini"\nversoin = "1"')
    schema = jsonschema.Draft7Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))
    for arguments in (
        ("--dry-run",), ("--explain", "scale"), ("--force", "-j", "2", "scale"), ("generate",),
        ("--fail-fast", "--dtype", "float16", "total"),
    ):  # fmt: skip
        done = mini.command("run", "--format", "json", *arguments, code=None)
        assert done.returncode in (0, 4), arguments
        schema.validate(json.loads(done.stdout))
        assert "calling" not in done.stderr


def test_an_explained_run_keeps_the_reasons_out_of_the_json(mini: Mini) -> None:
    done = mini.command("run", "--explain", "--format", "json", "scale")
    tasks = json.loads(done.stdout)["tasks"]
    assert tasks["ran"] + tasks["restored"] == 5
    assert "never finished" in done.stderr


def test_wrong_usage_leaves_standard_output_empty(mini: Mini) -> None:
    mini.edit("gpuemu.toml", "cases = 4", 'cases = "four"')
    done = mini.command("run", "--format", "json", code=2)
    assert done.stdout == ""
    assert "gpuemu.toml:6: config-type" in done.stderr
