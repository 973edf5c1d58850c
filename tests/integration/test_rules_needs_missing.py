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
from pytest_workspace import Place

from gpuemu_flow.client import ClientError
from gpuemu_flow.report.last_results import last_results

pytestmark = pytest.mark.ci

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
COPY = """
name = "table"
command = ["cp", "two.txt", "build/two.txt"]
inputs = ["two.txt"]
outputs = ["build/two.txt"]
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
    unserved.write("two.txt", "2")
    unserved.write("build/two.txt", "2")
    unserved.write(
        "scripts/double.py",
        "def reference(x):\n    return (x * int(open('build/two.txt').read())).astype(x.dtype)\n\n"
        "def double(x):\n    return (x + x).astype(x.dtype)\n",
    )
    config = unserved.root / "gpuemu.toml"
    config.write_text(f"{config.read_text()}\n[[rules]]\n{COPY}")
    unserved.start()
    x = np.ones((2, 3), np.float32)
    with unserved.client() as client:
        for _ in range(2):
            with pytest.raises(ClientError, match=r"build/two\.txt.*needs"):
                client.validate_op("double", {"x": x}, x * 2)
            with pytest.raises(ClientError, match=r"build/two\.txt.*needs"):
                client.fuzz_op("double", seed=1, iterations=2)


def recorded(mini: Mini) -> str:
    """Record a failure while all is in order; then take the line away, and return the seed."""
    mini.edit("gpuemu.toml", "input_names", f"{NEEDS}input_names")
    mini.write("src/a.txt", "5\n")
    fuzzed = mini.command("fuzz", "it", "-n", "4", "--format", "json", code=1)
    (failure, *_) = json.loads(fuzzed.stdout)["failures"]
    mini.edit("gpuemu.toml", NEEDS, "")
    return str(failure["seed"])


def test_nothing_smaller_is_recorded(built: Mini) -> None:
    seed = recorded(built)
    before = built.command("failures").stdout
    assert "needs-missing" in built.command("minimize", seed, code=3).stderr
    assert built.command("failures").stdout == before


def test_nothing_is_exported(built: Mini) -> None:
    _reference(built)
    seed = recorded(built)
    done = built.command("failures", "export", seed, "--pytest", "-o", "test_it.py", code=3)
    assert "needs-missing" in done.stderr
    assert not (built.root / "test_it.py").exists()


@pytest.mark.parametrize("command", ["mutate", "calibrate"])
def test_nothing_is_measured(built: Mini, command: str) -> None:
    built.write(OUTPUT, "3")
    _reference(built)
    done = built.command(command, "it", code=3)
    assert "needs-missing" in done.stderr
    assert not done.stdout


def test_a_dry_run_announces_what_a_run_will_refuse(built: Mini) -> None:
    built.edit("gpuemu.toml", "input_names", f"{NEEDS}input_names")
    assert built.run()["results"][0]["verdict"] == "passed"
    assert "needs-missing" not in built.command("run", "-n").stderr
    built.edit("gpuemu.toml", NEEDS, "")
    for _ in range(2):
        done = built.command("run", "-n", "--format", "json")
        assert done.stderr.count("needs-missing") == 1
        assert 'needs = ["table"]' in done.stderr
        assert json.loads(done.stdout)["would_run"]
        refused(built.run(code=3))  # and the second time it is known from this run
    built.write("ops/it.py", PLAIN)
    assert "needs-missing" not in built.command("run", "-n").stderr


def without_rule(mini: Mini) -> Callable[[], None]:
    """Have an op pass on a file that no rule makes; return what adds the rule."""
    config = (mini.root / "gpuemu.toml").read_text()
    head, _, rest = config.partition("[[rules]]")
    rule, _, op = rest.partition("[[ops]]")
    mini.write("gpuemu.toml", f"{head}[[ops]]{op}{SECOND}")
    mini.write("ops/other.py", PLAIN)
    mini.write(OUTPUT, "3")
    assert {result["verdict"] for result in mini.run()["results"]} == {"passed"}
    return lambda: mini.edit("gpuemu.toml", "[validation]", f"[[rules]]{rule}[validation]")


def test_a_dry_run_looks_at_what_is_current(built: Mini) -> None:
    without_rule(built)()
    assert "needs-missing" in built.command("run", "it", "-n").stderr
    assert "needs-missing" not in built.command("run", "other", "-n").stderr


def test_editors_show_no_verdict_that_the_last_run_did_not_look_at(built: Mini) -> None:
    add = without_rule(built)
    passed = last_results(built.root.resolve())
    assert [result.verdict.value for result in passed.results["it"]] == ["passed"]
    add()
    built.run("other")
    found = last_results(built.root.resolve())
    assert [result.verdict.value for result in found.results["it"]] == ["error"]
    assert "without waiting for the rule" in found.results["it"][0].reason
    assert [result.verdict.value for result in found.results["other"]] == ["passed"]


def test_the_pytest_plugin_gives_no_verdict(tested: Place) -> None:
    (tested.folder / "build").mkdir()
    for name in ("two.txt", "build/two.txt"):
        (tested.folder / name).write_text("2")
    (tested.folder / "ref.py").write_text(
        "def double(x):\n    return (x * int(open('build/two.txt').read())).astype(x.dtype)\n"
    )
    config = tested.folder / "gpuemu.toml"
    text = config.read_text()
    config.write_text(f"{text}\n[[rules]]\n{COPY}")
    test = """
        @pytest.mark.gpuemu(op="double", cases=2, dtypes=["float32"])
        def test_double(gpuemu_case):
            gpuemu_case.check(gpuemu_case["x"] * 2)
        """
    ran = tested.pytest(test)
    assert ran.counts == {"failed": 2}
    assert "needs-missing" in ran.text
    config.write_text(text)
    assert tested.again("test_ops.py").counts == {"passed": 2}
