"""`--shard I/N` for CI matrices, and the report that merges what the shards found."""

from __future__ import annotations

import copy
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from mini_workspace import Mini

from gpuemu_flow.build.selection import split

SCHEMAS = Path(__file__).parents[2] / "schemas"


def ops(mini: Mini, *words: str) -> set[str]:
    return {result["op"] for result in mini.run(*words)["results"]}


def test_each_op_is_in_one_shard_whatever_is_cached(mini: Mini) -> None:
    mini.without_causes()
    first = [ops(mini, "--shard", f"{n}/2") for n in (1, 2)]
    assert first[0] | first[1] == {"scale", "total", "relu"}
    assert not first[0] & first[1]
    mini.run()  # now all durations are known here, and no other machine sees them
    assert [ops(mini, "--shard", f"{n}/2") for n in (1, 2)] == first
    more = [ops(mini, "--shard", f"{n}/7") for n in range(1, 8)]
    assert sorted(op for part in more for op in part) == ["relu", "scale", "total"]
    assert set() in more, "an empty shard is no failure"


def test_durations_in_a_file_balance_the_shards(mini: Mini) -> None:
    mini.without_causes()
    mini.run()
    written = mini.command("list", "--durations").stdout
    assert set(json.loads(written)["seconds"]) == {"scale", "total", "relu"}
    seconds = {"schema_version": 1, "seconds": {"scale": 1.0, "total": 5, "relu": 3.5}}
    mini.write("gpuemu.durations.json", json.dumps(seconds))
    assert ops(mini, "--shard", "1/2") == {"total"}
    assert ops(mini, "--shard", "2/2") == {"relu", "scale"}
    for broken in ("[]", "{", '{"schema_version": 1, "seconds": {"a": -1}}', "[" * 100_000,
                   '{"schema_version": 1, "seconds": {"a": NaN}}'):  # fmt: skip
        mini.write("gpuemu.durations.json", broken)
        assert "durations-unreadable" in mini.command("run", "--shard", "1/2", code=2).stderr


def test_a_shard_that_does_not_fit_to_others_is_told(mini: Mini) -> None:
    mini.without_causes()
    seconds = {"schema_version": 1, "seconds": {"scale": 1.0, "total": 5, "relu": 3.5}}
    file = mini.write("gpuemu.durations.json", json.dumps(seconds))

    def told(n: int, command: str = "run") -> list[str]:
        done = mini.command(command, "--shard", f"{n}/2", "--format", "json")
        problems = json.loads(done.stdout)["problems"]
        return [p["message"] for p in problems if p["slug"] == "shards-apart"]

    assert told(1) == []
    assert told(2) == []
    file.unlink()
    for command in ("run", "ci"):
        (message,) = told(2, command)
        assert "2/2 is split without gpuemu.durations.json, 1/2 last was not" in message
    assert told(1) == [], "now both are split alike"
    assert told(2) == []
    file.write_text(json.dumps({**seconds, "seconds": {"relu": 9.0, "scale": 1.0, "total": 2.0}}))
    (message,) = told(2)
    assert "with the durations" in message


def test_what_is_no_shard(mini: Mini) -> None:
    apart = "the first number is one from 1 to 2"
    for shard, reason in (
        ("0/2", apart), ("3/2", apart),
        *((text, "is no shard") for text in ("1", "1/", "/2", "-1/2", "1/99999999", "a/b")),
    ):  # fmt: skip
        assert reason in mini.command("run", f"--shard={shard}", code=2).stderr
    assert "is no shard" in mini.command("ci", "--shard=1/2/3", code=2).stderr


def test_a_split_is_whole_stable_and_balanced() -> None:
    names = [f"op{n}" for n in range(500)]
    plain = split(names, {}, 8)
    assert split(reversed(names), {}, 8) == plain
    assert set(plain.values()) == set(range(1, 9))
    more = split([*names, "another"], {}, 8)
    assert {name: more[name] for name in names} == plain, "another op moves none"
    seconds = {name: 1.0 + (n % 17) for n, name in enumerate(names[:400])}
    timed = split(names, seconds, 8)
    loads = [0.0] * 8
    for name in names[:400]:
        loads[timed[name] - 1] += seconds[name]
    assert max(loads) < 1.2 * min(loads)
    assert sorted(timed) == sorted(names)


