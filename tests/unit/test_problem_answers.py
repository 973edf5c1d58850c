"""Answers of a problem's own code are hostile; sizes are found by trying."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from for_each import for_each

from gpuemu_flow.services.problems.kernelbench import find_kernelbench
from gpuemu_flow.services.problems.model import Argument, ProblemFacts
from gpuemu_flow.services.problems.probing import ProbeError, described
from gpuemu_flow.services.problems.sizes import CachedAttempts, scale_down, vary

GOOD = {
    "init": [3, {"tuple": [1, 2]}],
    "arguments": [
        {"name": "x", "shape": [2, 3], "dtype": "float32", "float": True, "low": 0.0, "high": 1.0}
    ],
    "globals": {"N": 4},
    "outputs": [{"rank": 2, "float": True, "finite": True}],
    "free": ["x"],
}


def test_a_good_answer_is_read() -> None:
    found = described(GOOD)
    assert found.shapes == ((2, 3),)
    assert found.free == {"x"}


@for_each(
    ("key", "value"),
    [
        ("arguments", [{"name": 'x"\n[ops]', "shape": [2], "dtype": "float32"}]),
        ("arguments", [{"name": "x", "shape": [-1], "dtype": "float32"}]),
        ("arguments", [{"name": "x", "shape": ["2"], "dtype": "float32"}]),
        ("arguments", [{"name": "x", "shape": [2], "dtype": 'float32"'}]),
        ("arguments", [{"name": "x", "shape": [2], "dtype": "float32", "kind": "other"}]),
        ("arguments", [{"name": "x", "shape": [2], "dtype": "float32", "low": "1"}]),
        ("arguments", "x"),
        ("arguments", [7]),
        ("init", [{"other": 1}]),
        ("init", json.loads("[" * 50 + "]" * 50)),
        ("globals", {"a b": 1}),
        ("globals", []),
        ("outputs", [{"rank": 99}]),
    ],
)
def test_a_bad_answer_is_refused(key: str, value: object) -> None:
    with pytest.raises(ProbeError):
        described({**GOOD, key: value})


def grouped(constants: Mapping[str, int]) -> ProblemFacts:
    """A model whose channels have to be a multiple of its groups, and of 8."""
    given = {"batch": 512, "channels": 2048, "groups": 4, "rows": 600, **constants}
    if given["channels"] % (8 * given["groups"]):
        raise ProbeError("no multiple")
    shape = (given["batch"], given["channels"], 2 * given["rows"] - 1)
    return ProblemFacts((given["channels"], given["groups"]), (Argument("x", shape, "float32"),))


def test_sizes_are_scaled_and_varied_as_the_model_allows() -> None:
    constants = {"batch": 512, "channels": 2048, "groups": 4, "rows": 600}
    tries = CachedAttempts(grouped)
    scaled, about = scale_down(tries, constants)
    assert about is not None
    assert scaled["channels"] % 32 == 0
    assert all(size <= 128 for size in scaled.values())
    varied = vary(tries, constants, scaled, about)
    assert set(varied.dims) == {"batch", "rows"}
    assert varied.axes == (("batch", scaled["channels"], "2*rows-1"),)
    assert 1 in varied.dims["batch"]


def test_candidates_find_their_problem(tmp_path: Path) -> None:
    model = "class Model: pass\ndef get_inputs(): pass\ndef get_init_inputs(): pass\nN: int = 3\n"
    new = "class ModelNew: pass\n"
    files = {
        "level1/1_A.py": model,
        "level1/2_B.py": model,
        "runs/1_A_first.py": new,
        "runs/2_B/second.py": new,
        "runs/level_1_problem_2_sample_0_kernel.py": new,
        "runs/other.py": new,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    problems, left = find_kernelbench(tmp_path)
    found = {one.name: sorted(c.name for c in one.candidates) for one in problems}
    assert found == {"1_A": ["1_A_first"], "2_B": ["level_1_problem_2_sample_0_kernel", "second"]}
    assert [Path(one.what).name for one in left] == ["other.py"]
    assert problems[0].constants == {"N": 3}
