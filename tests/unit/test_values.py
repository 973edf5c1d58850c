"""Value strategies: what each promises about the tensor, for every dtype."""

from __future__ import annotations

import itertools
import math
import warnings
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
from for_each import for_each

from gpuemu_flow.cases.generate import SHARED_SPECIALS, VARIETIES, input_values
from gpuemu_flow.cases.rule_values import fit_to_rule, setting_of, without_poison
from gpuemu_flow.cases.special_values import may_hold_lone, near_constants
from gpuemu_flow.cases.values import draw
from gpuemu_flow.model.types import (
    DTYPES,
    PATTERNS,
    STRATEGIES,
    Case,
    InputSpec,
    Unused,
    ValueRule,
    strategies_of,
)
from gpuemu_flow.numerics.dtypes import float_limits, numpy_dtype, to_float64
from gpuemu_flow.numerics.rng import SeededRng
from gpuemu_flow.numerics.rng_arrays import fill_uniform

FLOATS = [name for name, d in DTYPES.items() if d.kind == "float"]
INTEGERS = [name for name, d in DTYPES.items() if d.kind in ("int", "uint")]
SEEDS = range(8)


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield


def tensor(strategy: str, dtype: str = "float32", shape=(40, 33), seed: int = 1, **kwargs):
    return draw(strategy, SeededRng(seed), shape, dtype, **kwargs)


def exact(strategy: str, dtype: str = "float32", shape=(40, 33), seed: int = 1, **kwargs):
    return to_float64(tensor(strategy, dtype, shape, seed, **kwargs))


SHAPES = [(), (0,), (3, 0), (1,), (7,), (1, 1), (5, 1), (2, 3, 5)]


@for_each("strategy", STRATEGIES)
def test_shape_dtype_and_order(strategy: str):
    for dtype in sorted(DTYPES):
        for shape in SHAPES:
            first = tensor(strategy, dtype, shape)
            assert first.shape == shape
            assert first.dtype == numpy_dtype(dtype)
            assert first.flags.c_contiguous
            assert first.flags.writeable


@for_each("strategy", STRATEGIES)
def test_another_seed_gives_other_values(strategy: str):
    for dtype in [d for d in DTYPES if d != "bool"]:
        assert tensor(strategy, dtype).tobytes() != tensor(strategy, dtype, seed=2).tobytes()


@for_each("strategy", [s for s in STRATEGIES if s != "special"])
def test_all_strategies_but_special_are_finite(strategy: str):
    for dtype in FLOATS:
        for seed in SEEDS:
            assert np.isfinite(exact(strategy, dtype, seed=seed)).all()


@for_each("dtype", sorted(DTYPES))
def test_uniform_is_gpuemus(dtype: str):
    expected = fill_uniform(SeededRng(9), 24, dtype).reshape(4, 6)
    assert tensor("uniform", dtype, (4, 6), seed=9).tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", FLOATS)
def test_normal(dtype: str):
    values = exact("normal", dtype, (200, 200))
    assert abs(values.mean()) < 0.03
    assert abs(values.std() - 1) < 0.05


def test_normal_float64_fills_the_whole_mantissa():
    values = tensor("normal", "float64")
    assert (values != values.astype(np.float32)).mean() > 0.99


@pytest.mark.parametrize("dtype", FLOATS)
def test_small(dtype: str):
    values = exact("small", dtype)
    bound = max(1e-3, 4 * float_limits(dtype).smallest_normal)
    assert np.abs(values).max() <= bound * 1.01
    assert len(np.unique(values)) > 10, "not all rounded to zero"


@pytest.mark.parametrize("dtype", FLOATS)
def test_negative(dtype: str):
    for seed in SEEDS:
        values = exact("negative", dtype, seed=seed)
        assert values.max() < 0
        near = (values < -90).all(axis=1)
        assert near.any(), "some rows near -100"
        assert not near.all()
        assert values.min() > -110


