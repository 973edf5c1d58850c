"""Make the input tensors of a case: draw values, and lay them out in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.cases.given import given_values
from gpuemu_flow.cases.ruled import draw_ruled, setting_of
from gpuemu_flow.cases.values import draw, put_ends
from gpuemu_flow.numerics.layouts import LaidOut, lay_out, lay_out_guarded, reduced_shape
from gpuemu_flow.numerics.rng import SeededRng, derive_seed
from gpuemu_flow.types import Case, InputSpec
from gpuemu_flow.value_rules import ValueRule

Array = NDArray[Any]


def input_values(case: Case, spec: InputSpec) -> Array:
    """Return the values of one input, read-only where the layout repeats them.

    The data come from the domains ``data`` and ``input_<position>`` of the case's seed, so that an
    input does not depend on the others. For the layout ``expanded`` the values are drawn once for
    the reduced shape and repeated without copying.

    Raises
    ------
    GivenError
        A function of the user's that should have returned the values did not.
    """
    if spec.is_generated:
        return given_values(spec)
    rng = SeededRng(case.seed).derive("data").derive(f"input_{spec.position}")
    expanded = spec.layout == "expanded"
    shape = reduced_shape(spec.shape) if expanded else spec.shape
    if spec.rule is None:
        low, high = spec.low, spec.high
        values = draw(spec.strategy, rng, shape, spec.dtype, low, high)
    else:
        sizes, shapes = dict(case.dims), {each.name: each.shape for each in case.inputs}
        setting = setting_of(replace(spec, shape=shape), rng, sizes, shapes)
        values = draw_ruled(setting, spec.strategy, _compared(case, spec.rule))
        low, high = setting.low, setting.high
    if spec.ends:
        put_ends(values, rng, spec.ends, low, high)
    return np.broadcast_to(values, spec.shape) if expanded else values


def _compared(case: Case, rule: ValueRule) -> dict[str, Array]:
    """Return the values of the other input with which a rule compares."""
    return {
        spec.name: input_values(case, spec)
        for spec in case.inputs
        if rule.relation and spec.name == rule.other
    }


def materialise(case: Case, values: Mapping[str, Array] | None = None) -> dict[str, Array]:
    """Return the inputs of a case by name, in the op's order and in their memory layouts.

    Parameters
    ----------
    case : Case
    values : mapping of str to ndarray, optional
        Values in the case's shapes and dtypes, used in place of those that its seed gives.
    """
    return {spec.name: lay_out(_values(case, spec, values), spec.layout) for spec in case.inputs}


def materialise_guarded(
    case: Case,
    buffers: Mapping[str, NDArray[np.uint8]] | None = None,
    values: Mapping[str, Array] | None = None,
) -> dict[str, LaidOut]:
    """Return the inputs as `materialise` does, between guard zones, in given `buffers` if any."""
    buffers = buffers or {}
    return {
        spec.name: lay_out_guarded(
            _values(case, spec, values), spec.layout, buffer=buffers.get(spec.name)
        )
        for spec in case.inputs
    }


def _values(case: Case, spec: InputSpec, given: Mapping[str, Array] | None) -> Array:
    return input_values(case, spec) if given is None else given[spec.name]


def decoy_case(case: Case) -> Case:
    """Return a case of the same shapes, layouts and dtypes with other values."""
    return replace(case, seed=derive_seed(case.seed, "decoy"))