def sharded(mini: Mini, count: int, *words: str) -> list[int]:
    codes = []
    for n in range(1, count + 1):
        done = mini.command(
            "ci", *words, "--shard", f"{n}/{count}", "-o", f"out/{n}/r.json", code=None
        )
        codes.append(done.returncode)
    return codes


SAME = (
    "exit_code", "verdict", "mode", "project", "total_tests", "passed", "failed", "errors",
    "inconclusive", "skipped", "results", "failures", "cases", "not_validated", "problems",
)  # fmt: skip


@pytest.mark.ci
def test_merged_reports_say_what_one_run_says(mini: Mini) -> None:
    mini.edit("scripts/total.py", "acc +=", "acc =")
    codes = sharded(mini, 4)
    assert sorted(set(codes)) == [0, 1]
    merged = mini.command("report", "--merge", "out", "--format", "json", code=1)
    whole = mini.command("ci", "--format", "json", code=1)
    one, other = json.loads(merged.stdout), json.loads(whole.stdout)
    for report in (one, other):
        report["results"].sort(key=lambda r: (r["op"], r["dtype"]))
        report["cases"].sort(key=lambda c: (c["op"], c["dtype"]))
        for result in report["results"]:
            del result["cached"]
        for failure in report["failures"]:
            del failure["minimized"]  # an id in the shard's own cache; `minimal` is what it shows
    for name in SAME:
        assert one[name] == other[name], name
    assert one["tasks"]["total"] == other["tasks"]["total"]
    assert "shard" not in one
    files = ("a.xml", "a.html", "a.md", "a.sarif", "a.txt")
    mini.command("report", "--merge", "out", *(w for f in files for w in ("-o", f)), code=1)
    for name in files:
        assert "total" in (mini.root / name).read_text()


def test_a_merge_is_whole_or_an_error(mini: Mini) -> None:
    mini.without_causes()
    assert sharded(mini, 3) == [0, 0, 0]
    schema = json.loads((SCHEMAS / "report.schema.json").read_text())
    for n in (1, 2, 3):
        jsonschema.validate(json.loads((mini.root / f"out/{n}/r.json").read_text()), schema)
    paths = [mini.root / f"out/{n}/r.json" for n in (1, 2, 3)]
    texts = [path.read_text() for path in paths]

    def merge(*words: str, code: int = 2) -> str:
        return mini.command("report", *words, code=code).stderr

    merge("--merge", "out", code=0)
    one = ("--merge", str(paths[0]))
    assert "missing: 2/3, 3/3" in merge(*one)
    assert "are both shard 1/3" in merge(*one, *one)
    (mini.root / "empty").mkdir()
    assert "merge-incomplete" in merge("--merge", "empty")
    for damage, reason in (
        (texts[1][:-40], "it is no JSON"),
        ("[" * 100_000, "it is no JSON"),
        ("{}", "it is no report of a shard"),
        (texts[1].replace('"index": 2', '"index": "2"'), "shard.index: '2' is not of type"),
        (texts[1].replace('"index": 2', '"index": 9'), "shard.index: 9 is more than"),
        (texts[1].replace('"format": 1', '"format": 2'), "shard.document.format: 1 was expected"),
        (texts[1].replace('"edges": [', '"edges": [3, '), "shard.document.edges[0]: 3 is not of"),
        (
            texts[1].replace('"timed_out": false', '"timed_out": "no"'),
            "document.timed_out: 'no' is",
        ),
        (texts[1].replace('"duration_s": ', '"duration_s": null, "x": '), "shard.document"),
        (texts[1].replace('"num_no_verdict": 0', '"num_no_verdict": 1e9'), "num_no_verdict"),
    ):
        paths[1].write_text(damage)
        said = merge(*one, "--merge", str(paths[1]), "--merge", str(paths[2]))
        assert "merge-unreadable" in said and "out/2/r.json" in said, (damage[:200], said)
        assert reason in said
    nothing = texts[1].replace('"num_no_verdict": 0', f'"num_no_verdict": {10**9}')
    paths[1].write_text(nothing)
    assert "passed with nothing compared" in merge("--merge", "out")
    other = json.loads(texts[1])
    other["shard"]["split"] = "another"
    paths[1].write_text(json.dumps(other))
    assert "differ in their split" in merge("--merge", "out")


