"""``ci``, ``test`` and ``report``: from a workspace with planted bugs to files that others read."""

from __future__ import annotations

import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from jsonschema import Draft7Validator
from mini_workspace import Mini, make_mini
from published_schemas import check_junit, check_sarif
from stored_snapshot import history as stored_history

import gpuemu_flow

SCHEMAS = Path(gpuemu_flow.__file__).parent / "schemas"
# Wrong from the fourth element on, and a crash where there are more than six.
PLANTED = {
    "(widen(x) * 3)": "(widen(x) * 3 + (np.arange(x.size) > 2) * 1e-2)",
    "from common import widen\n": "import numpy as np\nfrom common import widen\n",
}


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Mini:
    """A workspace with a wrong and a crashing op, checked once; all files are written."""
    mini = make_mini(tmp_path_factory.mktemp("ci") / "workspace")
    for old, new in PLANTED.items():
        mini.edit("scripts/scale.py", old, new)
    mini.edit("scripts/relu.py", "x = read()", "x = read()\nassert x.size < 7, '<b>]]>'")
    (mini.root / ".git").mkdir()
    done = mini.command(
        "ci", "-o", "out/r.json", "-o", "out/r.xml", "-o", "out/r.sarif", "-o", "out/r.md",
        "-o", "out/r.txt", code=1,
    )  # fmt: skip
    (mini.root / "stdout").write_text(done.stdout)
    return mini


@pytest.fixture
def copy(checked: Mini, tmp_path: Path) -> Mini:
    """The checked workspace, to be changed by one test."""
    shutil.copytree(checked.root, tmp_path / "copy", copy_function=shutil.copy2)
    return Mini(tmp_path / "copy")


def validate(report: dict[str, Any]) -> None:
    schema = json.loads((SCHEMAS / "report.schema.json").read_text())
    Draft7Validator(schema).validate(report)


@pytest.mark.ci
def test_all_files_tell_the_same(checked: Mini) -> None:
    out = checked.root / "out"
    report = json.loads((out / "r.json").read_text())
    validate(report)
    assert (report["verdict"], report["exit_code"], report["total_tests"]) == ("failed", 1, 16)
    failing = {f["name"] for f in report["failures"]}
    assert {f["op"] for f in report["failures"]} == {"scale", "relu"}
    tests = check_junit((out / "r.xml").read_text())
    broken = {c.get("name") for c in tests.iter("testcase") if list(c)}
    kinds = {f["name"]: f["kind"] for f in report["failures"]}
    told = {name for name in failing if kinds[name] != "ExecutionError"}
    assert told < broken < failing  # cases that end with one exception are one test there
    folded = len(failing) - len(broken)
    assert int(tests.get("tests", 0)) == report["total_tests"] - folded
    wrong = next(f for f in report["failures"] if f["op"] == "scale")
    assert (wrong["file"], wrong["line"]) == ("scripts/scale.py", 4)
    assert wrong["seed_str"] == str(wrong["seed"])
    assert wrong["id"]
    sarif = check_sarif((out / "r.sarif").read_text())
    lines = {
        r["properties"]["op"]: r["locations"][0]["physicalLocation"]["region"]["startLine"]
        for r in sarif
    }
    assert lines == {"scale": 4, "relu": 6}  # where it raises
    assert "| `scale` | float32 | ToleranceExceeded |" in (out / "r.md").read_text()
    text = (out / "r.txt").read_text()
    assert text == (checked.root / "stdout").read_text()
    assert f"FAILED: {report['passed']} passed, {report['failed']} failed" in text


def test_the_same_with_json_on_standard_output_and_nothing_runs_again(checked: Mini) -> None:
    # Crashes are tried again, everything else is current.
    report = json.loads(checked.command("ci", "scale", "total", "--format", "json", code=1).stdout)
    validate(report)
    assert report["executed"] == []
    assert report["mode"] == "scale total"
    assert {r["op"] for r in report["results"]} == {"scale", "total"}


