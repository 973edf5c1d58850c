"""`--shard I/N` for CI matrices, and the report that merges what the shards found."""

from __future__ import annotations

import base64
import json
import shutil
import sys
from pathlib import Path

import jsonschema
import pytest
from mini_workspace import Mini

SCHEMAS = Path(__file__).parents[2] / "schemas"


def ops(mini: Mini, *words: str) -> set[str]:
    return {result["op"] for result in mini.run(*words)["results"]}


def test_each_op_is_in_one_shard_whatever_is_cached(mini: Mini) -> None:
    mini.without_causes()
    first = [ops(mini, "--shard", f"{n}/2") for n in (1, 2)]
    assert first[0] | first[1] == {"scale", "total", "relu"}
    assert not first[0] & first[1]
    mini.run()  # now all is cached here, and no other machine sees it
    assert [ops(mini, "--shard", f"{n}/2") for n in (1, 2)] == first
    more = [ops(mini, "--shard", f"{n}/7") for n in range(1, 8)]
    assert sorted(op for part in more for op in part) == ["relu", "scale", "total"]
    assert set() in more, "an empty shard is no failure"
    mini.keep_only("scale")
    alone = [ops(mini, "--shard", f"{n}/2") for n in (1, 2)]
    assert alone == [part & {"scale"} for part in first], "other ops move none"


def test_what_is_no_shard(mini: Mini) -> None:
    apart = "the first number is one from 1 to 2"
    for shard, reason in (
        ("0/2", apart), ("3/2", apart),
        *((text, "is no shard") for text in ("1", "1/", "/2", "-1/2", "1/99999999", "a/b")),
    ):  # fmt: skip
        assert reason in mini.command("run", f"--shard={shard}", code=2).stderr
    assert "is no shard" in mini.command("ci", "--shard=1/2/3", code=2).stderr


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
    assert sorted(set(sharded(mini, 4))) == [0, 1]
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
    assert "shard" not in one
    files = ("a.xml", "a.html", "a.md", "a.sarif", "a.txt")
    mini.command("report", "--merge", "out", *(w for f in files for w in ("-o", f)), code=1)
    for name in files:
        assert "total" in (mini.root / name).read_text()


def test_a_merge_is_whole_or_an_error(mini: Mini) -> None:
    mini.without_causes()
    assert sharded(mini, 3) == [0, 0, 0]
    schema = json.loads((SCHEMAS / "report.schema.json").read_text())
    paths = [mini.root / f"out/{n}/r.json" for n in (1, 2, 3)]
    for path in paths:
        jsonschema.validate(json.loads(path.read_text()), schema)

    def merge(*words: str, code: int = 2) -> str:
        return mini.command("report", *words, code=code).stderr

    merge("--merge", "out", code=0)
    one = ("--merge", str(paths[0]))
    assert "missing: 2/3, 3/3" in merge(*one)
    assert "are both shard 1" in merge(*one, *one)
    (mini.root / "empty").mkdir()
    assert "merge-incomplete" in merge("--merge", "empty")
    text = paths[1].read_text()
    content = json.loads(text)
    report = base64.b64decode(content["shard"]["report"])

    def with_report(data: bytes) -> str:
        shard = {**content["shard"], "report": base64.b64encode(data).decode()}
        return json.dumps({**content, "shard": shard})

    for damage, reason in (
        (text[:-40], "it is no JSON"),
        ("[" * 100_000, "it is no JSON"),
        ("{}", "it is no report of a shard"),
        (text.replace('"index": 2', '"index": "2"'), "shard.index: '2' is not of type"),
        (text.replace('"index": 2', '"index": 9'), "contradict each other"),
        (text.replace('"exit_code": 0', '"exit_code": 1'), "contradict each other"),
        (with_report(report[:-9]), "of another version"),
        (with_report(b"\x80"), "of another version"),
        (with_report(report.replace(b"executed", b"exeunted")), "of another version"),
    ):
        paths[1].write_text(damage)
        said = merge(*one, "--merge", str(paths[1]), "--merge", str(paths[2]))
        assert "merge-unreadable" in said and "out/2/r.json" in said, (damage[:200], said)
        assert reason in said


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


def test_shards_of_other_settings_or_sources_are_not_merged(mini: Mini, tmp_path: Path) -> None:
    mini.without_causes()
    mini.command("ci", "--shard", "1/2", "-o", "shards/1.json", code=None)

    def second(where: Mini, *words: str) -> str:
        out = str(mini.root / "shards/2.json")
        where.command("ci", "--shard", "2/2", "-o", out, *words, code=None)
        return mini.command("report", "--merge", "shards", code=None).stderr

    other = Mini(tmp_path / "far" / "away")
    shutil.copytree(mini.root, other.root, ignore=lambda *_: [".gpuemu-cache", "shards"])
    (other.root / ".venv/bin").mkdir(parents=True)
    (other.root / ".venv/bin/python").symlink_to(sys.executable)
    assert "merge-" not in second(mini)
    other.edit(
        "gpuemu.toml", "[targets]", '[execution]\npython_path = ".venv/bin/python"\n[targets]'
    )
    assert "merge-" not in second(other), "one commit, at another place, by another interpreter"
    for words, name in (
        (("--config", "validation.cases=2"), "sources or settings"),
        (("--require-all",), "--require-all"),
        (("scale",), "words"),
    ):
        said = second(mini, *words)
        assert "merge-mismatch" in said and f"differ in: {name}" in said, said
    mini.edit("scripts/scale.py", "import", "import  # as it was")
    assert "differ in: sources or settings" in second(mini)
