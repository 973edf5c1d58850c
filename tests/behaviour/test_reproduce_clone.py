"""A line that a run printed works where the failure is not recorded: in a fresh clone."""

from __future__ import annotations

import json
import shlex
import shutil

import pytest
from mini_workspace import Mini


@pytest.fixture
def mini(mini: Mini) -> Mini:
    """The op that these tests are about, alone."""
    mini.keep_only("scale")
    mini.without_causes()
    return mini


def forget(mini: Mini) -> None:
    """As a clone has it: the files that are in version control, and nothing that was found."""
    shutil.rmtree(mini.root / ".gpuemu-cache")


def words(line: str) -> list[str]:
    return shlex.split(line)[1:]


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--seed", "99"),
        pytest.param(("fuzz", "scale", "-n", "4", "--seed", "5"), marks=pytest.mark.ci),
    ],
    ids=["run", "fuzz"],
)
def test_what_was_printed(mini: Mini, arguments: tuple[str, ...]) -> None:
    mini.edit("scripts/scale.py", "* 3)", "* 3.5)")
    report = json.loads(mini.command(*arguments, "--format", "json", code=1).stdout)
    failures = [f for f in report["failures"] if f["op"] == "scale"]
    lines = {failure["reproduce"]: failure["dtype"] for failure in failures}
    assert lines
    forget(mini)
    for line, dtype in list(lines.items())[:2]:
        (again,) = _json(mini, words(line), 1)
        assert again["still_fails"]
        assert again["failure"]["dtype"] == dtype
        assert again["failure"]["reproduce"] == line
    mini.edit("scripts/scale.py", "* 3.5)", "* 3)")
    assert not _json(mini, words(line), 0)[0]["still_fails"]


def _json(mini: Mini, arguments: list[str], code: int) -> list[dict[str, object]]:
    found = json.loads(mini.command(*arguments, "--format", "json", code=code).stdout)
    return list(found.get("reproductions", [found]))


@pytest.mark.ci
def test_a_seed_alone_is_looked_for_in_every_dtype(mini: Mini) -> None:
    mini.edit("scripts/scale.py", "* 3)", "* 3.5)")
    failure = mini.run("scale", code=1)["failures"][0]
    forget(mini)
    again = _json(mini, ["reproduce", failure["seed_str"], "--op", "scale"], 1)
    assert failure["dtype"] in {one["failure"]["dtype"] for one in again}  # type: ignore[index]
    (one,) = _json(
        mini, ["reproduce", failure["seed_str"], "--op", "scale", "--dtype", failure["dtype"]], 1
    )
    assert one["failure"]["shape"] == failure["shape"]  # type: ignore[index]


def test_words_that_name_no_case(mini: Mini) -> None:
    for text in (
        "", "float31/x=3", "float32/x=3x5:normal", "float32/x=:normal", "float32", "float32/y=3",
        "float32/x=-3", "float32/x=3:loud", "float32/x=3:normal:round",
        "float32/x=3:normal::float32:more", "float32/x=99999x99999x999", "float32/x=3,x=4,y=5",
        "x" * 9999,
    ):  # fmt: skip
        done = mini.command("reproduce", "7", "--op", "scale", "--case", text, code=2)
        assert done.stderr.startswith("bad-case: --case: "), text


def test_a_case_that_never_failed_here_is_not_called_fixed(mini: Mini) -> None:
    line = ("reproduce", "7", "--op", "scale", "--case")
    done = mini.command(*line, "float32/x=9:normal")
    assert "passes; no failure of it is recorded" in done.stdout
    outside = mini.command(*line, "float32/x=999:normal", code=4)
    assert "does not allow its sizes N = 999" in outside.stdout
    assert "no longer fails" not in done.stdout + outside.stdout
    mini.edit("scripts/scale.py", "* 3)", "* 3.5)")
    mini.command(*line, "float32/x=999:normal", code=1)


def test_a_seed_of_no_case(mini: Mini) -> None:
    done = mini.command("reproduce", "7", "--op", "scale", code=2)
    assert done.stderr.startswith("unknown-failure: ")


def test_a_failure_that_gets_no_verdict_is_not_mended(mini: Mini) -> None:
    """NaN for NaN on finite inputs: nothing fails any more, and nothing was compared."""
    mini.edit("scripts/scale.py", "* 3)", "* 3.5)")
    failure = mini.run("scale", "--dtype", "float32", code=1)["failures"][0]
    mini.edit("scripts/scale.py", "* 3.5)", "* float('nan'))")
    mini.edit("scripts/scale_ref.py", "x + x + x", "x + float('nan')")
    done = mini.command("reproduce", failure["seed_str"], code=4)
    assert "inconclusive scale" in done.stdout
    assert "has no verdict now" in done.stdout
    (again,) = _json(mini, ["reproduce", failure["seed_str"]], 4)
    assert not again["still_fails"]
    mini.command("debug", "--seed", failure["seed_str"], code=4)