def test_a_format_that_goes_to_a_file_leaves_text_to_read(checked: Mini) -> None:
    done = checked.command("ci", "total", "--format", "junit", "--output", "out/results.out")
    assert done.stdout.splitlines()[-1].startswith("PASSED: 8 passed")
    assert ElementTree.parse(checked.root / "out/results.out").getroot().tag == "testsuites"


def test_github_is_told(copy: Mini) -> None:
    summary = copy.root / "summary.md"
    summary.write_text("before\n")
    copy.env = {
        "GITHUB_ACTIONS": "true",
        "GITHUB_STEP_SUMMARY": str(summary),
        "GITHUB_WORKSPACE": str(copy.root.parent),
    }
    done = copy.command("ci", "scale", "--format", "json", code=1)
    json.loads(done.stdout)  # nothing else on it
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("::")]
    assert line.startswith("::error file=copy/scripts/scale.py,line=4,title=gpuemu-flow%3A scale")
    assert summary.read_text().startswith("before\n\n<!-- gpuemu-flow report -->")


def test_quick_checks_the_quick_dtypes_and_names_what_it_leaves_out(copy: Mini) -> None:
    config = copy.root / "gpuemu.toml"
    config.write_text(config.read_text() + '\n[ci]\nquick_dtypes = ["float16"]\n')
    for arguments in (("ci", "quick"), ("ci", "run", "--quick"), ("test", "--quick")):
        report = json.loads(copy.command(*arguments, "--format", "json").stdout)
        validate(report)
        verdicts = {(r["op"], r["dtype"]): r["verdict"] for r in report["results"]}
        assert verdicts == {
            ("total", "float16"): "passed",
            ("scale", "float32"): "skipped",
            ("relu", "float32"): "skipped",
        }
        assert "float16 only" in report["results"][1]["reason"]
    nothing = copy.command("test", "--quick", "--op", "scale", code=4)
    assert "[SKIP] scale float32: not in the quick run" in nothing.stdout
    assert "NOTHING VALIDATED" in nothing.stdout


def hang(mini: Mini) -> None:
    """Make an op so slow that a run which waited for it would outlast every limit of the tests."""
    mini.edit(
        "scripts/scale.py", "def scale(x):", "import time\ndef scale(x):\n    time.sleep(7e3)"
    )
    mini.edit("gpuemu.toml", 'name = "scale"', 'name = "scale"\ntimeout = 7200')


def test_what_the_time_limit_cuts_off_is_named_and_no_success(mini: Mini) -> None:
    hang(mini)
    config = mini.root / "gpuemu.toml"
    config.write_text(config.read_text() + "\n[ci]\nthorough_timeout = 2\nparallel_jobs = 1\n")
    done = mini.command("ci", "--format", "json", "--parallel", "2", "thorough", code=None)
    report = json.loads(done.stdout)
    validate(report)
    assert report["timed_out"]
    assert not report["interrupted"]
    cut = [r for r in report["results"] if r["op"] == "scale"]
    assert [(r["verdict"], r["cases"]) for r in cut] == [("skipped", 0)]
    assert "ci.thorough_timeout, 2 s" in cut[0]["reason"]
    assert [p["slug"] for p in report["problems"]] == ["ci-time-limit"]
    assert report["failed"] == report["errors"] == 0
    assert (report["verdict"], report["exit_code"], done.returncode) == ("timed out", 124, 124)
    first = report["not_validated"][0]
    assert (first["what"], first["absence"]) == ("scale float32", "cut off")


