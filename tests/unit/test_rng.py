"""The seeded generator against gpuemu's own known answers, and the array draws against it."""

from __future__ import annotations

import hashlib
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuemu_flow.numerics import rng_arrays
from gpuemu_flow.numerics.rng import (
    MASK64,
    SeededRng,
    box_muller,
    derive_seed,
    generate_seed,
    initial_state,
    next_word,
    splitmix64,
)

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "data" / "rng_vectors.json").read_text(encoding="utf-8")
)


def from_hex(bits: str) -> float:
    """The double of a big-endian bit pattern."""
    return float(np.frombuffer(bytes.fromhex(bits), dtype=">f8")[0])


def single_from_hex(bits: str) -> float:
    return float(np.frombuffer(bytes.fromhex(bits), dtype=">f4")[0])


def little_endian(array: np.ndarray) -> bytes:
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes()


class TestSeeds:
    def test_splitmix64(self) -> None:
        assert {str(z): str(splitmix64(int(z))) for z in VECTORS["splitmix64"]} == VECTORS[
            "splitmix64"
        ]

    @pytest.mark.parametrize("key", ["derive_seed", "derive_seed_wrap"])
    def test_derive_seed(self, key: str) -> None:
        for vector in VECTORS[key]:
            assert derive_seed(int(vector["seed"]), vector["domain"]) == int(vector["out"]), vector

    def test_derive_seed_is_the_little_endian_digest(self) -> None:
        for vector in VECTORS["blake2b_8_of_le_seed_and_domain"]:
            digest = bytes.fromhex(vector["digest_hex"])
            derived = derive_seed(int(vector["seed"]), vector["domain"])
            assert derived == int.from_bytes(digest, "little") == int(vector["as_u64_le"])

    def test_initial_state(self) -> None:
        for vector in VECTORS["initial_state"]:
            state = (int(vector["s0"]), int(vector["s1"]))
            assert initial_state(int(vector["seed"])) == state
            assert SeededRng(int(vector["seed"])).state == state

    def test_derived_generators_ignore_what_was_drawn(self) -> None:
        for vector in VECTORS["derive_chain"]:
            rng = SeededRng(int(vector["seed"]))
            rng.gen_u64()
            for domain, seed in zip(vector["path"], vector["seeds"], strict=True):
                rng = rng.derive(domain)
                assert rng.seed == int(seed)
            assert rng.gen_u64() == int(vector["first_u64_of_last"])

    @pytest.mark.parametrize("seed", [-1, -42, 1 << 64, (1 << 64) + 42, 5 << 90])
    def test_seeds_are_masked(self, seed: int) -> None:
        assert SeededRng(seed).seed == seed & MASK64
        assert SeededRng(seed).gen_u64() == SeededRng(seed & MASK64).gen_u64()

    def test_numpy_integers_are_seeds_and_floats_are_not(self) -> None:
        for seed in (np.int64(-1), np.uint64(MASK64), np.int8(5)):
            assert SeededRng(seed).seed == int(seed) & MASK64  # type: ignore[arg-type]
            assert derive_seed(seed, "x") == derive_seed(int(seed), "x")  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            SeededRng(1.0)  # type: ignore[arg-type]

    def test_generated_seeds_are_64_bits_and_differ(self) -> None:
        seeds = {generate_seed() for _ in range(100)}
        assert len(seeds) == 100
        assert all(0 <= seed <= MASK64 for seed in seeds)


