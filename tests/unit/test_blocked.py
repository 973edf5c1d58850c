"""The blocked comparison against a plain float64 one: verdicts, statistics, strides, memory."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from for_each import for_each

from gpuemu_flow.numerics import blocked, statistics
from gpuemu_flow.numerics.blocked import (
    BlockedOutcome,
    Prover,
    compare_floats,
    compare_integers,
    paired_blocks,
    take,
)
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, numpy_dtype, to_float64, ulp_distance
from gpuemu_flow.numerics.judge import (
    AffineBound,
    ElementBound,
    Excuse,
    ExcusedBound,
    Rules,
    judge,
    judge_integers,
    make_quick_bound,
)
from gpuemu_flow.numerics.statistics import Sample, Totals, combine, sample_positions

FLOATS = ["float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
LENGTH = 9001  # beyond the size that is judged without blocks, and no multiple of one


def plain_failing(actual: np.ndarray, expected: np.ndarray, atol: float, rtol: float) -> np.ndarray:
    """The documented formula, written down once more in float64."""
    a, e = to_float64(actual), to_float64(expected)
    with np.errstate(all="ignore"):
        close = np.abs(a - e) <= atol + rtol * np.abs(e)
    close &= np.isfinite(a) & np.isfinite(e)
    return ~(close | (a == e) | (np.isnan(a) & np.isnan(e)))


def run(actual: np.ndarray, expected: np.ndarray, atol: float, rtol: float) -> BlockedOutcome:
    name = actual.dtype.name
    return compare_floats(actual, expected, AffineBound(atol, rtol), Rules(), FLOAT_LIMITS[name])


def boundary_values(expected: np.ndarray, atol: float, rtol: float) -> np.ndarray:
    """Values one tolerance away from the expected ones, and their neighbours on both sides."""
    e = to_float64(expected)
    with np.errstate(all="ignore"):
        edge = e + np.where(np.arange(e.size) % 2, 1, -1) * (atol + rtol * np.abs(e))
        rounded = edge.astype(expected.dtype)
        bits = rounded.view(f"i{rounded.itemsize}")
        step = (np.arange(e.size) % 5 - 2).astype(bits.dtype)
        return np.where(bits == 0, bits, bits + step).astype(bits.dtype).view(expected.dtype)


def specials(name: str) -> np.ndarray:
    limits = FLOAT_LIMITS[name]
    tiny, small, large = limits.smallest_subnormal, limits.smallest_normal, limits.max
    values = [0.0, -0.0, tiny, -tiny, small, -small, small - tiny, large, -large, large / 2, 1.0]
    values += [np.nan, np.inf, -np.inf, -1.0, 3 * tiny]
    with np.errstate(all="ignore"):
        return np.array(values).astype(numpy_dtype(name))


def adversarial(case: int) -> tuple[np.ndarray, np.ndarray, float, float]:
    rng = np.random.default_rng(case)
    name = FLOATS[case % len(FLOATS)]
    dtype, limits = numpy_dtype(name), FLOAT_LIMITS[name]
    atol = float(rng.choice([0.0, 1e-45, 1e-38, 1e-8, 1e-5, 1e-2, 0.3, 1e6, 1e300]))
    rtol = float(rng.choice([0.0, 1e-300, 1e-40, limits.eps, 1e-5, 1e-2, 0.5, 1.0, 3.0]))
    scale = 10.0 ** rng.integers(-6, 3)
    with np.errstate(all="ignore"):
        expected = (rng.standard_normal(LENGTH) * scale).astype(dtype)
        if rng.random() < 0.3:
            exponents = rng.uniform(np.log2(limits.smallest_subnormal), np.log2(limits.max), LENGTH)
            signs = np.sign(rng.standard_normal(LENGTH))
            expected = (signs * np.exp2(exponents)).astype(dtype)
    if rng.random() < 0.3:
        expected[rng.random(LENGTH) < 0.5] = 0.0
    actual = expected.copy()
    kind = case // len(FLOATS) % 4
    where = rng.choice(LENGTH, size=int(rng.choice([1, 3, 40, LENGTH])), replace=False)
    if kind == 0:
        actual[where] = boundary_values(expected, atol, rtol)[where]
    elif kind == 1:
        actual[where] = rng.choice(specials(name), where.size)
        expected[where] = rng.choice(specials(name), where.size)
    elif kind == 2:
        actual = boundary_values(expected, atol / 2, rtol / 2)
    else:
        bits = actual.view(f"i{actual.itemsize}")
        bits[where] ^= bits.dtype.type(1)
    return actual, expected, atol, rtol


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks even in the smallest output that is compared by blocks."""
    monkeypatch.setattr(blocked, "BLOCK_BYTES", 8 * 1024)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("group", range(12))
