"""57 planted bugs of some elements only: the stated cause is right, to the value and the index.

The suite runs every ninth bug; ``PLANTED_BUGS=all`` in the environment is the full count.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "causes"))

from scoring import is_right
from truths_elements import BLIND, ELEMENTS
from workspace import run, write

pytestmark = pytest.mark.timeout(1800)

RIGHT, STATED = 0.9, 0.6
STEP = 1 if os.environ.get("PLANTED_BUGS") == "all" else 9
BUGS = (*ELEMENTS, *BLIND)[::STEP]


def test_the_bugs_are_many_and_their_ops_too() -> None:
    assert len(ELEMENTS) >= 25
    assert len({planted.op for planted in ELEMENTS}) >= 10


@pytest.mark.ci
def test_a_cause_that_is_stated_names_the_value_or_the_place(tmp_path: Path) -> None:
    write(tmp_path, BUGS)
    found = {r["op"]: r["causes"] for r in run(tmp_path)["results"] if r["causes"]}
    stated, wrong = 0, []
    for bug in BUGS:
        first = next(iter(found.get(bug.bug, [])), None)
        if first is None or not first["stated"]:
            said, mark = first["text"] if first else "nothing", "-"
        else:
            stated += 1
            mark, said = "right" if is_right(bug, first) else "WRONG", first["text"]
            wrong += [bug.bug] if mark == "WRONG" else []
        print(f"{mark:6} {bug.bug:32} {said}")
    print(f"{len(BUGS)} bugs, {stated} with a stated cause, {stated - len(wrong)} of them right")
    assert len(wrong) <= (1 - RIGHT) * stated, wrong
    assert stated >= STATED * len(BUGS)