class TestScalarDraws:
    def test_step(self) -> None:
        for vector in VECTORS["step"]:
            older, newer = int(vector["s0"]), int(vector["s1"])
            newest = next_word(older, newer)
            assert (newer, newest) == (int(vector["new_s0"]), int(vector["new_s1"]))
            assert ((newest ^ newer) + newer) & MASK64 == int(vector["result"])

    def test_gen_u64(self) -> None:
        for vector in VECTORS["gen_u64"]:
            rng = SeededRng(int(vector["seed"]))
            assert [str(rng.gen_u64()) for _ in range(16)] == vector["first16"]

    def test_thousandth_word(self) -> None:
        rng = SeededRng(42)
        for _ in range(999):
            rng.gen_u64()
        assert rng.gen_u64() == int(VECTORS["gen_u64_1000th_seed42"])

    def test_gen_f64(self) -> None:
        for vector in VECTORS["gen_f64"]:
            rng = SeededRng(int(vector["seed"]))
            assert [rng.gen_f64() for _ in range(8)] == [
                from_hex(v["hex"]) for v in vector["first8"]
            ]

    def test_gen_f32(self) -> None:
        for vector in VECTORS["gen_f32"]:
            rng = SeededRng(int(vector["seed"]))
            expected = [single_from_hex(v["hex"]) for v in vector["first8"]]
            assert [rng.gen_f32() for _ in range(8)] == expected

    def test_gen_range(self) -> None:
        for vector in VECTORS["gen_range"]:
            rng = SeededRng(int(vector["seed"]))
            low, high = int(vector["low"]), int(vector["high"])
            assert [str(rng.gen_range(low, high)) for _ in range(8)] == vector["first8"]

    def test_choice_index(self) -> None:
        for vector in VECTORS["choice_index"]:
            rng = SeededRng(int(vector["seed"]))
            drawn = [rng.choice_index(vector["length"]) for _ in range(16)]
            assert drawn == vector["first16"]

    def test_choice(self) -> None:
        for vector in VECTORS["choice"]:
            rng = SeededRng(int(vector["seed"]))
            assert [rng.choice(vector["options"]) for _ in range(12)] == vector["first12"]

    def test_gen_bool(self) -> None:
        for vector in VECTORS["gen_bool"]:
            rng = SeededRng(int(vector["seed"]))
            assert [rng.gen_bool(vector["p"]) for _ in range(16)] == vector["first16"]

    def test_shuffle(self) -> None:
        for vector in VECTORS["shuffle"]:
            items = list(range(vector["n"]))
            SeededRng(int(vector["seed"])).shuffle(items)
            assert items == vector["out"]

    def test_shuffle_of_one_draws_nothing(self) -> None:
        rng = SeededRng(1)
        rng.shuffle([])
        rng.shuffle(["only"])
        assert rng.state == SeededRng(1).state

    def test_empty_choices_are_refused(self) -> None:
        rng = SeededRng(1)
        for draw in (
            lambda: rng.choice([]),
            lambda: rng.choice_index(0),
            lambda: rng.choice_index(-3),
            lambda: rng.gen_range(5, 5),
            lambda: rng.gen_range(5, 3),
            lambda: rng.ranges(2, 5, 5),
            lambda: rng.ranges(2, 0, (1 << 63) + 1),
            lambda: rng.ranges(2, -(1 << 63) - 1, 0),
        ):
            with pytest.raises(ValueError, match=r"empty|nothing"):
                draw()
        assert rng.state == SeededRng(1).state