def test_verdicts_equal_the_plain_formula_in_adversarial_cases(group: int) -> None:
    for case in range(group * 40, group * 40 + 40):
        actual, expected, atol, rtol = adversarial(case)
        failing = plain_failing(actual, expected, atol, rtol)
        totals = run(actual, expected, atol, rtol).totals
        assert totals.failing == np.count_nonzero(failing), case
        assert totals.count == LENGTH
        nan = failing & np.isnan(to_float64(actual))
        assert totals.failing_nan == np.count_nonzero(nan), case
        assert totals.first_nan == (int(nan.argmax()) if nan.any() else None), case
        if failing.any():
            position = totals.worst.position
            assert position is not None
            assert failing[position], case


@pytest.mark.usefixtures("small_blocks")
@for_each("name", FLOATS)
@for_each("length", [100, LENGTH])
def test_statistics_equal_the_plain_ones(name: str, length: int) -> None:
    rng = np.random.default_rng(3)
    dtype = numpy_dtype(name)
    expected = rng.standard_normal(length).astype(dtype)
    actual = (to_float64(expected) * (1 + 1e-3 * rng.standard_normal(length))).astype(dtype)
    actual[7] = actual[7] + dtype.type(0.5)
    expected[11] = 0.0
    outcome = run(actual, expected, 1e-2, 1e-2)
    measured = (outcome.totals, outcome.sample, actual.shape)
    stats = combine([measured])
    assert stats == combine([measured, (Totals(), Sample(np.zeros(0)), ())]), "nothing adds nothing"

    a, e = to_float64(actual), to_float64(expected)
    error = np.abs(a - e)
    share = error / (1e-2 + 1e-2 * np.abs(e))
    relative = error[e != 0] / np.abs(e[e != 0])
    ulps = ulp_distance(actual, expected).astype(float)
    assert stats.count == length
    assert stats.num_exceeding == np.count_nonzero(share > 1)
    assert stats.max_abs == error.max()
    assert stats.max_rel == pytest.approx(relative.max(), rel=1e-6)
    assert stats.max_ulp == ulps.max()
    assert stats.tolerance_used == pytest.approx(share.max(), rel=1e-12)
    assert stats.worst_index == (int(share.argmax()),)
    assert (stats.worst_actual, stats.worst_expected) == (a[share.argmax()], e[share.argmax()])
    assert stats.mean_abs == pytest.approx(error.mean(), rel=2e-4)
    if length <= statistics.EXACT_SIZE:
        ordered = np.sort(error)
        ranks = [int(np.floor(p * (length - 1) + 0.5)) for p in (0.5, 0.9, 0.99)]
        assert [stats.p50_abs, stats.p90_abs, stats.p99_abs] == ordered[ranks].tolist()
        assert stats.mean_rel == pytest.approx(relative.mean(), rel=1e-12)
        assert stats.mean_ulp == pytest.approx(ulps.mean(), rel=1e-12)
    else:
        for level, found in ((0.5, stats.p50_abs), (0.9, stats.p90_abs), (0.99, stats.p99_abs)):
            reach = 4 * np.sqrt(level * (1 - level) / statistics.SAMPLE_SIZE)
            low, high = np.quantile(error, [level - reach, min(1.0, level + reach)])
            assert low <= found <= high