def test_a_run_that_was_cut_off_says_so_in_every_format(mini: Mini) -> None:
    hang(mini)
    config = mini.root / "gpuemu.toml"
    config.write_text(config.read_text() + "\n[ci]\nthorough_timeout = 1\nparallel_jobs = 1\n")
    names = ["results.xml", "r.md", "r.html", "r.sarif", "r.txt"]
    done = mini.command("ci", *(word for name in names for word in ("-o", name)), code=124)
    assert done.stdout.startswith("TIMED OUT: ")
    assert "cut off by the time limit: " in done.stdout.splitlines()[0]
    for name in names:
        text = (mini.root / name).read_text()
        assert "scale" in text
        assert "timed out" in text.lower() or name == "results.xml"
        if name == "results.xml":
            assert 'errors="0"' not in text.splitlines()[1]


def test_require_all_is_red_where_something_got_no_verdict(mini: Mini) -> None:
    assert mini.command("ci", "--require-all").returncode == 0
    config = mini.root / "gpuemu.toml"
    config.write_text(
        config.read_text()
        + '\n[[ops]]\nname = "elsewhere"\nreference = "scripts/total_ref.py"\ninput_names = ["x"]\n'
    )
    green = mini.command("ci")
    assert "elsewhere float32" in green.stdout.splitlines()[0]
    red = mini.command("ci", "--require-all", "-o", "r.json", "-o", "r.xml", code=4)
    assert red.stdout.startswith("NOT ALL VALIDATED: ")
    report = json.loads((mini.root / "r.json").read_text())
    validate(report)
    assert report["verdict"] == "not all validated"
    assert report["not_validated"][0]["absence"] == "unable"
    assert "<error" in (mini.root / "r.xml").read_text()
    mini.command("ci", "total", "--require-all")
    mini.command("ci", "--require-all", "--allow-empty", code=2)


def test_regressions_against_a_baseline_fail(copy: Mini) -> None:
    copy.command("baseline", "store", "good", code=None)
    clean = copy.command("ci", "total", "--baseline", "good")
    assert "against baseline good: nothing got worse" in clean.stdout
    copy.edit("scripts/total.py", "acc += ", "acc += np.float32(1.0000002) * ")
    since = copy.command("ci", "total", "--fail-on-regression", code=1)
    assert re.search(
        r"^regression: total float32: max_abs .* since the last run$", since.stdout, re.M
    )
    report = json.loads(
        copy.command("ci", "total", "--baseline", "good", "--format", "json", code=1).stdout
    )
    validate(report)
    assert report["baseline"]["baseline"]["tag"] == "good"
    assert any(s.startswith("total float32: ") for s in report["regressions"])
    missing = [r for r in report["baseline"]["results"] if r["status"] == "missing"]
    assert missing == [], "what was not asked for is not missing"
    assert report["failed"] == 0, "a regression that no verdict shows"
    copy.command("ci", "total", "--baseline", "good", "--no-fail-on-regression")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ci", "scael"], "did you mean 'scale'?"),
        (["ci", "--baseline", "none"], "unknown-baseline"),
        (["ci", "-o", "gpuemu.toml/x.json"], "report-not-writable"),
        (["ci", "--quick", "thorough"], "choose one"),
        (["ci", "quick", "thorough"], "choose one"),
        (["ci", "thorough", "scale"], "thorough means everything"),
        (["ci", "--parallel", "-1"], "--parallel"),
        (["ci", "--format", "pdf"], "--format"),
        (["test", "--op", "nothing"], "unknown-task"),
        (["test", "--quick", "--thorough"], "choose one"),
        (["report", "--sign", "nokey"], "--sign needs a file"),
    ],
)
def test_bad_requests_are_usage_errors_before_any_work(
    mini: Mini, arguments: list[str], words: str
) -> None:
    shutil.rmtree(mini.root / ".gpuemu-cache")
    done = mini.command(*arguments, code=2)
    assert words in done.stderr
    assert done.stdout == ""
    assert not list((mini.root / ".gpuemu-cache").glob("blobs/*/*"))