@pytest.mark.parametrize("dtype", FLOATS)
def test_sparse(dtype: str):
    for seed in SEEDS:
        values = exact("sparse", dtype, seed=seed)
        assert 0.4 < (values == 0).mean() < 0.6
        assert (values == 0).all(axis=1).sum() == 1
        if not dtype.startswith("float8"):  # where small normals round to zeros of either sign
            assert not np.signbit(values[values == 0]).any()


def test_sparse_has_rows_of_one_element_anywhere():
    for dtype in ("float32", "int32"):
        places: set[int] = set()
        for seed in range(40):
            rows = tensor("sparse", dtype, seed=seed) != 0
            alone = np.flatnonzero(rows.sum(axis=1) == 1)
            assert len(alone) >= 2, dtype
            places.update(rows[alone].argmax(axis=1).tolist())
        assert len(places) > 25, "a random column of the 33"


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_a_sparse_vector_begins_with_zero_and_does_not_end_with_it(dtype: str):
    for seed in SEEDS:
        for size in (2, 3, 33):
            values = tensor("sparse", dtype, shape=(size,), seed=seed)
            assert values[0] == 0, seed
            assert values[-1] != 0 or dtype == "int32", "integers draw 0 themselves"


def test_strategies_draw_from_domains_of_their_own():
    normal, sparse = exact("normal"), exact("sparse")
    assert not (normal == sparse).any()


@pytest.mark.parametrize("dtype", FLOATS)
def test_ties(dtype: str):
    for seed in SEEDS:
        values = exact("ties", dtype, seed=seed)
        assert len(np.unique(values)) <= 8
        distinct = [len(np.unique(row)) for row in values]
        assert distinct.count(1) >= 10, "constant rows"
        assert max(distinct) > 1
        assert 1 in [len(np.unique(row)) for row in exact("ties", dtype, (2, 33), seed=seed)]


@pytest.mark.parametrize("dtype", FLOATS)
def test_integers_are_exact(dtype: str):
    values = exact("integers", dtype)
    assert set(np.unique(values)) == set(range(-8, 9))


@pytest.mark.parametrize("dtype", FLOATS)
def test_wide(dtype: str):
    values = np.abs(exact("wide", dtype))
    bound = min(1000.0, float_limits(dtype).max)
    assert bound * 0.95 < values.max() <= bound * 1.03


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_wide_holds_halves_of_the_steps_of_usual_scales(dtype: str):
    for scale in [0.125, 0.25, 0.5, 1.0, 2.0, 4.0]:
        for seed in SEEDS:
            steps = exact("wide", dtype, (40, 128), seed=seed) / scale
            halves = (np.abs(steps) < 127) & (steps - np.floor(steps) == 0.5)
            below = np.floor(steps[halves])
            assert (below % 2 == 0).sum() >= 8, "rounded up by one that does not round to even"


@pytest.mark.parametrize("dtype", FLOATS)
def test_offset(dtype: str):
    for seed in SEEDS:
        values = exact("offset", dtype, (8, 200), seed=seed)
        mean = abs(values.mean())
        assert min(abs(mean - m) / m for m in (7.0, 30.0, 100.0)) < 0.1
        ulp = float_limits(dtype).eps * 2.0 ** math.floor(math.log2(mean))
        deviations = values.std(axis=1)
        assert deviations.min() < 10 * ulp, "a few ulp of the mean"
        assert deviations.min() > ulp, "but not constant"
        if dtype in ("float32", "float64"):
            assert 0.5 < deviations.max() < 2


@pytest.mark.parametrize("dtype", FLOATS)
def test_extremes(dtype: str):
    limits = float_limits(dtype)
    for seed in SEEDS:
        values = exact("extremes", dtype, (20, 60), seed=seed)
        magnitudes = np.abs(values)
        raw = (values == 0).any(axis=1)
        assert raw.sum() == 10
        largest = (magnitudes == limits.max).sum(axis=1)
        if limits.max > 2.0**64:
            assert largest.sum() == 1, "more would leave nothing of a matrix product finite"
        assert (largest > 0).sum() == (10 if limits.max < 2.0**64 else 1)
        assert not largest[~raw].any()
        assert limits.smallest_normal in magnitudes
        assert limits.smallest_subnormal in magnitudes
        beyond = magnitudes[~raw] > math.sqrt(limits.max)
        assert beyond.sum() <= 1
        assert magnitudes[~raw][beyond].max(initial=0) < limits.max**0.8
        assert magnitudes[~raw][~beyond].max() >= limits.max**0.45 / 4
        assert magnitudes[~raw].min() > 0


