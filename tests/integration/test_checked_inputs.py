"""Checked calls get the values of the case and of its decoy, whichever process makes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from runner_workspace import Workspace, make_case

from gpuemu_flow.judging.case_evaluator import open_evaluator
from gpuemu_flow.judging.checks import FULL_CHECKS
from gpuemu_flow.judging.params import CompareParams
from gpuemu_flow.judging.subject import Subject
from gpuemu_flow.runners.checked import CheckedInputs
from gpuemu_flow.types import LAYOUTS, Case

COMPARE = {
    "tolerance": "explicit",
    "tolerances": {"float32": {"atol": 0.0, "rtol": 0.0}},
    "nan_policy": "match",
    "inf_policy": "match",
    "invariants": [],
    "shape_preserved_input": None,
}
REFERENCE = "def reference(x): return x * 2"
SMALL, EMPTY, LARGE = (6, 50), (0, 4), (2050, 2050)  # the last is over `judge_service.MOST_BROUGHT`


def calls_of(ws: Workspace, case: Case) -> list[bytes]:
    """Return the strides and values of the op's input in each call for a case."""
    op = f"""
    import os
    def op(x):
        number = len(os.listdir({str(ws.folder / "calls")!r}))
        with open({str(ws.folder / "calls")!r} + f"/{{number}}", "wb") as file:
            file.write(str(x.strides).encode() + x.tobytes())
        return x * 2
    """
    folder = ws.folder / "calls"
    folder.mkdir()
    subject = Subject(
        "double",
        "float32",
        ws.program("callable", op, name="op.py", function="op"),
        ws.program("callable", REFERENCE, name="ref.py", function="reference"),
        CompareParams.from_json(COMPARE),
        [make_case(0)],
    )
    with open_evaluator(ws.pool, subject) as evaluator:
        result = evaluator.judge(case, FULL_CHECKS).result
    assert result.failures == ()
    return [path.read_bytes() for path in sorted(folder.iterdir(), key=by_number)]


def by_number(path: Path) -> int:
    return int(path.name)


def shown(array: np.ndarray) -> bytes:
    return str(array.strides).encode() + array.tobytes()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [SMALL, EMPTY, LARGE])
def test_each_call_gets_its_values(ws: Workspace, shape: tuple[int, ...], layout: str) -> None:
    """The first case of a process calls its decoy once more at the end."""
    case = make_case(0, shape, layout=layout)
    drawn = CheckedInputs(0, case.seed, case)
    judged = drawn.judged(guards=True)
    decoy = drawn.decoy(judged, guards=True)
    first, *repeated, last = calls_of(ws, case)
    assert repeated == [shown(judged["x"])] * 2
    assert first == last == shown(decoy["x"])
    if shape != EMPTY:
        assert first != repeated[0]
