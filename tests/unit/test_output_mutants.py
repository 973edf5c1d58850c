"""Planted bugs: each does what it says, is the same for the same seed, and counts as it should."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from for_each import for_each

from gpuemu_flow.model.decoding import plain
from gpuemu_flow.model.errors import FlowError, Problem
from gpuemu_flow.numerics.output_mutants import (
    OUTPUT_MUTANTS,
    Killed,
    MutantResult,
    OutputMutant,
    plant,
    score,
)

Arrays = Mapping[str, np.ndarray]
BY_NAME = {mutant.name: mutant for mutant in OUTPUT_MUTANTS}
RNG = np.random.default_rng(0)
A, B = RNG.standard_normal((40, 137)), RNG.standard_normal((137, 70))
INPUTS = {"a": A.astype(np.float32), "b": B.astype(np.float32)}


def product(inputs: Arrays) -> dict[str, np.ndarray]:
    return {"y": inputs["a"] @ inputs["b"]}


def exact() -> dict[str, np.ndarray]:
    return product({name: array.astype(np.float64) for name, array in INPUTS.items()})


def planted(name: str, seed: int = 7, **options: object) -> np.ndarray:
    arguments = {"inputs": INPUTS, "expected": exact(), "dtypes": {"y": "float32"}, **options}
    found = plant(BY_NAME[name], seed=seed, **arguments)  # type: ignore[arg-type]
    assert found is not None, name
    return found["y"]


RIGHT = exact()["y"].astype(np.float32)


@for_each("mutant", OUTPUT_MUTANTS)
def test_a_planted_bug_is_wrong_in_the_right_shape_and_repeats_by_seed(
    mutant: OutputMutant,
) -> None:
    x = RNG.standard_normal((64, 64)).astype(np.float32)
    x[3, 5], x[4, 6] = np.nan, np.inf
    index = np.arange(0, 640, 10, dtype=np.int64)

    def reference(inputs: Arrays) -> dict[str, np.ndarray]:
        with np.errstate(all="ignore"):
            return {"y": np.cumsum(inputs["x"], axis=1), "n": index}

    expected = reference({"x": x.astype(np.float64)})
    dtypes = {"y": "float32", "n": "int64"}
    seen = []
    for seed in (1, 1, 2):
        found = plant(mutant, {"x": x}, expected, seed=seed, dtypes=dtypes, evaluate=reference)
        if mutant.name in ("tail-columns-dropped", "tail-rows-dropped", "reduction-tail-dropped"):
            assert found is None  # 64 is a multiple of every tile below it
            return
        assert found is not None
        assert {n: (a.shape, a.dtype) for n, a in found.items()} == {
            "y": ((64, 64), np.float32), "n": ((64,), np.int64),
        }  # fmt: skip
        right = {"y": expected["y"].astype(np.float32), "n": index}
        assert any(not np.array_equal(found[n], right[n], equal_nan=True) for n in right)
        assert sum(np.array_equal(found[n], right[n], equal_nan=True) for n in right) <= 1
        seen.append({n: a.tobytes() for n, a in found.items()})
    assert seen[0] == seen[1]


def test_a_dropped_tail_is_a_partial_tile() -> None:
    wrong = planted("tail-columns-dropped")
    assert (wrong[:, 64:] == 0).all()
    assert np.array_equal(wrong[:, :64], RIGHT[:, :64])
    wrong = planted("tail-rows-dropped")
    assert (wrong[32:] == 0).all()
    assert np.array_equal(wrong[:32], RIGHT[:32])


@pytest.mark.parametrize(
    ("name", "factor"),
    [("scale-two", 2.0), ("alpha-tenth-more", 1.1), ("epsilon-like-shift", 1 - 2**-10)],
)
def test_scales(name: str, factor: float) -> None:
    assert np.allclose(planted(name), RIGHT * factor, rtol=1e-6)


def test_the_root_of_an_inputs_last_dim() -> None:
    ratios = {float(np.median(RIGHT / planted("scale-root-d", seed=s))) for s in range(8)}
    known = {np.sqrt(137), np.sqrt(70)}
    assert len(ratios) == 2
    for ratio in ratios:
        assert min(abs(ratio - root) for root in known) < 1e-4


def test_one_stale_row_and_one_stale_element() -> None:
    wrong = planted("stale-row")
    (rows,) = np.nonzero((wrong != RIGHT).any(axis=1))
    assert rows.size == 1
    assert np.array_equal(wrong[rows[0]], RIGHT[rows[0] - 1])
    wrong = planted("one-stale-element")
    assert np.count_nonzero(wrong != RIGHT) == 1
    assert np.isin(wrong, RIGHT).all()
    rows_hit = {np.nonzero(planted("one-stale-element", seed=s) != RIGHT)[0][0] for s in range(9)}
    assert len(rows_hit) > 1


def test_half_precision_is_off_by_half_units() -> None:
    assert np.array_equal(planted("half-rounding"), RIGHT.astype(np.float16).astype(np.float32))
    relative = np.abs(planted("half-accumulation") / RIGHT - 1)
    assert 2**-12 < np.median(relative) < 2**-7


def test_bugs_in_an_input_are_what_the_kernel_would_compute() -> None:
    found = {planted("last-left-out", seed=s, evaluate=product).tobytes() for s in range(8)}
    short = INPUTS["a"].astype(np.float64).copy()
    short[:, -1] = 0
    without_last = (short @ INPUTS["b"].astype(np.float64)).astype(np.float32)
    assert without_last.tobytes() in found
    last_tile = INPUTS["a"].astype(np.float64).copy()
    last_tile[:, :128] = 0
    only_last = (last_tile @ INPUTS["b"].astype(np.float64)).astype(np.float32)
    found = {planted("last-tile-only", seed=s, evaluate=product).tobytes() for s in range(8)}
    assert only_last.tobytes() in found


def test_without_the_reference_no_bug_is_planted_in_an_input() -> None:
    mutant = BY_NAME["last-left-out"]
    assert plant(mutant, INPUTS, exact(), seed=1) is None

    def broken(_: Arrays) -> Arrays:
        raise FlowError(Problem("reference-failed", "no"))

    assert plant(mutant, INPUTS, exact(), seed=1, evaluate=broken) is None


def test_what_would_change_nothing_is_not_applicable() -> None:
    zeros = {"y": np.zeros((40, 70))}
    for name in (
        "scale-two",
        "stale-row",
        "tail-columns-dropped",
        "shifted-by-one",
        "nan-becomes-zero",
    ):
        assert plant(BY_NAME[name], INPUTS, zeros, seed=1) is None, name
    assert plant(BY_NAME["half-rounding"], INPUTS, {"y": np.float16(RIGHT)}, seed=1) is None
    square = {"y": np.ones((4, 4))}
    assert plant(BY_NAME["swapped-axes"], INPUTS, square, seed=1) is None
    positive = {"y": np.abs(RIGHT)}
    assert plant(BY_NAME["negative-clamped"], INPUTS, positive, seed=1) is None


@for_each("shape", [(), (0,), (1,), (0, 4), (1, 1, 1)])
@for_each("mutant", OUTPUT_MUTANTS)
def test_odd_shapes_are_no_trouble(mutant: OutputMutant, shape: tuple[int, ...]) -> None:
    for dtype in ("float32", "int32"):
        x = np.full(shape, 3, dtype)
        found = plant(mutant, {"x": x}, {"y": x * 2}, seed=3, evaluate=lambda i: {"y": i["x"] * 2})
        assert found is None or found["y"].shape == shape


def test_inputs_and_expected_are_left_alone() -> None:
    expected, before = exact(), exact()
    for mutant in OUTPUT_MUTANTS:
        plant(mutant, INPUTS, expected, seed=2, evaluate=product)
    assert np.array_equal(expected["y"], before["y"])
    assert np.array_equal(INPUTS["a"], A.astype(np.float32))


def test_the_score_counts_a_mutant_once() -> None:
    two, row = BY_NAME["scale-two"], BY_NAME["stale-row"]
    results = [
        MutantResult("scale-two", 1, killed=False),
        MutantResult("scale-two", 2, killed=True),
        MutantResult("stale-row", 1, killed=False),
    ]
    found = score(results, (two, row, BY_NAME["index-wraps"]))
    assert found.share == 0.5
    assert found.killed == (Killed("scale-two", 1, 2),)
    assert [(s.name, s.cases, s.why) for s in found.survivors] == [("stale-row", 1, row.why)]
    assert found.not_applicable == ("index-wraps",)
    assert plain(found)["score"] == 0.5
    assert score([]).share == 0.0
    assert len(score([]).not_applicable) == len(OUTPUT_MUTANTS)


def test_names_are_unique_and_kinds_many() -> None:
    assert len(BY_NAME) == len(OUTPUT_MUTANTS)
    assert len({mutant.kind for mutant in OUTPUT_MUTANTS}) >= 10
