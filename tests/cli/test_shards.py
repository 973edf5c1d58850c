"""`--shard I/N` for CI matrices, and the report that merges what the shards found."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from mini_workspace import Mini

from gpuemu_flow.engine.shards import split

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


@pytest.mark.parametrize(
    "shard", ["0/2", "3/2", "1", "1/", "/2", "-1/2", "1/99999999", "a/b", "1/2/3"]
)
def test_what_is_no_shard(mini: Mini, shard: str) -> None:
    for command in ("run", "ci"):
        assert "is no shard" in mini.command(command, f"--shard={shard}", code=2).stderr


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


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.parametrize(
    "words", [["--seed", "7"], ["--config", "validation.cases=2"], ["--profile", "few"],
              ["--config", "validation.tolerances.float32=1.0"]],
)  # fmt: skip
def test_shards_of_other_settings_are_not_merged(mini: Mini, words: list[str]) -> None:
    mini.without_causes()
    few = "[profiles.few.validation]\ncases = 2\n"
    mini.edit("gpuemu.toml", '[[ops]]\nname = "scale"', f'{few}[[ops]]\nname = "scale"')
    mini.command("ci", "--shard", "1/2", "-o", "shards/1.json", code=None)
    mini.command("ci", "--shard", "2/2", "-o", "shards/2.json", *words, code=None)
    said = mini.command("report", "--merge", "shards", code=2).stderr
    assert "merge-mismatch" in said and "other settings of relu, scale, total" in said
    mini.command("ci", "--shard", "2/2", "-o", "shards/2.json", code=None)
    assert "merge-mismatch" not in mini.command("report", "--merge", "shards", code=None).stderr


def test_shards_with_seeds_that_were_drawn_are_merged(mini: Mini) -> None:
    mini.without_causes()
    for n in ("1", "2"):
        words = ["--shard", f"{n}/2", "--seed", "random", "-o", f"shards/{n}.json"]
        mini.command("ci", *words, code=None)
    assert "merge" not in mini.command("report", "--merge", "shards", code=None).stderr
