"""Perturbed inputs: arrays stay arrays, also those without dims."""

from __future__ import annotations

import numpy as np
from for_each import for_each

from gpuemu_flow.numerics.perturb import FLOAT32_UNIT, Arrays, Perturbation, as_float32

SUBNORMAL = 1e-40


def every_change(inputs: Arrays) -> dict[str, Arrays | None]:
    moved = Perturbation(inputs, 7, FLOAT32_UNIT)
    return {
        "independent": moved.independent(0),
        "noise": moved.independent(0, 64.0),
        "keyed": moved.keyed(0),
        "scaled": moved.scaled(),
        "flushed": moved.flushed(),
        "magnitudes": moved.magnitudes(1024.0),
        "grown": moved.grown(0),
        "float32": as_float32(moved.keyed(0)),
        "fortran": as_float32(moved.keyed(0), fortran=True),
    }


@for_each("shape", [(), (1,), (2, 3)])
@for_each("value", [1.5, -2.0, 0.0, SUBNORMAL, np.inf])
def test_changed_inputs_are_arrays_of_the_same_shape(shape: tuple[int, ...], value: float) -> None:
    inputs = {"a": np.full(shape, value), "n": np.full(shape, 3)}
    for name, changed in every_change(inputs).items():
        for array in (changed or {}).values():
            assert isinstance(array, np.ndarray) and array.shape == shape, name
    assert np.array_equal(inputs["a"], np.full(shape, value))


def test_an_input_without_dims_changes_as_one_of_a_single_element() -> None:
    for value in (1.5, SUBNORMAL):
        none = every_change({"a": np.array(value)})
        one = every_change({"a": np.array([value])})
        for name, changed in one.items():
            other = none[name]
            assert (changed is None) == (other is None), name
            if changed is not None and other is not None:
                assert other["a"].tobytes() == changed["a"].tobytes(), name
