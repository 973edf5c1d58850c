"""Shape classes: which sizes they give, and what they never exceed."""

from __future__ import annotations

import math

import pytest
from for_each import for_each

from gpuemu_flow.cases.op_schema import BUILTIN_SCHEMAS, Dim, OpSchema, TensorDef
from gpuemu_flow.cases.shapes import (
    CLASSES,
    HUGE,
    MEDIUM,
    MEMBER,
    SMALL,
    TYPICAL,
    ShapePlanner,
    class_sizes,
    is_prime,
    listed_sizes,
)


def one_input(*dims: Dim) -> OpSchema:
    return OpSchema(dims, (TensorDef("x", tuple(dim.name for dim in dims)),))


def sizes_of(schema: OpSchema, shape_class: str, times: int = 1) -> list[tuple[int, ...]]:
    planner = ShapePlanner(schema)
    return [tuple(size for _, size in planner.next_sizes(shape_class).dims) for _ in range(times)]


def test_primes():
    small = [n for n in range(2000) if n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1))]
    assert [n for n in range(2000) if is_prime(n)] == small
    assert is_prime(2**31 - 1)
    assert not is_prime(3215031751), "a strong pseudoprime to the bases 2, 3, 5 and 7"


def test_each_class_has_sizes_of_its_kind():
    for name, sizes in TYPICAL.items():
        assert all(map(MEMBER[name], sizes)), name


@for_each(
    ("shape_class", "size"),
    [
        ("tail", 3), ("pow2_plus_1", 65), ("prime", 131), ("pow2_minus_1", 63), ("pow2", 64),
        ("multiple_of_128", 128), ("maximum", 1000), ("ones", 1),
    ],
)  # fmt: skip
def test_each_class_of_a_range_has_its_typical_size(shape_class: str, size: int):
    assert sizes_of(one_input(Dim("N", (), 1, 1000)), shape_class) == [(size,)]


def test_a_range_gives_different_sizes_of_a_class_in_turn():
    sizes = sizes_of(one_input(Dim("N", (), 1, 1000)), "pow2_plus_1", times=9)
    assert set(sizes) == {(5,), (9,), (17,), (33,), (65,), (129,), (257,), (513,)}


@pytest.mark.parametrize(
    ("shape_class", "multiples"),
    [("tail", (3, 5, 7)), ("pow2_plus_1", (17, 33)), ("prime", (37, 19))],
)
def test_multiples_are_classed_by_their_number(shape_class: str, multiples: tuple[int, ...]):
    found = class_sizes(Dim("N", (), 8, 312, 8), shape_class)
    assert found[: len(multiples)] == tuple(8 * n for n in multiples)


@pytest.mark.parametrize(
    ("dim", "prime", "plus_1"),
    [
        (Dim("N", (), 1, 4096), (131, 4093), (65, 2049)),
        (Dim("N", (), 1, 10**9), (131, 16381), (65, 8193)),
        (Dim("N", (), 1, 131), (131, 67), (65, 129)),
        (Dim("N", (), 8, 8000, 8), (8 * 131, 8 * 997), (8 * 65, 8 * 513)),
    ],
)
def test_the_second_size_ends_in_the_last_tile_of_many(
    dim: Dim, prime: tuple[int, int], plus_1: tuple[int, int]
):
    """Kernels tile by 1024 and more: 131 and 65 lie in their first tile, 4096 in whole ones."""
    assert class_sizes(dim, "prime")[:2] == prime
    assert class_sizes(dim, "pow2_plus_1")[:2] == plus_1


def test_a_range_above_the_small_sizes_still_has_an_odd_tail():
    assert class_sizes(Dim("N", (), 100, 900), "tail") == (101, 103, 105)


def test_sizes_stay_within_the_range_and_its_multiples():
    dim = Dim("N", (), 24, 4000, 8)
    for shape_class in ("tail", "pow2_plus_1", "prime", "pow2_minus_1", "pow2", "multiple_of_128"):
        for size in class_sizes(dim, shape_class):
            assert 24 <= size <= 4000, shape_class
            assert size % 8 == 0, shape_class


def test_a_short_range_is_the_list_of_its_sizes():
    assert listed_sizes(Dim("B", (), 1, 8)) == tuple(range(1, 9))
    assert listed_sizes(Dim("B", (), 5, 30, 8)) == (8, 16, 24)
    assert listed_sizes(Dim("B", (), 1, 9)) == ()


def test_candidates_mean_exactly_these_sizes():
    candidates = {"M": (1, 7, 128), "K": (100, 200), "N": (3, 65)}
    schema = OpSchema(
        tuple(Dim(name, sizes) for name, sizes in candidates.items()),
        BUILTIN_SCHEMAS["matmul"].inputs,
    )
    planner = ShapePlanner(schema)
    seen: dict[str, set[int]] = {name: set() for name in candidates}
    for shape_class in planner.classes:
        for _ in range(4):
            for name, size in planner.next_sizes(shape_class).dims:
                seen[name].add(size)
    assert seen == {name: set(sizes) for name, sizes in candidates.items()}