class TestArrays:
    def test_long_streams(self) -> None:
        for vector in VECTORS["long_stream_sha256"]:
            words = SeededRng(int(vector["seed"])).u64(vector["n"])
            assert hashlib.sha256(little_endian(words)).hexdigest() == vector["sha256"]

    def test_state_after_many_words(self) -> None:
        for vector in VECTORS["jump_ahead"]:
            steps = int(vector["steps"])
            if steps <= 2_000_000:
                rng = SeededRng(int(vector["seed"]))
                rng.u64(steps)
                assert rng.state == (int(vector["s0"]), int(vector["s1"]))

    def test_jump_far_ahead(self) -> None:
        vector = VECTORS["jump_ahead"][-1]
        doublings = int(vector["steps"]).bit_length() - 1
        assert 1 << doublings == int(vector["steps"]) == 1 << 40
        jump = rng_arrays.basis_words(1)[1:].T.copy()
        for _ in range(doublings):
            jump = rng_arrays.advanced(jump, rng_arrays.subset_table(jump, 8))
        state = np.array([initial_state(int(vector["seed"]))], dtype=np.uint64)
        after = rng_arrays.advanced(state, rng_arrays.subset_table(jump, 8))[0]
        assert after.tolist() == [int(vector["s0"]), int(vector["s1"])]

    @pytest.mark.parametrize(
        "count", [0, 1, 7, 24, 25, 1024, 1025, 4096, 4097, 4800, 40_000, 131_073]
    )
    def test_every_kind_equals_single_draws(self, count: int) -> None:
        kinds = {
            "u64": SeededRng.gen_u64,
            "f64": SeededRng.gen_f64,
            "f32": SeededRng.gen_f32,
            "uniform10_f64": lambda rng: (2.0 * rng.gen_f64() - 1.0) * 10.0,
        }
        for name, draw in kinds.items():
            one_by_one, at_once = SeededRng(99), SeededRng(99)
            expected = [draw(one_by_one) for _ in range(count)]
            values = getattr(at_once, name)(count)
            assert values.tolist() == expected
            assert at_once.state == one_by_one.state

    def test_dtypes_and_shapes(self) -> None:
        rng = SeededRng(1)
        for count in (0, 3, 2000, 9000):
            for name, dtype in {
                "u64": np.uint64,
                "f64": np.float64,
                "f32": np.float32,
                "uniform10_f64": np.float64,
                "uniform10_f32": np.float32,
                "normal_f32": np.float32,
                "normal_f64": np.float64,
            }.items():
                values = getattr(rng, name)(count)
                assert values.dtype == dtype
                assert values.shape == (count,)
                assert values.flags.c_contiguous
                assert values.flags.writeable

    def test_uniform10_f32_is_the_rounded_double(self) -> None:
        singles = SeededRng(5).uniform10_f32(300_000)
        doubles = SeededRng(5).uniform10_f64(300_000)
        assert np.array_equal(singles, doubles.astype(np.float32))
        assert doubles.min() >= -10.0
        assert doubles.max() < 10.0

    @pytest.mark.parametrize(
        ("low", "high"),
        [(0, 1), (-100, 100), (5, 6), (-(1 << 63), 1 << 63), (0, 1 << 63), (-(1 << 63), 0)],
    )
    def test_ranges(self, low: int, high: int) -> None:
        one_by_one, at_once = SeededRng(17), SeededRng(17)
        expected = [one_by_one.gen_range(low, high) for _ in range(1500)]
        drawn = at_once.ranges(1500, low, high)
        assert drawn.dtype == np.int64
        assert drawn.tolist() == expected
        assert at_once.state == one_by_one.state

    def test_the_widest_ranges(self) -> None:
        words = [0, 1, MASK64 - 1, MASK64]
        for low, high in ((-(1 << 63), 1 << 63), (-(1 << 63), (1 << 63) - 1), (1 - (1 << 63), 0)):
            folded = rng_arrays.fold_into_range(np.array(words, dtype=np.uint64), low, high)
            assert folded.tolist() == [low + word % (high - low) for word in words]

    def test_negative_counts_are_refused(self) -> None:
        rng = SeededRng(1)
        for name in ("u64", "f64", "f32", "uniform10_f32", "normal_f32", "normal_f64"):
            with pytest.raises(ValueError, match="cannot draw -1 values"):
                getattr(rng, name)(-1)

    def test_threads_do_not_disturb_each_other(self) -> None:
        expected = {seed: SeededRng(seed).u64(150_000) for seed in range(4)}
        wrong: list[int] = []
        together = threading.Barrier(4)

        def draw(seed: int) -> None:
            together.wait()
            for _ in range(10):
                if not np.array_equal(SeededRng(seed).u64(150_000), expected[seed]):
                    wrong.append(seed)

        threads = [threading.Thread(target=draw, args=(seed,)) for seed in expected]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []

    def test_pieces_of_many_lengths_make_one_stream(self) -> None:
        counts = [6000 + 64 * k for k in range(40)]
        whole = SeededRng(8).u64(sum(counts))
        for _ in range(2):
            rng = SeededRng(8)
            assert np.array_equal(np.concatenate([rng.u64(n) for n in counts]), whole)


