"""What a failure shows first, the same in every report: inputs and values, place, command."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from xml.etree import ElementTree

import pytest
from many_ops import Op, make_ops
from mini_workspace import Mini, make_mini

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.fuzz.failures import list_failures

FIRST = re.compile(r"x = \[\S+, \S+, \S+, \S+\]  expected \S+  got \S+")
PLACE = "at output[3], scripts/scale.py:3"


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Mini:
    """A workspace whose op is wrong at the fourth element, after one `ci` with all reports."""
    mini = make_mini(tmp_path_factory.mktemp("shown") / "workspace")
    mini.keep_only("scale")
    mini.without_causes()
    mini.edit(
        "scripts/scale.py", "return (widen(x) * 3).astype(x.dtype)",
        "y = widen(x) * 3\n            y[3:4] += x[3:4]\n            return y.astype(x.dtype)",
    )  # fmt: skip
    mini.edit("scripts/scale.py", "            y", "    y")
    mini.edit("scripts/scale.py", "            return", "    return")
    mini.run(code=1)
    shrink_smallest(mini)
    for name in ("a.xml", "a.md", "a.html", "a.sarif", "a.json"):
        mini.command("report", "-o", name, code=None)
    return mini


def shrink_smallest(mini: Mini) -> None:
    """Shrink the smallest failure: a run does it in a second, if the machine is not busy."""
    listed = json.loads(mini.command("failures", "--format", "json").stdout)["failures"]
    smallest = min(listed, key=lambda one: (one["shape"], one["seed"]))
    mini.command("minimize", smallest["id"])


def lines_of(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines()]


def holds_the_block(text: str, command: str = "reproduce: gpuemu-flow reproduce ") -> None:
    lines = lines_of(text)
    at = next(n for n, line in enumerate(lines) if FIRST.fullmatch(line))
    assert lines[at + 1] == PLACE and lines[at + 2].startswith(command), lines[at : at + 3]


def test_run_failures_reproduce_and_minimize_begin_alike(failing: Mini) -> None:
    holds_the_block(failing.command("run", code=1).stdout)
    listed = json.loads(failing.command("failures", "--format", "json").stdout)["failures"]
    original = next(one for one in listed if one["minimized"])
    holds_the_block(failing.command("failures", "show", original["id"]).stdout)
    holds_the_block(failing.command("reproduce", original["id"], code=1).stdout)
    holds_the_block(failing.command("minimize", original["id"]).stdout)
    shown = json.loads(
        failing.command("failures", "show", original["id"], "--format", "json").stdout
    )
    minimal = shown["failures"][0]["minimal"]
    assert minimal["inputs"]["x"]["values"] == [0, 0, 0, 1]
    assert (minimal["expected"], minimal["actual"]) == (3, 4)


def test_the_command_shown_runs_the_case_shown(failing: Mini) -> None:
    text = failing.command("run", code=1).stdout
    shown = FIRST.search(text)
    commands = dict(re.findall(r"(reproduce|unshrunk): gpuemu-flow (.+)", text))
    again = failing.command(*shlex.split(commands["reproduce"]), code=1).stdout
    assert shown is not None and shown[0] in again
    drawn = failing.command(*shlex.split(commands["unshrunk"]), code=1).stdout
    assert "still fails" in drawn and "--case" in commands["unshrunk"]


MISTAKES = {
    "in_place": (Op(op="x *= 2\nreturn x"), '`mutates = ["x"]` says that it may'),
    "no_return": (Op(op="x *= 2"), 'name the input that the op writes to: `mutates = ["x"]`'),
    "widened": (Op(op="return x * np.float64(2)"), "end with `.astype(x.dtype)`"),
    "on_a_gpu": (Op(op="return x.cuda() * 2"), "the function gets arrays of numpy"),
    "beyond": (
        Op(
            "x, i",
            "return x[i]",
            "return x[i]",
            'dims = { N = [5, 12] }\n[ops.schema.inputs]\nx = ["N"]\n'
            'i = { dims = ["N"], dtype = "int64", range = [20, 30] }',
        ),
        'kind = "indices", of = "x"',
    ),
    "other_name": (
        Op(text="def op(y, z):\n    return y * z\n"),
        "op(y, z) does not take the inputs x\n    at ops/other_name.py:1\n",
    ),
}


@pytest.mark.ci
def test_usual_mistakes_are_told_their_mend(tmp_path: Path) -> None:
    mini = make_ops(tmp_path, {name: op for name, (op, _) in MISTAKES.items()}, "cases = 2")
    text = mini.command("run", "--no-confirm", code=None).stdout
    told = dict(re.findall(r"^(?:failed|error) (\w+):(.*?)\n\n", text, re.DOTALL | re.MULTILINE))
    for name, (_, mend) in MISTAKES.items():
        assert mend in told[name], told[name]
    for word, mend in (("fp8", "'float8_e4m3fn'"), ("int4", 'kind = "packed"')):
        assert mend in mini.command("run", "--dtype", word, code=2).stderr


@pytest.mark.ci
def test_one_error_in_every_case_ends_the_search(tmp_path: Path) -> None:
    ops = {
        "lacks": Op(op="import nothere"),
        "crashes": Op(op="import os; os.kill(os.getpid(), 11)"),
    }
    mini = make_ops(tmp_path, ops, "cases = 4")
    text = mini.command("fuzz", "-n", "200", code=3).stdout
    assert text.count("one and the same error in every case after 16 of 200 cases") == 2
    lines = lines_of(text)
    at = lines.index("the op raises ModuleNotFoundError: No module named 'nothere'")
    assert lines[at - 1] == "error ExecutionError in 16 cases", "no inputs: they do not matter"


def test_fuzz_begins_alike(failing: Mini) -> None:
    words = ("fuzz", "scale", "-n", "20", "--no-confirm", "--minimize")
    text = failing.command(*words, code=1).stdout
    holds_the_block(text)
    assert len(FIRST.findall(text)) == 1, "failures with equal minima are one"


def test_reports_begin_alike(failing: Mini) -> None:
    read = {path.suffix: path.read_text() for path in failing.root.glob("a.*")}
    holds_the_block(read[".md"])
    bodies = [e.text or "" for e in ElementTree.fromstring(read[".xml"]).iter("failure")]
    assert bodies
    for body in bodies:
        holds_the_block(body)
    first = FIRST.search(read[".html"])
    assert first is not None and first.start() < read[".html"].index("<dt>Strategy")
    assert read[".html"].count('" open>') == 1, "the first failure is unfolded"
    assert "cases</li>" in read[".html"]
    report = json.loads(read[".json"])
    assert any("minimal" in failure for failure in report["failures"])


def test_what_another_code_failed_on_is_not_shown(failing: Mini, tmp_path: Path) -> None:
    """A record of the same case has a shrunk one, from before the edit."""
    mini = make_mini(tmp_path / "workspace")
    mini.keep_only("scale")
    mini.without_causes()
    mini.edit("scripts/scale.py", "* 3", "* 3.5")
    mini.run(code=1)
    shrink_smallest(mini)
    assert any(one.minimized for one in list_failures(Workspace(mini.root)))
    mini.edit("scripts/scale.py", "* 3.5", "* 4")
    text = mini.command("run", code=1).stdout
    (expected, got), *_ = re.findall(r"expected (\S+)  got (\S+)", text)
    assert float(got) / float(expected) == pytest.approx(4 / 3), text


def test_an_exception_is_told_once_at_its_line(tmp_path: Path) -> None:
    mini = make_mini(tmp_path / "workspace")
    mini.keep_only("scale")
    mini.edit("scripts/scale.py", "return (widen", "1 / 0\n    return (widen")
    mini.command("ci", "-o", "a.xml", "-o", "a.sarif", "--no-confirm", code=3)
    (error,) = ElementTree.fromstring((mini.root / "a.xml").read_text()).iter("error")
    assert "(in 4 cases)" in error.attrib["message"]
    said = lines_of(error.text or "")
    assert said[0].endswith("the op raises ZeroDivisionError: division by zero")
    assert said[1] == "at scripts/scale.py:4"
    (result,) = json.loads((mini.root / "a.sarif").read_text())["runs"][0]["results"]
    region = result["locations"][0]["physicalLocation"]["region"]
    assert region["startLine"] == 4, "the line that raised, not that of the op"