@pytest.mark.parametrize("shape", [(1,), (7,), (20, 60)])
def test_the_square_of_an_extreme_overflows_though_it_is_not_the_largest(
    shape: tuple[int, ...],
) -> None:
    for dtype in FLOATS:
        limits = float_limits(dtype)
        drawn = [np.abs(exact("extremes", dtype, shape, seed=seed)) for seed in range(40)]
        beyond = [(values > math.sqrt(limits.max)) & (values < limits.max) for values in drawn]
        found = [int(marks.sum()) for marks in beyond]
        assert max(found) == 1
        assert 8 < sum(found) < 32, "in about every second tensor"


@pytest.mark.parametrize("dtype", FLOATS)
def test_special_has_each_kind(dtype: str):
    limits = float_limits(dtype)
    infinity = math.inf if limits.has_inf else limits.max
    for seed in SEEDS:
        values = exact("special", dtype, seed=seed)
        assert np.isnan(values).any()
        assert (values == infinity).any()
        assert (values == -infinity).all(axis=1).any(), "a whole row of -Inf"
        assert (np.signbit(values) & (values == 0)).any()
        plain = np.isfinite(values) & (np.abs(values) < infinity)
        assert plain.all(axis=1).any(), "ordinary rows remain"


def test_special_has_rows_of_all_kinds_and_blocks_of_rows():
    mixed = blocks = single = 0
    for seed in range(20):
        values = exact("special", seed=seed)
        rows = np.isnan(values).any(1), np.isposinf(values).any(1), np.isneginf(values).any(1)
        mixed += int(np.logical_and.reduce(rows).sum())
        whole = np.flatnonzero(np.isneginf(values).all(axis=1))
        starts = np.flatnonzero(np.diff(np.append(-9, whole)) > 1)
        lengths = np.diff(np.append(starts, whole.size))
        assert set(lengths.tolist()) <= {1, 3}
        blocks += int((lengths == 3).sum())
        single += int((lengths == 1).sum())
    assert min(mixed, blocks, single) >= 10


def test_special_values_do_not_poison_a_large_tensor():
    values = tensor("special", shape=(2000, 8))
    odd_rows = (~np.isfinite(values)).any(axis=1).sum()
    assert 8 <= odd_rows <= 32


@pytest.mark.parametrize("shape", [(), (1,), (4,), (1, 9), (2, 3)])
def test_special_has_at_least_one_in_each_tensor(shape: tuple[int, ...]):
    for dtype in FLOATS:
        limits = float_limits(dtype)
        kinds = set()
        for seed in range(60):
            values = np.atleast_1d(exact("special", dtype, shape, seed=seed))
            nan, negative_zero = np.isnan(values), np.signbit(values) & (values == 0)
            infinite = np.isinf(values) | (np.abs(values) == limits.max)
            assert (nan | negative_zero | infinite).any()
            kinds |= {k for k, found in enumerate((nan, negative_zero, infinite)) if found.any()}
        assert kinds == {0, 1, 2}


@for_each("strategy", STRATEGIES)
@for_each("bounds", [(0.0, 1.0), (-2.5, 0.3), (5.0, 5.0), (100.0, 200.0)])
def test_floats_stay_in_their_range(strategy: str, bounds: tuple[float, float]):
    for dtype in FLOATS:
        low, high = bounds
        values = exact(strategy, dtype, low=low, high=high)
        assert not np.isnan(values).any()
        assert values.min() >= low
        assert values.max() <= high


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_range_keeps_most_values_apart(dtype: str):
    values = exact("normal", dtype, low=0.0, high=1.0)
    assert (values == values.min()).mean() < 0.2, "reflected, not piled up at the ends"


def test_a_range_that_is_open_on_one_side():
    positive = exact("special", low=0.0)
    assert (positive[~np.isnan(positive)] >= 0).all()
    assert np.isnan(positive).any()
    assert np.isposinf(positive).any()
    below = exact("wide", high=-3.0)
    assert below.max() <= -3
    assert below.min() < -900


