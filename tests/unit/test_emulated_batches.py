"""Cases that come together are launched together, with the outcomes of single calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated_kernels import FOLDER

from gpuemu_flow.emulator.launch import Kernel
from gpuemu_flow.workers.api import Program
from gpuemu_flow.workers.channel import Watch
from gpuemu_flow.workers.emulated import EmulatedRunner

SOFTMAX = {
    "entry": "softmax_rows", "grid": ["B"], "block": [64], "args": ["x", "out", {"i32": "H"}],
    "outputs": {"out": ["B", "H"]},
}  # fmt: skip
DIMS = {"x": ["B", "H"]}


def runner(described: dict[str, Any], path: Path = FOLDER / "matrices.ptx") -> EmulatedRunner:
    argv = (json.dumps(described), json.dumps(DIMS))
    names = ("x",)
    return EmulatedRunner(Program("ptx", root="/", input_names=names, path=str(path), argv=argv))


def inputs(count: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(count)
    shapes = [(2, 70), (3, 33), (2, 70), (2, 70), (1, 5), (3, 33)]
    return [{"x": rng.standard_normal(shapes[k % 6]).astype("f4")} for k in range(count)]


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of kernels launched for one case alone."""
    seen: list[str] = []
    launch = Kernel.launch

    def noted(self: Kernel, *args: Any, **options: Any) -> Any:
        seen.append(self.name)
        return launch(self, *args, **options)

    monkeypatch.setattr(Kernel, "launch", noted)
    return seen


def test_equal_shapes_share_a_launch(launches: list[str]) -> None:
    cases = inputs(6)
    alone = [runner(SOFTMAX).call(case, Watch())["result"] for case in cases]
    assert len(launches) == 6
    launches.clear()
    together = runner(SOFTMAX)
    together.expect(cases)
    found = [together.call(case, Watch())["result"] for case in cases]
    assert len(launches) == 1, "the shape that comes once is launched by itself"
    for a, b in zip(alone, found, strict=True):
        assert a.tobytes() == b.tobytes() and a.shape == b.shape


def test_a_repeated_call_is_made_again(launches: list[str]) -> None:
    cases = inputs(4)
    made = runner(SOFTMAX)
    made.expect(cases)
    first = made.call(cases[0], Watch())["result"]
    assert not launches
    second = made.call(cases[0], Watch())["result"]
    assert len(launches) == 1
    assert first.tobytes() == second.tobytes()


def test_other_inputs_than_expected_are_run(launches: list[str]) -> None:
    made = runner(SOFTMAX)
    made.expect(inputs(4))
    other = {"x": np.zeros((2, 70), "f4")}
    np.testing.assert_allclose(made.call(other, Watch())["result"], 1 / 70, 1e-5)
    assert len(launches) == 1


def test_findings_belong_to_the_case_that_has_them(launches: list[str], tmp_path: Path) -> None:
    beyond = {**SOFTMAX, "args": ["x", "out", {"i32": "H+1"}]}
    cases = inputs(4)
    made = runner(beyond)
    made.expect(cases)
    for case in cases:
        made.call(case, Watch())
        assert any("OutOfBounds" in str(f.kind) or "OUT_OF" in f.kind.name
                   for f in made.violations())  # fmt: skip
    assert len(launches) == 4


def test_launches_that_make_no_sense_are_told_by_single_calls(launches: list[str]) -> None:
    wrong = {**SOFTMAX, "args": ["x", "nothing", {"i32": "H"}]}
    runner(wrong).expect(inputs(4))
    assert not launches


def test_a_back_end_that_was_asked_for_runs_each_case() -> None:
    made = runner({**SOFTMAX, "backend": "c", "checks": ["mem"]})
    cases = inputs(4)
    made.expect(cases)
    plain = runner({**SOFTMAX, "checks": ["mem"], "backend": "numpy"})
    for case in cases:
        a, b = (r.call(case, Watch())["result"] for r in (made, plain))
        assert a.tobytes() == b.tobytes()