@pytest.mark.parametrize("name", sorted(BUILTIN_SCHEMAS))
def test_builtins_have_all_classes_and_small_cases(name: str):
    planner = ShapePlanner(BUILTIN_SCHEMAS[name])
    expected = {
        "tail", "pow2_plus_1", "prime", "maximum", "equal", "pow2_minus_1", "ones", "pow2",
        "all_maximum",
    }  # fmt: skip
    assert expected <= set(planner.classes)
    assert set(planner.classes) <= set(CLASSES)
    for shape_class in planner.classes:
        limit = {"maximum": MEDIUM, "all_maximum": 1_000_000}.get(shape_class, SMALL)
        for _ in range(12):
            for shape in planner.next_sizes(shape_class).shapes:
                assert math.prod(shape) <= limit, shape_class


@pytest.mark.parametrize("salt", [None, 1, 2**63 + 12345])
def test_a_size_of_the_class_is_always_there(salt: int | None):
    planner = ShapePlanner(BUILTIN_SCHEMAS["matmul"])
    holds = {
        "tail": lambda n: n in (3, 5, 7, 9, 11, 13, 15),
        "pow2_plus_1": lambda n: n - 1 in (4, 8, 16, 32, 64, 128, 256, 512),
        "pow2_minus_1": lambda n: n + 1 in (8, 16, 32, 64, 128, 256, 512),
        "pow2": lambda n: n in (2, 4, 8, 16, 32, 64, 128, 256, 512),
        "prime": lambda n: n > 16 and is_prime(n),
        "multiple_of_128": lambda n: n % 128 == 0,
        "maximum": lambda n: n in (260, 520),
        "ones": lambda n: n == 1,
    }
    for shape_class, member in holds.items():
        for _ in range(6):
            sizes = [size for _, size in planner.next_sizes(shape_class, salt).dims]
            assert any(member(size) for size in sizes), (shape_class, sizes)


def test_the_focus_moves_over_all_dims():
    planner = ShapePlanner(BUILTIN_SCHEMAS["matmul"])
    sizes = [dict(planner.next_sizes("maximum").dims) for _ in range(3)]
    assert [d["K"] for d in sizes].count(520) == 1
    assert sizes[0]["K"] == 520, "the dim that is summed over comes first"
    assert {name for d in sizes for name in d if d[name] in (260, 520)} == {"M", "K", "N"}


def test_equal_has_two_equal_dims_above_one():
    for name in sorted(BUILTIN_SCHEMAS):
        for sizes in sizes_of(BUILTIN_SCHEMAS[name], "equal", times=8):
            above = [size for size in sizes if size > 1]
            assert len(set(above)) < len(above), (name, sizes)


def test_one_dim_at_one_leaves_others_above_it():
    for sizes in sizes_of(one_input(Dim("A", (), 1, 50), Dim("B", (), 1, 60)), "ones", times=6):
        assert sorted(sizes)[0] == 1
        assert sorted(sizes)[1] > 1


def test_single_dims_have_no_classes_of_several_dims():
    planner = ShapePlanner(one_input(Dim("N", (), 1, 300)))
    assert not {"equal", "all_ones", "all_maximum"} & set(planner.classes)


def test_a_schema_of_one_shape_is_all_candidates():
    planner = ShapePlanner(one_input(Dim("B", (8,)), Dim("S", (128,)), Dim("H", (512,))))
    assert planner.classes == ("candidates",)
    assert planner.next_sizes("candidates").shapes == ((8, 128, 512),)


def test_zero_is_a_class_of_its_own_and_hides_in_no_other():
    planner = ShapePlanner(one_input(Dim("N", (), 0, 300), Dim("M", (), 0, 300)))
    assert "empty" in planner.classes
    for shape_class in planner.classes:
        for _ in range(6):
            (shape,) = planner.next_sizes(shape_class).shapes
            assert (0 in shape) == (shape_class == "empty"), shape_class


def test_fixed_shapes_are_classes_of_their_own():
    inputs = (TensorDef("x", ("N",)), TensorDef("y", ("N",)))
    schema = OpSchema((Dim("N", (4,)),), inputs, (), ((2, 3), ()))
    planner = ShapePlanner(schema)
    assert planner.classes == ("candidates", "fixed:0", "fixed:1")
    assert planner.next_sizes("fixed:0").shapes == ((2, 3), (2, 3))
    assert planner.next_sizes("fixed:1").shapes == ((), ())
    assert planner.label("fixed:1") == "fixed"


def test_an_enormous_range_makes_no_enormous_tensor():
    million = Dim("N", (), 1, 10**6)
    dims = (million, Dim("M", (), 1, 10**6), Dim("K", (), 1, 2**31 - 1))
    planner = ShapePlanner(OpSchema(dims, (TensorDef("x", ("N", "M", "K", 512)),)))
    assert "all_maximum" not in planner.classes
    for shape_class in (*planner.classes, "random"):
        for salt in (None, 7, 2**64 - 1):
            (shape,) = planner.next_sizes(shape_class, salt).shapes
            assert math.prod(shape) <= HUGE, shape_class


def test_random_sizes_are_small_and_large():
    planner = ShapePlanner(one_input(Dim("N", (), 1, 4000)))
    salts = [0x9E3779B97F4A7C15 * n % 2**64 for n in range(1, 400)]
    sizes = [planner.next_sizes("random", salt).dims[0][1] for salt in salts]
    assert min(sizes) == 1
    assert max(sizes) > 3000
    assert sum(size < 64 for size in sizes) > 100
    assert len(set(sizes)) > 150