def test_merge_takes_several_reports(mini: Mini) -> None:
    mini.without_causes()
    mini.keep_only("scale")
    assert sharded(mini, 3) == [0, 0, 0]
    (mini.root / "out/3").rename(mini.root / "verify")  # as a command of `report` is called
    shards = ("out/1", "out/2/r.json", "verify")
    for words in (
        ("--merge", *shards, "-o", "whole.json"),
        ("-o", "whole.json", f"--merge={shards[0]}", *shards[1:]),
        ("--merge", *shards[:2], "-o", "whole.json", "--merge", shards[2]),
    ):
        mini.command("report", *words)
        whole = json.loads((mini.root / "whole.json").read_text())
        assert whole["verdict"] == "passed" and "shard" not in whole
        (mini.root / "whole.json").unlink()
    said = mini.command("report", "--merge", *shards[:2], "-o", "x.json", "verfy", code=2).stderr
    assert "`report` has no command 'verfy'" in said
    assert "`-o verfy`" in said and "`--merge verfy`" in said
    assert "'verfy' does not exist" in mini.command("report", "--merge", "verfy", code=2).stderr


@pytest.mark.ci
def test_types_of_all_that_is_read_are_checked(mini: Mini) -> None:
    """A value of another type, wherever it stands, is an error with a place, never a traceback."""
    mini.without_causes()
    mini.edit("scripts/scale.py", "* 3", "* 2")
    mini.keep_only("scale")
    sharded(mini, 1)
    path = mini.root / "out/1/r.json"
    content = json.loads(path.read_text())
    wrong = mini.root / "wrong.json"
    seen = 0
    for at in places(content["shard"]["document"]):
        changed = json.loads(path.read_text())
        node = changed["shard"]["document"]
        for key in at[:-1]:
            node = node[key]
        node[at[-1]] = {"not": ["expected"]}
        wrong.write_text(json.dumps(changed))
        done = mini.command("report", "--merge", "wrong.json", "-o", "x.html", code=None)
        assert done.returncode in (1, 2), (at, done.stderr)
        seen += done.returncode == 2
    assert seen > 40