def test_proof_never_exceeds_the_exact_share() -> None:
    """A block at exactly the tolerance must not be proven in float32."""
    prover = Prover(1e-5, 1e-5, np.dtype(np.float32))
    expected = np.full(64, 1.0, np.float32)
    tolerance = 1e-5 + 1e-5 * 1.0
    for steps in range(-400, 400, 7):
        actual = expected.copy()
        edge = np.float32(1.0 + tolerance)
        actual[5] = (edge.view(np.int32) + np.int32(steps)).view(np.float32)
        proof = prover.prove(actual, expected)
        exact = abs(float(actual[5]) - 1.0) / tolerance
        assert proof is None or exact <= 1.0
        if exact < 0.999:
            assert proof is not None
            assert proof.share == pytest.approx(exact, rel=1e-6)


@for_each("value", [np.nan, np.inf, -np.inf])
@for_each("side", ["actual", "expected", "both"])
def test_a_block_with_a_special_value_is_never_proven(
    value: float,
    side: str,
) -> None:
    for tolerance in [(0.0, 0.0), (1e-5, 0.0), (0.0, 1e-5), (1e-5, 1e-5)]:
        prover = Prover(*tolerance, np.dtype(np.float32))
        actual, expected = np.ones(100, np.float32), np.ones(100, np.float32)
        if side != "expected":
            actual[99] = value
        if side != "actual":
            expected[99] = value
        with np.errstate(all="ignore"):
            assert prover.prove(actual, expected) is None


def test_an_offset_that_float32_cannot_hold_is_rounded_down() -> None:
    rtol = 0.6
    prover = Prover(2.11e-45 * rtol, rtol, np.dtype(np.float32))
    actual, expected = np.zeros(4, np.float32), np.zeros(4, np.float32)
    actual[2] = 1.4e-45  # beyond the tolerance of 1.27e-45
    with np.errstate(all="ignore"):
        assert prover.prove(actual, expected) is None


def test_the_mean_survives_sums_beyond_float32() -> None:
    expected = np.full(LENGTH, 3e38, np.float32)
    actual = np.full(LENGTH, 2.5e38, np.float32)
    totals = run(actual, expected, 0.0, 0.5).totals
    assert totals.failing == 0
    assert totals.sum_abs == pytest.approx(LENGTH * 0.5e38, rel=1e-3)


def test_the_largest_relative_error_is_found_among_proven_elements() -> None:
    expected, actual = np.ones(LENGTH, np.float32), np.ones(LENGTH, np.float32)
    actual[4] += np.float32(1e-6)
    positions = sample_positions(LENGTH)
    assert positions is not None
    hidden = int(np.setdiff1d(np.arange(5, LENGTH), positions)[0])
    expected[hidden], actual[hidden] = 1e-9, 3e-9
    outcome = run(actual, expected, 1e-5, 1e-5)
    assert outcome.totals.max_rel == pytest.approx(2.0)
    assert outcome.sample.max_rel < 1.0


def test_equal_blocks_are_proven_even_without_tolerance() -> None:
    prover = Prover(0.0, 0.0, np.dtype(np.float64))
    values = np.linspace(-1, 1, 50)
    assert prover.prove(values, values.copy()) is not None
    assert prover.prove(values, np.nextafter(values, 2.0)) is None


STRIDED: list[Callable[[np.ndarray], np.ndarray]] = [
    lambda x: x[::-1],
    lambda x: x[:, ::-1],
    lambda x: x.T,
    np.asfortranarray,
    lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    lambda x: np.concatenate([x, x])[1 : 1 + len(x)],
    lambda x: x.reshape(-1, 7, x.shape[1]).swapaxes(0, 2) if len(x) % 7 == 0 else x[::2],
]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_strided_arrays_give_what_their_copies_give(dtype: str) -> None:
    for view in range(len(STRIDED)):
        rng = np.random.default_rng(view)
        plain = rng.standard_normal((301, 203)).astype(numpy_dtype(dtype))
        actual = STRIDED[view](plain)
        expected = np.ascontiguousarray(actual)
        changed = expected.copy()
        changed[1, 2] = 9.0
        same = run(actual, expected, 1e-3, 1e-3).totals
        assert (same.failing, same.count) == (0, actual.size)
        for pair in ((actual, changed), (changed, actual)):
            totals = run(*pair, 1e-3, 1e-3).totals
            position = int(np.ravel_multi_index((1, 2, *[0] * (actual.ndim - 2)), actual.shape))
            differing = np.flatnonzero((changed != expected).reshape(-1))
            assert totals.failing == differing.size
            assert totals.worst.position in differing
            assert position == differing[0]


