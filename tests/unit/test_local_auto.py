"""References that are functions of this process judge by what they allow for, as ``run`` does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuemu_flow.frameworks.local import compare, reference_of
from gpuemu_flow.frameworks.seeded import fuzz_locally
from gpuemu_flow.fuzzing import FuzzConfig, SeededFuzzer
from gpuemu_flow.numerics.dtypes import widened


def product(a: Any, b: Any) -> Any:
    return a @ b


def judged(op: Any, reference: Any, scale: float = 300.0, **more: Any) -> Any:
    rng = np.random.default_rng(3)
    inputs = {
        "a": (rng.standard_normal((64, 512)) * scale).astype(np.float32),
        "b": rng.standard_normal((512, 48)).astype(np.float32),
    }
    return compare(
        op(**inputs),
        reference(**widened(inputs)),
        inputs=inputs,
        reference=reference_of(reference, lambda function, arrays: function(**arrays)),
        **more,
    )


def test_a_right_product_passes_and_a_wrong_one_does_not() -> None:
    assert judged(product, product).passed
    assert not judged(product, product, atol=1e-5, rtol=1e-5).passed, "a table would fail it"
    off = judged(lambda a, b: a @ b * np.float32(1.001), product)
    assert not off.passed


def test_an_exact_op_has_nothing_to_be_excused_with() -> None:
    def relu(a: Any, b: Any) -> Any:
        return np.maximum(a, 0)

    def nearly(a: Any, b: Any) -> Any:
        return np.maximum(a, 0) * np.float32(1 + 2e-6)

    assert judged(relu, relu).passed
    assert not judged(nearly, relu).passed


def test_a_reference_that_cannot_be_asked_again() -> None:
    calls = []

    def once(a: Any, b: Any) -> Any:
        calls.append(1)
        if len(calls) > 1:
            raise ValueError("only once")
        return a @ b

    found = judged(lambda a, b: a @ b + np.float32(1000), once)
    assert not found.passed


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_local_fuzzing() -> None:
    def total(x: Any) -> Any:
        return np.add.accumulate(x, axis=-1)[..., -1]

    def reference(x: Any) -> Any:
        return x.sum(-1)

    config = FuzzConfig(
        5, batch_sizes=(2,), seq_lengths=(3,), hidden_dims=(4096,), edge_cases=((7,),),
        dtypes=("float32",),
    )  # fmt: skip

    def cases() -> Any:
        return SeededFuzzer(config).iterator(6)

    assert fuzz_locally(total, reference, cases(), names=("x",)).failed == 0
    wrong = fuzz_locally(lambda x: total(x) * 1.01, reference, cases(), names=("x",))
    assert wrong.passed == 0