def places(node: object, before: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """List the paths of all values in JSON; of a list only those in its first element."""
    found: list[tuple[object, ...]] = [before] if before else []
    if isinstance(node, dict):
        for key, value in node.items():
            found += places(value, (*before, key))
    elif isinstance(node, list) and node:
        found += places(node[0], (*before, 0))
    return found


def test_a_shard_in_which_a_verdict_changed_can_be_merged(mini: Mini) -> None:
    mini.without_causes()
    mini.keep_only("scale")
    mini.command("ci")
    mini.edit("scripts/scale.py", "* 3", "* 2")
    mini.command("ci", "--shard", "1/1", "-o", "r.json", code=1)
    merged = mini.command("report", "--merge", "r.json", code=1)
    assert "regression: scale float32: verdict passed -> failed" in merged.stdout


def test_shards_of_other_settings_are_not_merged(mini: Mini) -> None:
    mini.without_causes()
    few = "[profiles.few.validation]\ncases = 2\n"
    mini.edit("gpuemu.toml", '[[ops]]\nname = "scale"', f'{few}[[ops]]\nname = "scale"')
    mini.command("ci", "--shard", "1/2", "-o", "shards/1.json", code=None)
    for words in (["--seed", "7"], ["--config", "validation.cases=2"], ["--profile", "few"],
                  ["--config", "validation.tolerances.float32=1.0"]):  # fmt: skip
        mini.command("ci", "--shard", "2/2", "-o", "shards/2.json", *words, code=None)
        said = mini.command("report", "--merge", "shards", code=2).stderr
        assert "merge-mismatch" in said and "other settings of relu, scale, total" in said, words
    mini.command("ci", "--shard", "2/2", "-o", "shards/2.json", code=None)
    assert "merge-mismatch" not in mini.command("report", "--merge", "shards", code=None).stderr


MORE = """
[[ops]]
name = "shift"
op = "scripts/shift.py:shift"
reference = "scripts/shift_ref.py:reference"
input_names = ["x"]
depends = ["data/*.txt"]
needs = ["lib"]
[ops.schema]
dims = { N = [4] }
inputs.x = { dims = ["N"], generate = "scripts/draw.py:draw" }
output = { dims = ["N"], compare = "scripts/near.py:near" }

[[rules]]
name = "lib"
command = ["sh", "scripts/build.sh"]
inputs = ["scripts/lib.c"]
outputs = ["build/lib.txt"]

[[kernels]]
name = "kern"
source = "scripts/kern.ptx"
"""
PTX = """
    .version 7.0
    .target sm_80
    .address_size 64
    .visible .entry kern(.param .u64 x) { ret; }
    """


@pytest.fixture
def wide(mini: Mini) -> Mini:
    """An op with all that it can name beforehand: helpers, a glob, a rule; and a kernel."""
    mini.without_causes()
    mini.edit("gpuemu.toml", "[targets]", f"{MORE}\n[targets]")
    mini.write("scripts/shift.py", "from common import widen\n\ndef shift(x):\n    return x + 1\n")
    mini.write("scripts/shift_ref.py", "def reference(x):\n    return x + 1\n")
    mini.write(
        "scripts/draw.py",
        "def draw(rng, shape, dtype):\n    return rng.random(shape).astype(dtype)\n",
    )
    near = "def near(a, b, **_):\n    return [] if (a == b).all() else ['no']\n"
    mini.write("scripts/near.py", near)
    mini.write("scripts/build.sh", "od -An -N8 -tx1 /dev/urandom > build/lib.txt\n")
    mini.write("scripts/lib.c", "int one;\n")
    mini.write("scripts/kern.ptx", PTX)
    mini.write("data/a.txt", "1")
    return mini


def part(mini: Mini, *words: str) -> dict[str, dict[str, str]]:
    done = mini.command("ci", "--shard", "1/50", *words, "--format", "json", code=None)
    found: dict[str, dict[str, str]] = json.loads(done.stdout)["shard"]
    return found


@pytest.mark.ci
def test_a_commit_has_the_same_code_on_every_machine(wide: Mini, tmp_path: Path) -> None:
    """Wherever it lies, whatever it was built into, with an interpreter of its own."""
    code = part(wide)["code"]
    assert set(code) == {"scale", "total", "relu", "shift", "lib", "kern"}
    shutil.copytree(wide.root, tmp_path / "far" / "away", ignore=lambda *_: [".gpuemu-cache"])
    other = Mini(tmp_path / "far" / "away")
    other.env.update(OMP_NUM_THREADS="3", LANG="C")
    other.command("run", "lib", "shift", code=None)
    wide.command("run", "lib", code=None)
    assert (other.root / "build/lib.txt").read_text() != (wide.root / "build/lib.txt").read_text()
    (other.root / ".venv/bin").mkdir(parents=True)
    (other.root / ".venv/bin/python").symlink_to(sys.executable)
    own = '[execution]\npython_path = ".venv/bin/python"\n[targets]'
    other.edit("gpuemu.toml", "[targets]", own)
    assert part(other)["code"] == part(wide)["code"] == code


NAMED = {
    "scripts/scale.py": {"scale"},
    "scripts/scale_ref.py": {"scale"},
    "scripts/common.py": {"scale", "shift", "total"},
    "scripts/draw.py": {"shift"},
    "scripts/near.py": {"shift"},
    "data/a.txt": {"shift"},
    "data/b.txt": {"shift"},
    "scripts/lib.c": {"lib", "shift"},
    "scripts/build.sh": {"lib", "shift"},
    "scripts/kern.ptx": {"kern"},
}


def test_a_shard_names_the_code_of_each_task(wide: Mini) -> None:
    before = part(wide)["code"]
    for file, named in NAMED.items():
        path = wide.root / file
        path.write_text((path.read_text() if path.exists() else "") + "\n")
        after = part(wide)["code"]
        assert {name for name in after if after[name] != before[name]} == named, file
        before = after


def test_shards_of_other_code_are_not_merged(wide: Mini) -> None:
    wide.command("ci", "--shard", "1/2", "-o", "shards/1.json", code=None)
    wide.write("scripts/build.sh", "od -An -N8 -tx1 /dev/urandom > build/lib.txt  # again\n")
    wide.command("ci", "--shard", "2/2", "-o", "shards/2.json", code=None)
    said = wide.command("report", "--merge", "shards", code=2).stderr
    assert "merge-mismatch" in said and "other code of lib, shift;" in said, said
    wide.command("ci", "--shard", "1/2", "-o", "shards/1.json", code=None)
    assert "merge" not in wide.command("report", "--merge", "shards", code=None).stderr


@pytest.mark.ci
def test_parts_of_two_broken_commits_make_no_good_whole(mini: Mini) -> None:
    """Each of them fails in another shard, so that those which pass are of both."""
    mini.without_causes()
    splits = {count: split(("scale", "total", "relu"), {}, count) for count in range(2, 30)}
    count, owner = next((c, o) for c, o in splits.items() if o["scale"] != o["relu"])
    scale = (mini.root / "scripts/scale.py").read_text()
    mini.edit("scripts/scale.py", "* 3", "* 2")
    first = sharded(mini, count)
    kept = (mini.root / f"out/{owner['relu']}/r.json").read_text()
    (mini.root / "scripts/scale.py").write_text(scale)
    mini.edit("scripts/relu.py", "x > 0", "x > 1")
    second = sharded(mini, count)
    assert sorted(first) == sorted(second) == [*[0] * (count - 1), 1]
    mini.write(f"out/{owner['relu']}/r.json", kept)
    said = mini.command("report", "--merge", "out", code=2)
    assert "other code of relu, scale" in said.stderr and "PASSED" not in said.stdout


def test_a_result_that_is_gone_or_contradicts_its_cases_is_damage(mini: Mini) -> None:
    mini.without_causes()
    mini.edit("scripts/scale.py", "* 3", "* 2")
    sharded(mini, 1)
    path = mini.root / "out/1/r.json"
    whole = json.loads(path.read_text())

    def merge(change: Callable[[dict[str, list[Any]]], None]) -> str:
        changed = copy.deepcopy(whole)
        change(changed["shard"]["document"])
        path.write_text(json.dumps(changed))
        return mini.command("report", "--merge", "out", code=2).stderr

    def without_result(document: dict[str, list[Any]]) -> None:
        document["results"] = [r for r in document["results"] if r["op"] != "scale"]

    def without_both(document: dict[str, list[Any]]) -> None:
        without_result(document)
        document["cases"] = [case for case in document["cases"] if case[0] != "scale"]

    def said_to_pass(document: dict[str, list[Any]]) -> None:
        for result in document["results"]:
            result["verdict"] = "passed"

    def counted_as_passed(document: dict[str, list[Any]]) -> None:
        said_to_pass(document)
        for result in document["results"]:
            result.update(failed=0, passed=result["cases"])

    assert "there are cases of scale float32, but no result" in merge(without_result)
    assert "the result of compare:scale:float32 is missing" in merge(without_both)
    for change in (said_to_pass, counted_as_passed):
        assert "scale float32 passed, but not all of its cases did" in merge(change)


@pytest.mark.ci
def test_what_words_leave_out_is_not_missing(mini: Mini) -> None:
    mini.without_causes()
    half = '[targets.half]\ntasks = ["total"]\ndtypes = ["float16"]\n'
    mini.edit("gpuemu.toml", "[targets]\n", half)
    mini.edit("gpuemu.toml", 'both = ["scale", "compare:relu:float32"]\n', "")
    for words in (("scale",), ("half",), ("quick",), ("@failed",)):
        sharded(mini, 2, *words)
        assert "merge" not in mini.command("report", "--merge", "out", code=None).stderr, words


@pytest.mark.ci
def test_shards_with_seeds_that_were_drawn_are_merged(mini: Mini) -> None:
    mini.without_causes()
    for n in ("1", "2"):
        words = ["--shard", f"{n}/2", "--seed", "random", "-o", f"shards/{n}.json"]
        mini.command("ci", *words, code=None)
    assert "merge" not in mini.command("report", "--merge", "shards", code=None).stderr