def test_expanded_array_with_stride_zero() -> None:
    row = np.arange(20000, dtype=np.float32)
    actual = np.broadcast_to(row, (3, 20000))
    expected = np.tile(row, (3, 1))
    expected[2, 19999] += 100
    totals = run(actual, expected, 0.0, 1e-5).totals
    assert (totals.failing, totals.worst.position) == (1, 59999)


def test_blocks_of_strided_arrays_cover_every_element_once_in_c_order() -> None:
    base = np.arange(7 * 11 * 13).reshape(7, 11, 13)
    for array in (base, base.transpose(2, 0, 1), base[::-1, ::2], base[:0], np.array(5)):
        flat = array.reshape(-1)
        end = 0
        for start, block, other in paired_blocks(array, array, 64):
            assert start == end
            assert block.size <= 64
            assert np.array_equal(block, flat[start : start + block.size])
            assert np.array_equal(block, other)
            end += block.size
        assert end == array.size
        where = np.arange(array.size)[::3]
        assert np.array_equal(take(array, where), flat[where])


def test_memory_does_not_grow_with_the_output() -> None:
    rng = np.random.default_rng(0)
    peaks = []
    for rows in (256, 4096):
        expected = rng.standard_normal((rows, 1024), dtype=np.float32)
        actual = expected + np.float32(1e-3)  # every element fails: the slow path everywhere
        strided = np.repeat(actual, 2, axis=1)[:, ::2]
        tracemalloc.start()
        run(strided, expected, 1e-5, 1e-5)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] * 1.5