class TestNormals:
    @pytest.mark.parametrize("key", ["randn", "randn_f64"])
    def test_randn(self, key: str) -> None:
        for vector in VECTORS[key]:
            values = getattr(SeededRng(int(vector["seed"])), key)(*vector["shape"])
            assert values.shape == tuple(vector["shape"])
            assert values.dtype == vector["dtype"]
            data = little_endian(values)
            assert vector["le_hex"] in (None, data.hex())
            assert hashlib.sha256(data).hexdigest() == vector["sha256"]

    def test_odd_counts_take_a_whole_pair(self) -> None:
        vector = VECTORS["randn_odd_consumption"]
        for draw in ("randn", "randn_f64"):
            rng = SeededRng(int(vector["seed"]))
            getattr(rng, draw)(3)
            assert rng.gen_u64() == int(vector["next_u64"])

    def test_shape_as_arguments_or_as_one_sequence(self) -> None:
        expected = SeededRng(3).randn(2, 3)
        for shape in ((2, 3), [2, 3], np.array([2, 3])):
            assert np.array_equal(SeededRng(3).randn(shape), expected)
        assert SeededRng(3).randn(np.int64(4)).shape == (4,)  # type: ignore[arg-type]
        assert SeededRng(3).randn().shape == SeededRng(3).randn(()).shape == ()

    @pytest.mark.parametrize("shape", [(-1,), (-1, -3), ("2",), (2.0,)])
    def test_bad_shapes_are_refused(self, shape: tuple[Any, ...]) -> None:
        with pytest.raises((ValueError, TypeError)):
            SeededRng(3).randn(*shape)

    def test_empty_shapes_draw_nothing(self) -> None:
        rng = SeededRng(3)
        assert rng.randn(0, 3).shape == (0, 3)
        assert rng.randn_f64(2, 0).shape == (2, 0)
        assert rng.state == SeededRng(3).state

    @pytest.mark.parametrize("count", [1, 95, 96, 97, 98, 8191, 8192, 8193, 100_001])
    def test_float32_equals_the_c_library(self, count: int) -> None:
        fast, exact = SeededRng(count), SeededRng(count)
        expected = exact.normal_f64(count).astype(np.float32)
        assert fast.normal_f32(count).tobytes() == expected.tobytes()
        assert fast.state == exact.state

    def test_float32_next_to_rounding_boundaries(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Doubtful values are repaired: with a guard of a quarter ulp there are enough of them."""
        uniforms = SeededRng(6).f64(60_000)
        expected = rng_arrays.normals_f64(uniforms).astype(np.float32)
        rough = rng_arrays.approximate_normals

        def rougher(block: np.ndarray) -> np.ndarray:
            return rough(block) * (1.0 + 2.0**-27)

        monkeypatch.setattr(rng_arrays, "approximate_normals", rougher)
        assert rng_arrays.normals_f32(uniforms).tobytes() != expected.tobytes()
        monkeypatch.setattr(rng_arrays, "GUARD_ULPS", 1 << 27)
        assert rng_arrays.normals_f32(uniforms).tobytes() == expected.tobytes()

    def test_approximation_stays_far_inside_the_guard(self) -> None:
        near_quarter_turns = np.concatenate(
            [turn + np.arange(-50, 50) * 2.0**-53 for turn in (0.25, 0.5, 0.75)]
        )
        seconds = np.concatenate(
            [near_quarter_turns, np.arange(100) * 2.0**-53, 1.0 - np.arange(1, 100) * 2.0**-53]
        )
        for first in (0.0, 2.0**-53, 0.3, 0.5, 1.0 - 2.0**-53):
            uniforms = np.empty(2 * seconds.size)
            uniforms[0::2], uniforms[1::2] = first, seconds
            self.check_approximation(uniforms)
        self.check_approximation(SeededRng(44).f64(100_000))

    @staticmethod
    def check_approximation(uniforms: np.ndarray) -> None:
        exact = rng_arrays.normals_f64(uniforms)
        error = np.abs(rng_arrays.approximate_normals(uniforms) - exact)
        bounded = np.abs(exact) >= rng_arrays.NEAR_ZERO
        assert np.all(error[bounded] <= 16 * np.spacing(np.abs(exact[bounded])))
        assert rng_arrays.GUARD_ULPS > 100 * 16
        singles = rng_arrays.normals_f32(uniforms)
        assert singles.tobytes() == exact.astype(np.float32).tobytes()

    def test_small_values_are_doubtful_as_their_relative_error_is_unbounded(self) -> None:
        values = np.array([2.0**-21, -(2.0**-21), 0.0, 2.0**-19, -0.75])
        assert rng_arrays._doubtful(values).tolist() == [True, True, True, False, False]

    def test_a_zero_draw_is_finite(self) -> None:
        assert np.isfinite(box_muller(0.0, 0.0)).all()
        assert box_muller(0.0, 0.0)[0] == pytest.approx(37.169, abs=1e-3)
