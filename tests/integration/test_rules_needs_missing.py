"""Programs that use what a rule makes, and do not wait for it: they get no verdict."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from built_workspace import OUTPUT, make_built
from daemon_workspace import Served
from mini_workspace import Mini

from gpuemu_flow.client import ClientError

NEEDS = 'needs = ["table"]\n'
PLAIN = "def it(x):\n    return (x * 3).astype(x.dtype)\n"
READS = "open('build/factor.txt').read()"
SECOND = """
[[ops]]
name = "other"
op = "ops/other.py:it"
reference = "ops/it_ref.py:it"
input_names = ["x"]
schema = { dims = { N = [3, 8] }, inputs = { x = ["N"] }, output = ["N"] }
"""


@pytest.fixture
def built(tmp_path: Path) -> Mini:
    """A workspace whose op reads the output of a rule, and does not say so."""
    mini = make_built(tmp_path / "built")
    mini.edit("gpuemu.toml", NEEDS, "")
    return mini


def refused(report: dict[str, Any]) -> dict[str, Any]:
    """Return the one problem, once it is sure that no op passed."""
    assert {result["verdict"] for result in report["results"]} == {"error"}
    (problem,) = [p for p in report["problems"] if p["slug"] == "needs-missing"]
    return dict(problem)


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_an_op_that_does_not_wait_gets_no_verdict(built: Mini, jobs: str) -> None:
    problem = refused(built.run("-j", jobs, code=3))
    assert "op of it" in problem["message"]
    assert OUTPUT in problem["message"]
    assert 'needs = ["table"]' in problem["hint"]
    built.write("src/a.txt", "5\n")  # the table is wrong from here on
    for _ in range(2):
        refused(built.run("-j", jobs, code=3))
    assert "1 error" in built.command("ci", "run", code=3).stdout
    assert "needs-missing" in built.command("report").stdout
    built.edit("gpuemu.toml", "input_names", f"{NEEDS}input_names")
    assert built.run(code=1)["results"][0]["verdict"] == "failed"
    built.write("src/a.txt", "1\n")
    assert built.run()["results"][0]["verdict"] == "passed"
    assert built.command("run").stdout.startswith("up to date")


def test_results_from_the_cache_are_refused(built: Mini) -> None:
    built.run(code=3)
    built.command("clean", "it")
    report = built.run(code=3)
    assert "op:it:float32" not in report["executed"]
    refused(report)


def test_a_line_that_goes_is_missed(built: Mini) -> None:
    built.edit("gpuemu.toml", "input_names", f"{NEEDS}input_names")
    built.run()
    built.edit("gpuemu.toml", NEEDS, "")
    refused(built.run(code=3))


def test_a_rule_that_comes_later_counts_for_what_is_current(built: Mini) -> None:
    config = (built.root / "gpuemu.toml").read_text()
    head, _, rest = config.partition("[[rules]]")
    rule, _, op = rest.partition("[[ops]]")
    built.write("gpuemu.toml", f"{head}[[ops]]{op}")
    built.write(OUTPUT, "3")
    assert built.run()["results"][0]["verdict"] == "passed"
    assert built.command("run").stdout.startswith("up to date")
    built.write("gpuemu.toml", f"{head}[[rules]]{rule}[[ops]]{op}")
    assert "needs-missing" in built.command("report").stdout
    report = built.run(code=3)
    assert report["executed"] == ["build:table"]
    refused(report)


def _reference(mini: Mini) -> None:
    mini.write("ops/it.py", PLAIN)
    mini.write("ops/it_ref.py", PLAIN.replace("x * 3", f"x * int({READS})"))


def _generator(mini: Mini) -> None:
    mini.write("ops/it.py", PLAIN)
    mini.write(
        "made.py",
        f"import numpy as np\n\ndef x(rng, shape, dtype):\n"
        f"    return np.full(shape, int({READS}), dtype)\n",
    )
    mini.edit(
        "gpuemu.toml",
        'inputs = { x = ["N"] }',
        'inputs = { x = { dims = ["N"], generate = "made.py:x" } }',
    )


def _compare(mini: Mini) -> None:
    mini.write("ops/it.py", PLAIN)
    body = f"def same(actual, expected, inputs, tolerance):\n    {READS}\n    return []\n"
    mini.write("compare.py", body)
    mini.edit(
        "gpuemu.toml", 'output = ["N"]', 'output = { dims = ["N"], compare = "compare.py:same" }'
    )


def _through_a_link(mini: Mini) -> None:
    (mini.root / "alias.txt").symlink_to(OUTPUT)
    mini.write("ops/it.py", PLAIN.replace("x * 3", "x * int(open('alias.txt').read())"))


def _through_a_linked_folder(mini: Mini) -> None:
    (mini.root / "also").symlink_to("build")
    mini.write("ops/it.py", PLAIN.replace("x * 3", "x * int(open('also/factor.txt').read())"))


def _looks(mini: Mini) -> None:
    exists = "import os\n\nT = 3 if os.path.exists('build/factor.txt') else 3\n\n"
    mini.write("ops/it.py", exists + PLAIN.replace("x * 3", "x * T"))


def _starts_a_program(mini: Mini) -> None:
    cat = (
        "import subprocess\n\nT = subprocess.run(['cat', 'build/factor.txt'], stdout=-1).stdout\n\n"
    )
    mini.write("ops/it.py", cat + PLAIN)


USES: dict[str, tuple[Callable[[Mini], object], str]] = {
    "a reference": (_reference, "reference of it"),
    "a generator": (_generator, "generate of it"),
    "a compare function": (_compare, "compare of it"),
    "an op through a link": (_through_a_link, "op of it"),
    "an op through a linked folder": (_through_a_linked_folder, "op of it"),
    "an op that only looks": (_looks, "op of it"),
    "a program that an op starts": (_starts_a_program, "op of it"),
}


@pytest.mark.parametrize("name", USES)
def test_each_kind_of_use_is_refused(built: Mini, name: str) -> None:
    change, who = USES[name]
    built.write(OUTPUT, "3")
    change(built)
    assert who in refused(built.run(code=3))["message"]
    built.edit("gpuemu.toml", "input_names", f"{NEEDS}input_names")
    assert built.run()["results"][0]["verdict"] == "passed"


def test_a_rule_behind_a_rule_is_waited_for(built: Mini) -> None:
    copy = (
        '[[rules]]\nname = "copy"\ncommand = ["cp", "build/factor.txt", "last/factor.txt"]\n'
        'inputs = ["build/*.txt"]\noutputs = ["last/factor.txt"]\n[[ops]]'
    )
    built.edit("gpuemu.toml", "[[ops]]", copy)
    built.edit("gpuemu.toml", "input_names", 'needs = ["copy"]\ninput_names')
    assert built.run()["results"][0]["verdict"] == "passed"


def test_an_op_beside_it_keeps_its_verdict(built: Mini) -> None:
    """It lists the folder of the outputs, as an interpreter does that looks for modules there."""
    built.write("ops/other.py", f"import os\n\nos.listdir('build')\n\n{PLAIN}")
    (built.root / "build").mkdir()
    config = built.root / "gpuemu.toml"
    config.write_text(config.read_text() + SECOND)
    verdicts = {r["op"]: r["verdict"] for r in built.run(code=3)["results"]}
    assert verdicts == {"it": "error", "other": "passed"}


def test_needs_that_are_there_stand_in_the_line_to_write(built: Mini) -> None:
    free = (
        f'[[rules]]\nname = "free"\ncommand = ["{sys.executable}", "free.py"]\n'
        'inputs = ["free.py"]\noutputs = ["build/free.txt"]\n[[ops]]'
    )
    built.write("free.py", "open('build/free.txt', 'w').close()\n")
    built.edit("gpuemu.toml", "[[ops]]", free)
    built.edit("gpuemu.toml", "input_names", 'needs = ["free"]\ninput_names')
    assert 'needs = ["free", "table"]' in refused(built.run(code=3))["hint"]


def test_fuzz_gives_no_verdict(built: Mini) -> None:
    built.write(OUTPUT, "3")
    for _ in range(2):  # the second time from the cache
        done = built.command("fuzz", "it", "-n", "4", code=3)
        assert "needs-missing" in done.stderr
        assert "passed" not in done.stdout
    built.edit("gpuemu.toml", "input_names", f"{NEEDS}input_names")
    assert "4 passed" in built.command("fuzz", "it", "-n", "4").stdout
    built.edit("gpuemu.toml", NEEDS, "")
    assert "needs-missing" in built.command("fuzz", "it", "-n", "4", code=3).stderr


def test_a_failure_is_not_taken_for_mended(built: Mini) -> None:
    built.edit("gpuemu.toml", "input_names", f"{NEEDS}input_names")
    built.write("src/a.txt", "5\n")
    built.command("fuzz", "it", "-n", "4", code=1)
    (failure, *_) = json.loads(
        built.command("fuzz", "it", "-n", "4", "--format", "json", code=1).stdout
    )["failures"]
    built.edit("gpuemu.toml", NEEDS, "")
    built.write(OUTPUT, "3")
    assert "needs-missing" in built.command("reproduce", str(failure["seed"]), code=3).stderr


def test_the_daemon_gives_no_verdict(unserved: Served) -> None:
    rule = (
        '\n[[rules]]\nname = "table"\ncommand = ["cp", "two.txt", "build/two.txt"]\n'
        'inputs = ["two.txt"]\noutputs = ["build/two.txt"]\n'
    )
    unserved.write("two.txt", "2")
    unserved.write("build/two.txt", "2")
    unserved.write(
        "scripts/double.py",
        "def reference(x):\n    return (x * int(open('build/two.txt').read())).astype(x.dtype)\n\n"
        "def double(x):\n    return (x + x).astype(x.dtype)\n",
    )
    config = unserved.root / "gpuemu.toml"
    config.write_text(config.read_text() + rule)
    unserved.start()
    x = np.ones((2, 3), np.float32)
    with unserved.client() as client:
        for _ in range(2):
            with pytest.raises(ClientError, match=r"build/two\.txt.*needs"):
                client.validate_op("double", {"x": x}, x * 2)
            with pytest.raises(ClientError, match=r"build/two\.txt.*needs"):
                client.fuzz_op("double", seed=1, iterations=2)