def test_sample_takes_one_position_of_each_span() -> None:
    assert sample_positions(statistics.EXACT_SIZE) is None
    for count in (statistics.EXACT_SIZE + 1, 100_000, 1 << 24, (1 << 33) + 5):
        positions = sample_positions(count)
        assert positions is not None
        assert np.all(np.diff(positions) >= 0)
        assert positions[0] >= 0
        assert positions[-1] < count
        spans = np.floor(positions / (count / statistics.SAMPLE_SIZE))
        assert np.abs(spans - np.arange(statistics.SAMPLE_SIZE)).max() <= 1
        # No step with rows: positions modulo a row length reach every part of the row evenly.
        if count >= 1 << 24:
            counts = np.bincount(positions % 1024 // 128, minlength=8)
            assert counts.min() > 0.8 * statistics.SAMPLE_SIZE / 8


def test_wider_expected_values_are_compared_unrounded() -> None:
    expected = np.linspace(1.0, 2.0, LENGTH)
    actual = expected.astype(np.float16)
    totals = run(actual, expected, 0.0, 1e-2).totals
    assert totals.failing == 0
    assert totals.max_abs == np.abs(actual.astype(float) - expected).max()
    assert 0.4 < totals.max_ulp <= 0.5
    assert totals.max_ulp == totals.max_abs / 2.0**-10


def test_large_outputs_keep_exact_verdict_and_worst_element(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blocked, "FULL_EXTREMES", 1000)
    expected = np.ones(300_000, np.float32)
    actual = expected.copy()
    actual[123_456] += np.float32(4e-6)
    outcome = run(actual, expected, 1e-5, 0.0)
    assert outcome.totals.worst.position == 123_456
    assert outcome.totals.max_abs == float(actual[123_456]) - 1.0
    assert outcome.totals.max_ulp == np.round(outcome.totals.max_abs / 2.0**-23)
    actual[123_456] = 2.0
    assert run(actual, expected, 1e-5, 0.0).totals.failing == 1


@for_each("name", ["int8", "int16", "int32", "int64", "uint8", "uint32", "uint64"])
def test_integers_are_exact_at_their_extremes(name: str) -> None:
    info = np.iinfo(name)
    low, high = np.full(9000, info.min, name), np.full(9000, info.max, name)
    assert compare_integers(high, high.copy(), AffineBound(0, 0)).totals.failing == 0
    totals = compare_integers(high, low, AffineBound(0, 0)).totals
    assert totals.failing == 9000
    assert totals.max_abs == float(int(info.max) - int(info.min))
    near = high.copy()
    near[8999] -= near.dtype.type(1)  # numpy 1 goes through float64 for a Python integer
    totals = compare_integers(near, high, AffineBound(0, 0)).totals
    assert (totals.failing, totals.max_abs, totals.worst.position) == (1, 1.0, 8999)


def test_integer_tolerance_applies_only_when_given() -> None:
    expected = np.arange(-500, 500, dtype=np.int32)
    actual = expected + 2
    assert compare_integers(actual, expected, AffineBound(0, 0)).totals.failing == 1000
    assert compare_integers(actual, expected, AffineBound(2, 0)).totals.failing == 0
    assert compare_integers(actual, expected, AffineBound(0, 0.01)).totals.failing == 399


def test_booleans_compare_by_truth_value() -> None:
    bytes_ = np.array([0, 1, 2, 255, 0, 1], np.uint8)
    other = np.array([0, 255, 1, 1, 1, 0], np.uint8)
    totals = compare_integers(bytes_.view(bool), other.view(bool), AffineBound(0, 0)).totals
    assert totals.failing == 2


TRIED = (0.0, -0.0, 1.0, 1.01, -1.0, 239.0, -448.0, 460.0, -65504.0, 65600.0, 7e5, *(
    sign * np.inf for sign in (1, -1)), np.nan)  # fmt: skip


def judged_alone(a: float, e: float, unjudged: bool, rules: Rules) -> tuple[float, ...]:
    """Judge one element as the documentation says: error, share, failed, without a verdict."""
    fmt, finite = rules.clip, math.isfinite(a) and math.isfinite(e)
    if fmt is not None and math.isfinite(e):
        e = min(max(e, -fmt.max), fmt.max)
    allowed = abs(e) / 64 + 0.5
    error = abs(a - e)
    share = error / allowed if finite else 0.0
    failed = not error <= allowed
    if not finite:
        matches = a == e or (math.isnan(a) and math.isnan(e))
        if fmt is not None:
            largest = math.copysign(fmt.max, e if math.isnan(a) else a)
            over = math.isinf(a) or (math.isnan(a) and not fmt.has_inf)
            matches |= over and math.isfinite(e) and abs(largest - e) <= allowed
            saturated = math.isnan(a) or a == math.copysign(fmt.max, e)
            matches |= not fmt.has_inf and math.isinf(e) and saturated
        error = share = 0.0 if matches else math.inf
        forbidden = rules.nan == "strict" and math.isnan(a)
        forbidden |= rules.inf == "strict" and math.isinf(a)
        share = 0.0 if forbidden and unjudged else share
        failed, unjudged = not matches or forbidden, unjudged and not forbidden
        nan = math.isnan(e) or (math.isnan(a) and rules.special_inputs)
        inf = math.isinf(e) or (math.isinf(a) and rules.special_inputs)
        neither = not math.isnan(a) and not math.isnan(e)
        unjudged |= (rules.nan == "ignore" and nan) or (rules.inf == "ignore" and inf and neither)
    return error, 0.0 if unjudged else share, failed and not unjudged, failed and unjudged


def test_all_pairs_of_values_are_judged_as_documented_under_all_policies() -> None:
    everything = np.array(list(itertools.product(TRIED, TRIED)))
    policies = ("match", "strict", "ignore")
    clips = (None, FLOAT_LIMITS["float16"], FLOAT_LIMITS["float8_e4m3fn"])
    plain = AffineBound(0.5, 1 / 64)
    for nan, inf, special, clip in itertools.product(policies, policies, (False, True), clips):
        rules = Rules(nan, inf, special, clip)
        for pairs in (everything, everything[everything[:, 1] > 0]):
            for marks in (np.zeros(len(pairs), bool), np.arange(len(pairs)) % 2 == 0):
                bound = ExcusedBound(plain, marks) if marks.any() else plain
                found = judge(pairs[:, 0], pairs[:, 1], bound, slice(0, len(pairs)), rules)
                unjudged = np.zeros(len(pairs)) if found.unjudged is None else found.unjudged
                rows = np.stack([found.error, found.share, found.failed, unjudged], axis=1)
                each = zip(pairs.tolist(), marks, strict=True)
                wanted = [judged_alone(*pair, mark, rules) for pair, mark in each]
                wrong = ~np.isclose(rows, np.array(wanted, float)).all(axis=1)
                assert not wrong.any(), (rules, marks.any(), pairs[wrong], rows[wrong])
    exact = judge(np.array([0.0, 2]), np.array([0.0, 1]), AffineBound(0, 0), slice(0, 2), Rules())
    assert (exact.share.tolist(), exact.failed.tolist()) == ([0, np.inf], [False, True])


def first_of(marks: np.ndarray) -> int | None:
    return int(marks.argmax()) if marks.any() else None


@for_each("nan", ["match", "strict", "ignore"])
@for_each("inf", ["match", "strict", "ignore"])
def test_totals_over_blocks_equal_plain_counts(nan: str, inf: str) -> None:
    pairs = np.array(list(itertools.product(TRIED, TRIED)))
    pairs = np.random.default_rng(2).permutation(pairs)
    finite, near = np.isfinite(pairs).all(axis=1), (abs(pairs - 1) < 0.1).all(axis=1)
    for every, chosen in itertools.product((0, 2, 3), (slice(None), finite, near)):
        a, e = pairs[chosen].T
        marks = np.arange(a.size) % every == 0 if every else np.zeros(a.size, bool)
        bound = ExcusedBound(AffineBound(0.5, 1 / 64), marks)
        totals, rules = Totals(), Rules(nan, inf)
        for where in (slice(0, 50), slice(50, 50), slice(50, 130), slice(130, a.size)):
            if where.start > a.size:
                continue
            found = judge(a[where], e[where], bound, where, rules)
            totals.add(found, a[where], e[where], where.start)
        each = zip(a.tolist(), e.tolist(), marks, strict=True)
        rows = np.array([judged_alone(*one, rules) for one in each], float)
        error, share, failed = rows[:, 0], rows[:, 1], rows[:, 2] > 0
        unjudged = rows[:, 3] > 0
        error[unjudged] = share[unjudged] = 0.0
        values = failed & ~np.isnan(a) & (share > 0)
        assert (totals.count, totals.judged) == (a.size, np.count_nonzero(~unjudged))
        assert totals.finite == np.count_nonzero(~unjudged & np.isfinite(e))
        assert totals.nan == np.count_nonzero(~unjudged & ~failed & np.isnan(e))
        assert totals.nan_unjudged == np.count_nonzero(unjudged & np.isnan(a) & np.isfinite(e))
        assert totals.failing == np.count_nonzero(failed)
        assert totals.failing_values == np.count_nonzero(values)
        assert totals.failing_nan == np.count_nonzero(failed & np.isnan(a))
        assert totals.failing_inf == np.count_nonzero(failed & np.isinf(a))
        assert totals.first_nan == first_of(failed & np.isnan(a))
        assert totals.first_inf == first_of(failed & np.isinf(a))
        assert totals.sum_abs == pytest.approx(error.sum())
        assert totals.max_abs == error.max()
        assert totals.share == share[np.isfinite(a) & np.isfinite(e)].max()
        assert totals.worst.position == share.argmax()
        assert totals.worst.share == share.max()
        wanted = values & np.isfinite(e)
        at = int(np.where(wanted if wanted.any() else values, share, -1).argmax())
        told = totals.worst_value
        if values.any():
            assert (told.position, told.share) == (at, share[at])
            assert (told.actual, told.expected) == (a[at], e[at])
        else:
            assert told.position is None
        with np.errstate(all="ignore"):
            relative = error[np.abs(e) > 0] / np.abs(e[np.abs(e) > 0])
        assert totals.max_rel == np.where(np.isnan(relative), np.inf, relative).max()


def test_integers_beyond_the_tolerance_fail_unless_they_are_excused() -> None:
    actual, expected = np.array([7, -9, 100, 5]), np.array([5, -5, 90, 5])
    bound = ExcusedBound(AffineBound(2.0, 0.02), np.array([False, False, True, True]))
    found = judge_integers(actual, expected, bound, slice(0, 4))
    assert found.error.tolist() == [2, 4, 10, 0]
    assert found.share.tolist() == pytest.approx([2 / 2.1, 4 / 2.1, 0, 0])
    assert found.failed.tolist() == [False, True, False, False]
    assert found.unjudged is not None and found.unjudged.tolist() == [False, False, True, False]
    exact = judge_integers(actual, expected, AffineBound(0, 0), slice(0, 4))
    assert exact.share.tolist() == [np.inf, np.inf, np.inf, 0]


def test_errors_are_excused_up_to_one_and_a_half_times_those_of_rounded_operands() -> None:
    variance = np.array([1.0, 4.0, 0.25, 0.0] * 100)
    without = ElementBound(None, None)

    def excuse(largest: float, count: int = 400) -> Excuse:
        return Excuse(variance[:count], largest, without)

    expected = np.zeros(400)
    actual = np.array([2.0, -4.0, 1.0, 1e9] * 100)  # twice each standard deviation
    assert excuse(1.0).size(np.abs(actual)) == 4.0
    assert excuse(4 / 1.5).holds(actual, expected)
    assert not excuse(4 / 1.501).holds(actual, expected)
    assert excuse(0.0, 340).holds(actual[:340], expected[:340]), "255 elements prove nothing"
    assert not excuse(0.0, 342).holds(actual[:342], expected[:342])
    far = np.where(np.arange(400) == 0, 1e6, 0.0)
    assert excuse(1.0).size(far) == pytest.approx(64 / 300)
    infinite = np.where(np.arange(400) == 0, np.inf, 1.0)
    assert excuse(1.0).size(infinite) == pytest.approx((99 + 100 / 4 + 100 * 4) / 299)
    assert Excuse(np.zeros(3), 1.0, without).size(np.ones(3)) == 0.0


@for_each("name", FLOATS)
def test_the_quick_bound_is_the_documented_sum(name: str) -> None:
    fmt, wide = FLOAT_LIMITS[name], name == "float64"
    expected = np.array([0.0, 1.0, -1.5, 100.0, fmt.smallest_normal / 2, fmt.max])
    with np.errstate(over="ignore"):
        ulp = np.maximum(np.ldexp(fmt.eps / 2, np.frexp(expected)[1]), fmt.smallest_subnormal)
    ulp[0] = fmt.smallest_subnormal
    smallest, unit = (2.0**-1022, 2.0**-52) if wide else (2.0**-126, 2.0**-23)
    for longest in (1, 64, 1024):
        factor = 8 * (1 + math.sqrt(longest) / 8)
        for exact in (False, True):
            bound = make_quick_bound(fmt, longest, exact_op=exact)
            share, floor = (0.0, smallest) if exact else (factor * unit, factor * smallest)
            wanted = share * np.abs(expected) + 2 * ulp + floor
            found = bound.tolerance(expected, slice(None))
            assert np.allclose(found, wanted, rtol=1e-12, atol=0)
            atol, rtol = bound.proof
            assert (atol + rtol * np.abs(expected) <= found * (1 + 2.0**-50)).all()
            assert (atol, rtol) == pytest.approx(
                (fmt.smallest_subnormal / 4 + floor, share + 0.875 * fmt.eps), rel=1e-12
            )
