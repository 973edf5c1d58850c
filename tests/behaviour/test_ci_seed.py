"""Master seeds of ``ci``: drawn per run, told, kept, and good for a repetition."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from typing import Any
from xml.etree import ElementTree

import pytest
from mini_workspace import Mini
from stored_snapshot import history as stored_history

WRONG = ("* 3)", "* 3.5)")


@pytest.fixture
def mini(mini: Mini) -> Mini:
    """A workspace of one op, as seeds are the same for all."""
    mini.keep_only("scale")
    return mini


def seeds(report: dict[str, Any]) -> set[str]:
    return {case["seed_str"] for case in report["cases"]}


def checked(mini: Mini, *arguments: str, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        mini.command("ci", *arguments, "--format", "json", code=code).stdout
    )
    return found


@pytest.mark.parametrize(
    "by", ["option", *(pytest.param(by, marks=pytest.mark.ci) for by in ("file", "zero"))]
)
def test_each_run_has_cases_of_its_own_that_its_seed_repeats(mini: Mini, by: str) -> None:
    words = ("--seed", "random") if by == "option" else ()
    if by != "option":
        config = mini.root / "gpuemu.toml"
        written = '"random"' if by == "file" else "0"
        config.write_text(config.read_text() + f"\n[ci]\nseed = {written}\n")
    first, second = checked(mini, *words), checked(mini, *words)
    assert first["drawn_seed"] != second["drawn_seed"]
    assert seeds(first).isdisjoint(seeds(second))
    assert second["executed"]
    again = checked(mini, "--seed", str(first["drawn_seed"]))
    assert again["drawn_seed"] is None
    assert seeds(again) == seeds(first)


def test_without_a_wish_nothing_is_drawn(mini: Mini) -> None:
    first, second = checked(mini), checked(mini)
    assert (first["drawn_seed"], second["executed"]) == (None, [])
    assert seeds(first) == seeds(second) == seeds(checked(mini, "--seed", "42"))


def test_a_number_in_the_file_is_the_seed_of_ci_and_test_only(mini: Mini) -> None:
    config = mini.root / "gpuemu.toml"
    config.write_text(config.read_text() + "\n[ci]\nseed = 7\n")
    assert seeds(checked(mini)) == seeds(checked(mini, "--seed", "7"))
    assert mini.run()["executed"]


def test_every_format_and_the_history_tell_the_seed(mini: Mini) -> None:
    names = ("r.json", "r.xml", "r.sarif", "r.md", "r.txt", "r.html")
    outputs = [word for name in names for word in ("-o", name)]
    done = mini.command("ci", "--seed", "random", *outputs)
    (seed,) = re.findall(
        r"^seed: (\d+), drawn for this run; --seed \1 repeats it$", done.stdout, re.M
    )
    for name in names:
        assert seed in (mini.root / name).read_text(), name
    found = ElementTree.parse(mini.root / "r.xml").getroot().iter("property")
    assert ("drawn seed", seed) in {(p.get("name"), p.get("value")) for p in found}
    assert str(stored_history(mini)[-1]["drawn_seed"]) == seed
    tested = mini.command("test", "--seed", "random").stdout
    assert re.search(r"^seed: \d+, drawn for this run", tested, re.M)


@pytest.mark.ci
def test_every_failure_can_be_reproduced_in_a_fresh_clone(mini: Mini) -> None:
    mini.edit("scripts/scale.py", *WRONG)
    report = checked(mini, "--seed", "random", code=1)
    lines = [f["reproduce"] for f in report["failures"] if f["op"] == "scale"]
    shutil.rmtree(mini.root / ".gpuemu-cache")
    for line in lines:
        mini.command(*shlex.split(line)[1:], code=1)
    mini.edit("scripts/scale.py", *reversed(WRONG))
    mini.command(*shlex.split(lines[0])[1:], code=0)


@pytest.mark.ci
def test_an_op_that_learned_the_usual_cases_by_heart_fails(mini: Mini) -> None:
    """Memorising: it has the answers to the cases of the file's seed, and to no others."""
    mini.edit(
        "scripts/scale.py",
        "def scale(x):",
        "def scale(x):\n    print(x.tobytes().hex(), file=open('learned', 'a'))",
    )
    config = mini.root / "gpuemu.toml"
    config.write_text(config.read_text() + '\n[sandbox]\nmode = "off"\n')
    checked(mini, "scale")
    learned = (mini.root / "learned").read_text().split()
    assert learned
    (mini.root / "scripts/scale.py").write_text(
        f"LEARNED = {set(learned)!r}\n\ndef scale(x):\n"
        "    return (x + x + x).astype(x.dtype) if x.tobytes().hex() in LEARNED else x - 1\n"
    )
    assert checked(mini, "scale")["verdict"] == "passed"
    assert checked(mini, "scale", "--seed", "random", code=1)["verdict"] == "failed"


@pytest.mark.parametrize("word", ["-1", "dice", "", str(1 << 64)])
def test_other_words_are_refused(mini: Mini, word: str) -> None:
    assert "--seed" in mini.command("ci", "--seed", word, code=2).stderr


def test_another_word_in_the_file_is_an_error(mini: Mini) -> None:
    config = mini.root / "gpuemu.toml"
    config.write_text(config.read_text() + '\n[ci]\nseed = "dice"\n')
    done = mini.command("ci", code=2)
    assert "config-value" in done.stderr and "random" in done.stderr


def test_the_seed_that_test_prints_runs_that_case(mini: Mini) -> None:
    mini.edit("scripts/scale.py", *WRONG)
    printed = mini.command("test", "--op", "scale", code=1).stdout
    seed = re.findall(r"seed: (\d+)", printed)[0]
    again = mini.command("test", "--op", "scale", "--seed", seed, code=1).stdout
    assert "still fails" in again
    assert {seed} == set(re.findall(r"seed (\d+)", again))
    mini.edit("scripts/scale.py", *reversed(WRONG))
    assert "no longer fails" in mini.command("test", "--seed", seed).stdout