def test_a_range_of_the_whole_of_float64_overflows_nowhere():
    for strategy in STRATEGIES:
        values = exact(strategy, "float64", low=-1.7e308, high=1.7e308)
        assert np.isfinite(values).all()
        assert np.isfinite(exact(strategy, "float64", low=-1.7e308)[0, 0]) or strategy == "special"


@for_each("strategy", STRATEGIES)
@for_each("bounds", [(0, 100), (3, 4), (5, 5), (0, 1)])
def test_integers_stay_in_their_range(strategy: str, bounds: tuple[int, int]):
    for dtype in INTEGERS:
        low, high = bounds
        for seed in SEEDS[:3]:
            values = tensor(strategy, dtype, seed=seed, low=low, high=high)
            assert values.min() >= low
            assert values.max() <= high
        if high - low > 0:
            assert len(np.unique(values)) > 1


def test_indices_reach_both_ends_of_their_range():
    for strategy in ("uniform", "extremes", "special"):
        values = tensor(strategy, "int32", low=0, high=50)
        assert values.min() == 0
        assert values.max() == 50


def test_normal_indices_are_often_small_whatever_the_range():
    values = tensor("normal", "int32", low=-1, high=50_000)
    assert (values < 16).mean() > 0.2
    assert values.min() == -1
    assert values.max() > 20_000


@for_each("dtype", INTEGERS)
def test_integer_strategies(dtype: str):
    info = np.iinfo(numpy_dtype(dtype))
    signed = info.min < 0
    extremes = tensor("extremes", dtype)
    assert {int(info.min), int(info.max)} <= {int(v) for v in np.unique(extremes)}
    special = tensor("special", dtype)
    assert (special == info.min).all(axis=1).any()
    assert (special == info.max).any()
    negative = tensor("negative", dtype)
    if signed:
        assert -104 <= negative.min() <= negative.max() < 0
    else:
        assert negative.min() > info.max // 2, "negative when taken for signed"
    small = tensor("small", dtype)
    assert {int(v) for v in np.unique(small)} == ({-1, 0, 1} if signed else {0, 1, 2})
    sparse = tensor("sparse", dtype)
    assert 0.4 < (sparse == 0).mean() < 0.7
    assert (sparse == 0).all(axis=1).any()
    assert any(len(np.unique(row)) == 1 for row in tensor("ties", dtype))
    wide = tensor("wide", dtype)
    assert int(wide.max()) > min(900, int(info.max) - 10)


def test_bool_strategies():
    assert 0.4 < tensor("uniform", "bool").mean() < 0.6
    assert not tensor("negative", "bool").any()
    assert tensor("offset", "bool").all()
    assert tensor("ties", "bool").mean() not in (0, 1)


@pytest.mark.parametrize(("strategy", "value"), [("sparse", True), ("special", False)])
def test_one_boolean_differs_from_its_row_wherever_it_is(
    strategy: str,
    value: bool,
) -> None:
    for shape in [(300,), (1, 300), (20, 60)]:
        places = list[int]()
        for seed in range(30):
            rows = tensor(strategy, "bool", shape, seed=seed).reshape(-1, shape[-1])
            alone = (rows == value).sum(axis=1) == 1
            assert alone.sum() >= len(rows) // 2
            assert len(rows) == 1 or not alone.all(), "other rows are as random as ever"
            places += np.nonzero(rows[alone] == value)[1].tolist()
        assert np.mean(np.array(places) >= 8) > 0.5
        assert max(places) > 0.8 * shape[-1]


@pytest.mark.parametrize(("strategy", "dtype"), [("gaussian", "float32"), ("normal", "float99")])
def test_unknown_names(strategy: str, dtype: str):
    with pytest.raises(ValueError, match="there is no"):
        tensor(strategy, dtype)