@pytest.mark.parametrize("word", ["json", "junit", "sarif", "markdown", "html", "text"])
def test_standard_output_holds_the_report_and_nothing_else(checked: Mini, word: str) -> None:
    out = checked.command("ci", "scale", "--format", word, code=1).stdout
    begins = {
        "json": "{", "junit": "<?xml", "sarif": "{", "html": "<!doctype html>",
        "markdown": "<!-- gpuemu-flow report -->\n", "text": "op ",
    }  # fmt: skip
    assert out.lower().startswith(begins[word])
    if word in ("json", "sarif"):
        json.loads(out)
    elif word == "junit":
        ElementTree.fromstring(out)


def test_a_crash_without_a_wrong_value_is_3(copy: Mini) -> None:
    done = copy.command("ci", "relu", "-o", "out/crash.json", code=3)
    assert done.stdout.splitlines()[-1].startswith("ERROR: ")
    report = json.loads((copy.root / "out/crash.json").read_text())
    assert (report["exit_code"], report["failed"]) == (3, 0)
    assert report["errors"] > 0


def test_an_interrupted_check_writes_its_files_and_is_no_success(mini: Mini) -> None:
    begun = mini.root / "begun"
    mini.unfence()
    mini.edit(
        "scripts/scale.py",
        "def scale(x):",
        f"import pathlib, time\n\ndef scale(x):\n    pathlib.Path({str(begun)!r}).touch()\n"
        "    time.sleep(1000)",
    )
    mini.command("ci", "total")
    process = mini.popen("ci", "-o", "r.json", "-o", "r.xml", "-o", "r.md", "--parallel", "1")
    while not begun.exists():
        assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 130, out + err
    report = json.loads((mini.root / "r.json").read_text())
    validate(report)
    assert report["interrupted"]
    assert (report["verdict"], report["exit_code"]) == ("interrupted", 130)
    kept = {r["dtype"]: r["verdict"] for r in report["results"] if r["op"] == "total"}
    assert kept == {"float32": "passed", "float16": "passed"}
    assert {r["verdict"] for r in report["results"] if r["op"] == "scale"} <= {"skipped"}
    ElementTree.parse(mini.root / "r.xml")
    assert "interrupted" in (mini.root / "r.md").read_text()


def test_nothing_validated_is_no_success(mini: Mini) -> None:
    text = (mini.root / "gpuemu.toml").read_text()
    (mini.root / "gpuemu.toml").write_text(text.partition("[[ops]]")[0])
    assert "NOTHING VALIDATED: nothing checked" in mini.command("ci", code=4).stdout
    mini.command("ci", "--allow-empty")


def test_test_prints_lines_that_editors_read(checked: Mini) -> None:
    done = checked.command("test", "--op", "scale", "--op", "total", code=1)
    matcher = re.compile(r"^\[FAIL\]\s+(\S+)\s+\(seed:\s*(\d+)\):\s+(.+)$", re.MULTILINE)
    found = matcher.findall(done.stdout)
    assert {op for op, _, _ in found} == {"scale"}
    known = {
        f["seed_str"] for f in json.loads((checked.root / "out/r.json").read_text())["failures"]
    }
    assert {seed for _, seed, _ in found} <= known
    assert "[PASS] total float16: 4/4 cases" in done.stdout
    assert not [x for x in done.stdout.splitlines() if "total" in x and re.search("FAIL|failed", x)]


def test_another_seed_makes_other_cases(copy: Mini) -> None:
    done = copy.command("test", "--seed", "1", "--op", "scale", "--format", "json", code=1)
    known = json.loads((copy.root / "out/r.json").read_text())["cases"]
    seeds = {case["seed"] for case in json.loads(done.stdout)["cases"]}
    assert len(seeds) == 4
    assert seeds.isdisjoint({case["seed"] for case in known})


