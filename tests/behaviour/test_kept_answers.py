"""Answers of commands that only look: repeated while nothing changed, and true of now."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import pytest
from mini_workspace import Mini

from gpuemu_flow.daemon.files import possible_places
from gpuemu_flow.inputs import plan

STATUS, LIST, EXPLAIN = ("status",), ("list", "--status"), ("explain",)
RUN = ("run", "--format", "json")
CI = ("ci",)


@pytest.fixture
def kept(checked_mini: Mini) -> Mini:
    """A workspace in which each answer is kept."""
    checked_mini.command("run")
    for command in (CI, RUN, STATUS, LIST, EXPLAIN):
        checked_mini.command(*command)
    assert len(answers(checked_mini)) == 5
    return checked_mini


def answers(mini: Mini) -> list[Path]:
    return sorted((mini.root / ".gpuemu-cache").glob("answer-*"))


def mark(mini: Mini) -> None:
    """Change what the kept answers say, so that one that is repeated can be told."""
    for path in answers(mini):
        head, _, body = path.read_text().partition("\n")
        conditions, _, text = body.partition("\n\n")
        body = f"{conditions}\n\n{text.replace('19', '9119')}"
        path.write_text(f"{head.rpartition(' ')[0]} {plan.digest_of(body.encode())}\n{body}")


def test_kept_answers_are_what_the_full_program_says(kept: Mini) -> None:
    first = {command: kept.command(*command).stdout for command in (CI, STATUS, LIST, EXPLAIN)}
    report = kept.run()
    for path in answers(kept):
        path.unlink()
    assert {command: kept.command(*command).stdout for command in first} == first
    again = kept.run()
    assert report.pop("duration_s") > 0 and again.pop("duration_s") > 0
    assert again == report
    mark(kept)
    assert kept.run()["tasks"]["total"] == 9119, "else this file would test the full program"


@pytest.mark.parametrize("command", [CI, RUN, STATUS, LIST, EXPLAIN], ids=" ".join)
def test_no_answer_outlives_a_change(command: tuple[str, ...], kept: Mini) -> None:
    mark(kept)
    assert "9119" in kept.command(*command).stdout
    kept.edit("scripts/scale.py", "* 3)", "* 3.0000002)")
    told = kept.command(*command, code=None).stdout
    assert "9119" not in told
    if command == EXPLAIN:
        assert "op:scale:float32" in told
    elif command == LIST:
        assert "stale" in told
    elif command == STATUS:
        assert "16 current, 3 stale" in told


def test_an_answer_is_for_its_words_and_its_variables_alone(kept: Mini) -> None:
    mark(kept)
    assert "9119" not in kept.command("explain", "op:scale:float32").stdout
    assert "9119" not in kept.command("status", "--config", "validation.cases=4").stdout
    assert "9119" not in kept.command("-C", ".", "status").stdout
    assert "9119" in kept.command("ci").stdout
    kept.env["GITHUB_STEP_SUMMARY"] = str(kept.root / "summary.md")
    assert "9119" not in kept.command("ci").stdout
    assert (kept.root / "summary.md").exists()
    kept.env["NO_COLOR"] = "1"
    assert "9119" not in kept.command("status").stdout
    assert "9119" not in kept.command("ci", "--seed", "random").stdout


@pytest.mark.parametrize("setting", ['seed = "random"', "fuzz_iterations = 3"])
def test_ci_with_cases_of_its_own_is_not_kept(setting: str, checked_mini: Mini) -> None:
    config = checked_mini.root / "gpuemu.toml"
    config.write_text(f"{config.read_text()}\n[ci]\n{setting}\n")
    for _ in range(2):
        checked_mini.command("run")
        checked_mini.command("ci")
    assert answers(checked_mini) == []


def test_ci_alone_makes_the_plan_and_the_history_stays(checked_mini: Mini) -> None:
    history = checked_mini.root / ".gpuemu-cache" / "history.jsonl"
    checked_mini.command("ci")
    length = len(history.read_bytes())
    told = [checked_mini.command("ci").stdout for _ in range(2)]
    assert len(answers(checked_mini)) == 1 and told[0] == told[1]
    assert "PASSED" in told[0] and " ms" not in told[0].splitlines()[-1]
    assert len(history.read_bytes()) == length
    assert "up to date" in checked_mini.command("run").stdout


def test_status_sees_the_cache_grow_and_a_daemon_live(kept: Mini) -> None:
    mark(kept)
    assert "9119 current" in kept.command("status").stdout
    blobs = kept.root / ".gpuemu-cache" / "blobs"
    some = next(blobs.glob("*/*"))
    added = some.with_name("0" * len(some.stem) + some.suffix)
    added.write_bytes(bytes(3_000_000))
    told = json.loads(kept.command("status", "--format", "json").stdout)
    assert "9119" not in kept.command("status").stdout
    assert told["cache"]["blobs_bytes"] > 3_000_000
    mark(kept)
    assert "9119 current" in kept.command("status").stdout
    place = possible_places(kept.root, kept.environment())[0]
    place.folder.mkdir(mode=0o700, parents=True)
    with place.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(str(os.getpid()))
        lock.flush()
        living = kept.command("status").stdout
        assert "daemon stopped" not in living and "9119 current" not in living
    assert "daemon stopped" in kept.command("status").stdout


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes().replace(b"19", b"9119")),
        lambda path: path.write_bytes(path.read_bytes()[:-9]),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"\xff" * 100),
        lambda path: (path.rename(path.with_name("x")), path.symlink_to("x")),
        lambda path: (path.unlink(), os.mkfifo(path)),
        lambda path: (path.unlink(), path.mkdir()),
    ],
    ids=["edited", "torn", "empty", "junk", "link", "pipe", "folder"],
)
def test_a_damaged_answer_is_not_given(damage: object, kept: Mini) -> None:
    before = kept.command("status").stdout
    for path in answers(kept):
        damage(path)  # type: ignore[operator]
    assert kept.command("status").stdout == before


def test_an_answer_whose_run_did_not_pass_or_warned_is_not_kept(kept: Mini) -> None:
    kept.without_causes()
    kept.edit("scripts/scale.py", "* 3)", "* 4)")
    kept.command("run", code=1)
    for path in answers(kept):
        path.unlink()
    for command in (RUN, STATUS, LIST, EXPLAIN):
        kept.command(*command, code=None)
    assert answers(kept) == []


@pytest.mark.ci
def test_answers_do_not_pile_up(kept: Mini) -> None:
    tasks = [
        task["task"]
        for task in json.loads(kept.command("list", "--format", "json").stdout)["tasks"]
    ]
    for name in tasks:
        kept.command("explain", name)
        kept.command("explain", name, "--format", "json")
    assert 0 < len(answers(kept)) <= 32
