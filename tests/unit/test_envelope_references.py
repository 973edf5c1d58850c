"""References whose shadow fails or is unfaithful, ops that are exact: what `auto` makes of them."""

from __future__ import annotations

import numpy as np
import pytest
from envelope_ops import (
    F32,
    Arrays,
    Function,
    Op,
    Reference,
    check,
    inputs_of,
    online_softmax,
    two_pass_layernorm,
)
from for_each import for_each

from gpuemu_flow.model.errors import Problem, RunnerError
from gpuemu_flow.model.types import Verdict
from gpuemu_flow.numerics.compare import Policy, check_outputs
from gpuemu_flow.numerics.envelope import (
    Envelope,
    exact_outputs_of,
    is_exact_op,
    shadow_is_faithful,
)
from gpuemu_flow.numerics.evaluations import Evaluate, on_each


def test_a_shadow_that_fails_makes_the_tolerance_weak() -> None:
    reference = Reference("softmax")

    def no_shadow(inputs: Arrays, *, shadow: bool = False) -> Arrays:
        if shadow:
            raise RunnerError(Problem("reference-failed", "no float32 here"))
        return reference(inputs)

    inputs = inputs_of("softmax", "normal", (4, 128), "float32", 1)
    result, envelope = check(no_shadow, lambda x: online_softmax(x) * F32(1.1), inputs, "float32")
    assert result.verdict is Verdict.FAILED
    assert envelope.label == "auto (weak)"
    assert envelope.evaluations is not None
    assert envelope.evaluations.failed == 2  # as arrays that stay in float32, and as plain ones
    assert "auto (weak)" in result.notes[0]
    assert "auto (weak)" in result.failures[0].message


def test_a_shadow_alone_measures_nothing_and_the_reason_is_told() -> None:
    reference = Reference("softmax")
    inputs = inputs_of("softmax", "normal", (4, 128), "float32", 1)

    def unmoved_alone(moved: Arrays, *, shadow: bool = False) -> Arrays:
        if not shadow and not np.array_equal(moved["x"], inputs["x"]):
            raise RunnerError(Problem("reference-failed", "other inputs than those"))
        return reference(moved, shadow=shadow)

    result, envelope = check(
        unmoved_alone, lambda x: online_softmax(x) * F32(1.1), inputs, "float32"
    )
    assert result.verdict is Verdict.INCONCLUSIVE
    told = [note for note in result.notes if "the reference fails on all moved inputs" in note]
    assert told and "other inputs than those" in told[0]
    # Nor do further evaluations, which come after a shadow that succeeded.
    envelope.thorough("y")
    bound = envelope.thorough("y").no_verdict(slice(None))
    assert bound is not None and bound.all()


def logistic(steps: int, shadow_rate: float = 3.9) -> Evaluate:
    """Return a recurrence in which the error doubles in each step, and its float32 copy."""

    def evaluate(inputs: Arrays, *, shadow: bool = False) -> Arrays:
        x = np.abs(inputs["x"])
        y, rate = x / (1 + x), x.dtype.type(shadow_rate if shadow else 3.9)
        for _ in range(min(steps, x.shape[-1])):
            y = rate * y * (1 - y)
        return {"y": y}

    return evaluate


def recurrence_samples(*lengths: int) -> list[Arrays]:
    draw = np.random.default_rng(0)
    return [{"x": draw.standard_normal((4, n)).astype(np.float32)} for n in lengths]


def test_samples_that_amplify_roundings_say_nothing_of_a_shadow() -> None:
    assert shadow_is_faithful(on_each(logistic(200), recurrence_samples(4, 128, 300)))
    assert not shadow_is_faithful(on_each(logistic(200), recurrence_samples(128, 300)))
    assert not shadow_is_faithful(on_each(logistic(200, 3.95), recurrence_samples(4, 128, 300)))


def test_evaluations_of_another_shape_are_not_used() -> None:
    reference = Reference("softmax")

    def shrinking(inputs: Arrays, *, shadow: bool = False) -> Arrays:
        output = reference(inputs, shadow=shadow)["y"]
        return {"y": output[:1] if shadow else output}

    inputs = inputs_of("softmax", "normal", (4, 128), "float32", 1)
    wrong, envelope = check(shrinking, lambda x: x * 0, inputs, "float32")
    assert wrong.verdict is Verdict.FAILED
    assert envelope.label == "auto (weak)"