RANGES = ((None, None), (-3.1, 4.3), (0.3, None), (None, -2.1), (0, 0), (5.7, 700))
KIND_RULES: dict[str, list[dict[str, object]]] = {
    "sorted": [{"descending": True}, {"low": 2, "high": 5}],
    "offsets": [{"to": 0}, {"to": 7}, {"to": 700}],
    "lengths": [
        {"to": 3},
        {"to": 300, "total": 700},
        {"low": 1, "high": 9, "total": 40},
        {"to": 5, "total": 0},
        {"low": 2, "high": 2, "total": 8},
    ],
    "mask": [{"allow_empty_rows": True}, {"share": 0.1}],
    "positive": [{"low": 0.5, "high": 3}, {"values": (7,), "share": 0.3}],
    "indices": [{"of": "t"}, {"of": "t", "axis": 1, "values": (-1,)}],
    "quantized": [{"bits": 4}, {"bits": 8}],
    "scalar": [{"values": (1, 2, 5)}, {"low": -2, "high": 7}],
    "unique": [{"low": 3, "high": 30}, {"high": 5}],
}
VALUE_RULES = [
    ValueRule(unused=Unused("n", 2, (0,))),
    ValueRule(values=(3, 1, 7)), ValueRule(values=(3, 1), low=0, high=9), ValueRule(low=1),
    ValueRule(values=(3,), low=0, high=9, share=0.5), ValueRule(low=0, high=5, nonfinite=True),
    ValueRule(columns=((0, "<=", 2), (1, ">", 3))), ValueRule(low=-2, high=2, nonfinite=True),
    ValueRule(low=1), ValueRule(nonfinite=False), ValueRule(low=2.1, nonfinite=False),
    ValueRule(high=-3.1, nonfinite=False), ValueRule(nonfinite=False),
    *(ValueRule(relation=sign, other="t", high=high)
      for sign in ("<", "<=", ">", ">=", "==", "!=") for high in (None, 5)),
    ValueRule(relation="<=", other="t", low=-2, high=2),
]  # fmt: skip
MATRICES, FLOATING = ("symmetric", "positive_definite"), ("probabilities",)
LONE_RANGES = (
    (0, 0.5),
    (-0.5, 0),
    (-7, 0),
    (0, 1),
    (-1, 0),
    (None, 0),
    (0.5, 9),
    (-9, -0.5),
    (0, 0),
)
SHAPES_DRAWN = ((4, 9), (1, 11), (6,), (2, 3, 70), (), (33, 3), (2, 66))
RECORD = {
    "uniform": "b2267535", "normal": "166f7d1a", "small": "1be11e7c", "negative": "11e76cfa",
    "sparse": "89757fac", "ties": "52f0c0a6", "integers": "5a11212a", "wide": "c659fac3",
    "offset": "f88eac00", "extremes": "2de6857f", "special": "9de74eec", "permutation": "2308f32c",
    "sorted": "3f7bb292", "offsets": "ce2e305f", "lengths": "4780fb25", "mask": "457f1743",
    "one_hot": "bf07cd6f", "positive": "62ed1dd2", "probabilities": "ae1ff166",
    "symmetric": "52dc7294", "positive_definite": "ab25c6f8", "unique": "745b2323",
    "indices": "d370a8fe", "quantized": "b1568324", "packed": "610345b7", "scalar": "c96faddd",
}  # fmt: skip