def test_report_says_what_the_last_runs_found_and_what_changed_since(copy: Mini) -> None:
    def report(*arguments: str, code: int = 0) -> dict[str, Any]:
        done = copy.command("report", "--format", "json", *arguments, code=code)
        found = json.loads(done.stdout)
        validate(found)
        return dict(found)

    first = report()
    assert first["executed"] == []
    assert {(r["op"], r["verdict"]) for r in first["results"]} == {
        ("scale", "failed"), ("total", "passed"), ("relu", "error"),
    }  # fmt: skip
    assert first["problems"] == [], "crashes are tried again, but nothing changed"
    copy.edit("scripts/total.py", "def total", "# changed\n\ndef total")
    edited = report()
    assert [p["slug"] for p in edited["problems"]] == ["report-out-of-date"]
    after = {r["op"]: r for r in edited["results"]}
    assert after["total"]["verdict"] == "skipped"
    assert after["total"]["reason"] == "changed since it was checked"
    assert after["scale"]["reason"] == ""
    old = report("--since-hours", "0.0000001", code=4)
    assert {r["verdict"] for r in old["results"]} == {"skipped"}
    assert not any(v for r in old["results"] for v in r.values() if isinstance(v, (int, float)))
    assert {r["reason"] for r in old["results"]} == {
        "not checked in the last 1e-07 hours", "changed since it was checked",
    }  # fmt: skip
    assert {r["op"] for r in old["recorded"]} == set()
    assert {r["verdict"] for r in report("--since-hours", "5")["results"]} > {"failed"}


def test_a_report_is_signed_shown_and_verified(copy: Mini) -> None:
    pytest.importorskip("cryptography", reason="the extra `sign` is not installed")
    browser = copy.write("browser", '#!/bin/sh\necho "$1" > opened\n')
    browser.chmod(0o755)
    copy.env = {"BROWSER": f"{browser} %s"}
    assert "private key key" in copy.command("report", "keygen", "-o", "key").stdout
    copy.command("report", "keygen", "-o", "key", code=2)
    files = ("-o", "r.html", "-o", "r.xml")
    done = copy.command("report", "--sign", "key", "--open", *files)
    assert done.stdout == ""
    opened = (copy.root / "opened").read_text().strip()
    assert opened == (copy.root / "r.html").resolve().as_uri()
    for name in ("r.html", "r.xml"):
        said = copy.command("report", "verify", name, "--pubkey", "key.pub").stdout
        assert said.startswith(f"{name}: signed by ")
    page = copy.root / "r.html"
    page.write_text(page.read_text().replace("failed", "passed", 1))
    done = copy.command("report", "verify", "r.html", "--pubkey", "key.pub", code=1)
    assert "sign-does-not-hold" in done.stderr


def test_pictures_agree_with_the_verdicts_and_end_with_their_time(
    copy: Mini, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpuemu_flow.build.workspace import Workspace
    from gpuemu_flow.report.pictures import NOT_DRAWN, with_pictures
    from gpuemu_flow.report.reporting import ReportQuery, current

    monkeypatch.chdir(copy.root)
    workspace = Workspace()
    report = current(workspace, ReportQuery())
    hurried = with_pictures(workspace, report, 0.0)
    assert {p.note for k, p in hurried.pictures.items() if k[0] == "scale"} == {NOT_DRAWN}
    drawn = with_pictures(workspace, report)
    (failure,) = [f for f in report.representatives() if f.op == "scale"]
    picture = drawn.pictures[report.key(failure)]
    stats = failure.result.stats
    assert (picture.elements, picture.failing) == (stats.count, stats.num_exceeding)
    minimal = drawn.run.minimal_of(failure)
    assert minimal is not None and minimal.says.startswith("expected ")
    (note,) = {p.note for k, p in drawn.pictures.items() if k[0] == "relu"}
    assert "ended in an error" in note
    workspace.cache.close()


def test_history_grows_with_the_runs_that_ran_something(copy: Mini) -> None:
    before = len(stored_history(copy))
    copy.command("run", "total")
    assert len(stored_history(copy)) == before, "nothing ran"
    copy.edit("scripts/total.py", "def total", "# changed\n\ndef total")
    copy.command("run", "total")
    assert len(stored_history(copy)) == before + 1