def test_weak_tolerances_have_no_verdict_on_far_inputs() -> None:
    x = np.array([[1e19, 1.0]], np.float32)
    for values, verdict in ((x, Verdict.INCONCLUSIVE), (x / 1e9, Verdict.FAILED)):
        result, _ = check(
            Function(lambda x: x.sum(-1)), lambda x: x.sum(-1) * 2, {"x": values}, "float32",
            weak=True,
        )  # fmt: skip
        assert result.verdict is verdict


def samples() -> list[Arrays]:
    rng = np.random.default_rng(0)
    return [{"x": rng.standard_normal((5, n)).astype(np.float32)} for n in (7, 64)]


@for_each(
    ("function", "exact"),
    [
        (lambda x: np.maximum(x, 0), True),
        (lambda x: x.T.copy(), True),
        (lambda x: np.sort(x, -1), True),
        (lambda x: x > 0, True),
        (lambda x: x * 2, True),
        (lambda x: x * 3, False),
        (lambda x: x.sum(-1), False),
        (np.exp, False),
    ],
)
def test_exact_ops_are_recognised(function: Op, exact: bool) -> None:
    assert is_exact_op(on_each(Function(function), samples())) is exact
    assert is_exact_op(on_each(Function(function), [])) is False


def test_exact_ops_allow_two_ulp_and_no_more() -> None:
    x = np.linspace(-1, 1, 101, dtype=np.float32)
    reference = Function(lambda x: np.maximum(x, 0))
    for steps, verdict in ((1, Verdict.PASSED), (3, Verdict.FAILED)):
        result, envelope = check(
            reference,
            lambda x, steps=steps: (np.maximum(x, 0).view(np.int32) + steps).view(np.float32),
            {"x": x},
            "float32",
            exact_op=True,
        )
        assert result.verdict is verdict
        assert envelope.label == "auto (exact)"
        assert envelope.evaluations is not None
        assert envelope.evaluations.count == 0


def test_a_faithful_shadow_differs_from_rounding_and_is_close() -> None:
    assert shadow_is_faithful(on_each(Reference("softmax"), samples()))

    def rounds_only(inputs: Arrays, *, shadow: bool = False) -> Arrays:
        result = np.exp(inputs["x"].astype(np.float64))
        return {"y": result.astype(np.float32) if shadow else result}

    assert not shadow_is_faithful(on_each(rounds_only, samples()))

    def something_else(inputs: Arrays, *, shadow: bool = False) -> Arrays:
        return {"y": np.exp(inputs["x"]) * inputs["x"].dtype.type(1.01 if shadow else 1)}

    assert not shadow_is_faithful(on_each(something_else, samples()))

    def failing(inputs: Arrays, *, shadow: bool = False) -> Arrays:
        raise RunnerError(Problem("reference-failed", "broken"))

    assert not shadow_is_faithful(on_each(failing, samples()))
    assert not is_exact_op(on_each(failing, samples()))


def test_float64_outputs_are_held_to_float64_accuracy() -> None:
    reference = Reference("layernorm")
    inputs = inputs_of("layernorm", "normal", (4, 128), "float64", 1)

    def in_float64(x: np.ndarray) -> np.ndarray:
        centred = x - np.cumsum(x, -1)[..., -1:] / x.shape[-1]
        return centred / np.sqrt(np.cumsum(centred**2, -1)[..., -1:] / x.shape[-1] + 1e-5)

    right, _ = check(reference, in_float64, inputs, "float64")
    assert right.verdict is Verdict.PASSED
    in_float32, _ = check(reference, two_pass_layernorm, inputs, "float64")
    assert in_float32.verdict is Verdict.FAILED


def several(x: np.ndarray) -> dict[str, np.ndarray]:
    """Return outputs of which only the first three are computed without rounding."""
    return {
        "rounded": np.rint(x),
        "copy": x[:, ::-1],
        "twice": x * 2,
        "scaled": np.rint(x * 1.7),
        "above": (np.exp(x) > 1.5).astype(x.dtype),
        "exp": np.exp(-np.abs(x)),
        "count": np.rint(x).astype(np.int32),
    }


def reference_of_several(inputs: Arrays, *, shadow: bool = False) -> Arrays:
    return several(inputs["x"])


def test_exact_outputs_are_recognised_beside_others() -> None:
    assert not is_exact_op(on_each(reference_of_several, samples()))
    assert exact_outputs_of(on_each(reference_of_several, samples())) == [
        "copy",
        "rounded",
        "twice",
    ]
    assert exact_outputs_of(on_each(reference_of_several, [])) == []