def _inputs_of_strategy(strategy: str) -> Iterator[tuple[InputSpec, ...]]:
    """Yield inputs of cases; the last one, and those that it depends on."""
    shared = SHARED_SPECIALS if strategy == "special" else ()
    turns = [*range(VARIETIES.get(strategy, 0) + 1), *shared]
    demands = [*({"turn": turn} for turn in turns), {"ends": 1}, {"ends": 2}, {}]
    dtypes = ("float32", "bfloat16", "float8_e4m3fn", "float64", "int64", "uint8", "bool")
    for number, dtype in enumerate(dtypes):
        for turn, more in enumerate(demands[: 1 if dtype == "bool" else None]):
            shape = SHAPES_DRAWN[(number * 2 + turn) % len(SHAPES_DRAWN)]
            for low, high in ((None, None), RANGES[(number + turn) % len(RANGES)]):
                spec = InputSpec("x", shape, dtype, "contiguous", strategy, 1, low, high, **more)
                spec = spec if more else near_constants(spec, (20.0, 0.3, 60000.0))
                other = InputSpec("t", shape, dtype, "contiguous", strategy, 0, -20, None, 0, 5)
                yield other, spec
    ends = itertools.product(("float32", "int64"), ((3, 70), (5,)), (3, 4, 5), LONE_RANGES)
    for dtype, shape, turn, (low, high) in ends if strategy == "normal" else ():
        spec = InputSpec("x", shape, dtype, low=low, high=high, turn=turn, strategy=strategy)
        assert low != high or not may_hold_lone(spec)
        yield (spec,)
    lengths = InputSpec("n", (3,), "int32", low=1, high=4)
    for number, rule in enumerate(VALUE_RULES):
        dtype = ("float32", "int8", "float16")[number % 3]
        other = InputSpec("t", (3, 2, 5), dtype, "contiguous", "integers", 1)
        yield lengths, other, InputSpec("x", (3, 2, 5), dtype, strategy=strategy, rule=rule)
    rule = ValueRule(relation="cumsum", other="n")
    yield lengths, InputSpec("x", (4,), "int32", strategy=strategy, rule=rule)
    pages = InputSpec("p", (3, 2), "int32", low=0, high=6)
    rule = ValueRule(unused=Unused("n", 1, table="p"))
    yield lengths, pages, InputSpec("x", (6, 3, 2), "float32", strategy=strategy, rule=rule)


def _inputs_of_kind(kind: str) -> Iterator[tuple[InputSpec, ...]]:
    shapes = ((4, 9), (2, 2), (1,), (300,))
    shapes = {"scalar": ((),), **dict.fromkeys(MATRICES, ((2, 5, 5), (1, 1)))}.get(kind, shapes)
    table = InputSpec("t", (6, 11), "float32")
    for more in [{}, *KIND_RULES.get(kind, [])]:
        rule = ValueRule(kind=kind, **more)  # type: ignore[arg-type]
        for dtype in ("float32", "bfloat16", "int32", "uint8")[: 2 if kind in FLOATING else None]:
            for pattern in strategies_of(rule):
                for shape in shapes[: 1 if dtype in ("bfloat16", "uint8") else None]:
                    yield table, InputSpec("x", shape, dtype, strategy=pattern, rule=rule)


def drawn_crc(all_inputs: Iterator[tuple[InputSpec, ...]]) -> str:
    """Return a checksum of the values of all inputs, and of other values made to follow rules."""
    crc = 0
    for seed, inputs in enumerate(all_inputs):
        case = Case(0, seed, "float32", "contiguous", "uniform", inputs)
        made = {spec.name: input_values(case, spec) for spec in inputs}
        for values in made.values():
            crc = zlib.crc32(values.tobytes(), crc)
        spec = inputs[-1]
        if spec.rule is not None:
            shapes = {each.name: each.shape for each in inputs}
            setting = setting_of(spec, SeededRng(5), {}, shapes)
            plain = (np.arange(made["x"].size) * 7 % 23 - 4).astype(made["x"].dtype)
            if not spec.rule.kind and setting.floating:
                plain[3::7] = np.nan
            fitted = fit_to_rule(plain.reshape(spec.shape), setting, made)
            crc = zlib.crc32(b"none" if fitted is None else fitted.tobytes(), crc)
            if spec.rule.unused is not None:
                others = [made[name] for name in spec.rule.unused.others]
                crc = zlib.crc32(without_poison(made["x"], spec.rule, others).tobytes(), crc)
                moved = [np.roll(each, 1) for each in others]
                crc = zlib.crc32(without_poison(made["x"], spec.rule, moved).tobytes(), crc)
    return f"{crc:08x}"


def test_values_are_the_recorded_ones() -> None:
    """A seed means the same values for ever: where they change on purpose, CHANGELOG.md says so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {name: drawn_crc(_inputs_of_strategy(name)) for name in STRATEGIES}
        found |= {kind: drawn_crc(_inputs_of_kind(kind)) for kind in PATTERNS}
    assert found == RECORD