def test_no_output_is_exact_where_no_rounding_is_in_sight() -> None:
    """Another library's arithmetic shows none; what it computed may be rounded all the same."""

    def opaque(inputs: Arrays, *, shadow: bool = False) -> Arrays:
        return several(np.array(inputs["x"], copy=True, subok=False))

    assert exact_outputs_of(on_each(opaque, samples())) == []


def test_an_exact_output_is_judged_as_such_beside_one_that_rounds() -> None:
    x = np.linspace(-1, 1, 101, dtype=np.float32)

    def reference(inputs: Arrays, *, shadow: bool = False) -> Arrays:
        return {"r": np.maximum(inputs["x"], 0), "e": np.exp(inputs["x"])}

    expected = reference({"x": x.astype(np.float64)})
    for steps, verdict in ((1, Verdict.PASSED), (3, Verdict.FAILED)):
        envelope = Envelope(
            {"x": x},
            expected,
            reference,
            dtype="float32",
            seed=1,
            exact_op=False,
            exact_outputs=["r"],
            weak=False,
        )
        moved = (np.maximum(x, 0).view(np.int32) + steps).view(np.float32)
        result = check_outputs(
            {"r": moved, "e": (np.exp(x).view(np.int32) + 3).view(np.float32)},
            expected,
            tolerance=envelope,
            policy=Policy(),
            expected_dtypes={"r": "float32", "e": "float32"},
        )
        assert result.verdict is verdict
    assert {failure.output for failure in result.failures} == {"r"}
    assert envelope.label_of("r") == "auto (exact)"
    assert envelope.label_of("e") == envelope.label == "auto"


def requantised(a: np.ndarray, b: np.ndarray, zero: np.ndarray, scale: np.ndarray) -> np.ndarray:
    total = a.astype(np.int64) @ (b.astype(np.int64) - zero[:, None]).T
    return np.clip(np.rint(total * scale), -128, 127).astype(np.int8)


def saturated_operands(columns: int, largest: float = 0.1) -> Arrays:
    """Most quotients lie far beyond an int8, and none of the others beside a half."""
    rng = np.random.default_rng(2)
    return {
        "a": rng.integers(-128, 128, (9, columns), dtype=np.int8),
        "b": rng.integers(-128, 128, (5, columns), dtype=np.int8),
        "zero": rng.integers(-128, 128, 5, dtype=np.int32),
        "scale": rng.uniform(0.9 * largest, largest, 5).astype(np.float32),
    }


@pytest.mark.parametrize("largest", [0.1, 10.0])
def test_integers_that_saturate_are_rounded_all_the_same(largest: float) -> None:
    """Moved roundings that change none of a few samples say nothing of all cases."""
    samples = [saturated_operands(columns, largest) for columns in (40, 60)]
    reference = Function(requantised)
    assert not is_exact_op(on_each(reference, samples))
    assert shadow_is_faithful(on_each(reference, samples))


def test_integers_of_exact_arithmetic_are_exact() -> None:
    whole = {**saturated_operands(40), "scale": np.full(5, 2.0, np.float32)}
    assert is_exact_op(on_each(Function(requantised), [whole]))
    assert is_exact_op(on_each(Function(lambda x: np.argmax(x, -1)), samples()))
    assert is_exact_op(on_each(Function(lambda x: (x > 0.5).sum(-1)), samples()))


def test_a_product_that_float32_alone_rounds_to_a_half_has_no_verdict() -> None:
    """105 times the float32 next to 0.1 is 10.5 in float32, and more in float64."""
    scale = np.array([0.1], np.float32)
    inputs = {
        "a": np.array([[105], [3]], np.int8),
        "b": np.array([[1]], np.int8),
        "zero": np.array([0], np.int32),
        "scale": scale,
    }

    def op(a: np.ndarray, b: np.ndarray, zero: np.ndarray, scale: np.ndarray) -> np.ndarray:
        total = (a.astype(np.int32) @ (b.astype(np.int32) - zero[:, None]).T).astype(np.float32)
        return np.clip(np.rint(total * scale), -128, 127).astype(np.int8)

    reference = Function(requantised)
    exact = is_exact_op(on_each(reference, [saturated_operands(40, 10.0)]))
    result, _ = check(reference, op, inputs, "int8", exact_op=exact)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.stats.num_no_verdict == 1
    result, _ = check(reference, lambda *given: op(*given) + np.int8(1), inputs, "int8")
    assert result.verdict is Verdict.FAILED
