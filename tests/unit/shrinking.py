"""Minimising plain arrays under a predicate, and a search of its own for anything smaller."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gpuemu_flow.cases.candidates import Candidate
from gpuemu_flow.cases.minimize import Minimized, minimise
from gpuemu_flow.cases.op_schema import Dim, OpSchema, TensorDef

Arrays = Mapping[str, np.ndarray]
Fails = Callable[[Arrays], bool]

ROWS = OpSchema(
    (Dim("M", (), 1, 40), Dim("N", (), 1, 520)),
    (TensorDef("x", ("M", "N")),),
    (TensorDef("y", ("M", "N")),),
)
PAIR = OpSchema(ROWS.dims, (TensorDef("a", ("M", "N")), TensorDef("b", ("M", "N"))))
MATMUL = OpSchema(
    (Dim("M", (), 1, 64), Dim("K", (), 1, 300), Dim("N", (), 1, 64)),
    (TensorDef("a", ("M", "K")), TensorDef("b", ("K", "N"))),
    (TensorDef("c", ("M", "N")),),
)


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def shrink(
    fails: Fails,
    inputs: Arrays,
    schema: OpSchema | None = None,
    budget: int = 2000,
    **settings: Any,
) -> Minimized:
    """Minimise with a predicate on plain arrays; no more calls than the budget allows."""
    calls = 0

    def still_fails(candidate: Candidate) -> bool:
        nonlocal calls
        calls += 1
        for name, size in candidate.dims.items():
            assert schema is not None
            found = [
                array.shape[axis]
                for tensor in schema.inputs
                for axis, dim in enumerate(tensor.dims)
                if dim == name and (array := candidate.inputs[tensor.name]) is not None
            ]
            assert found == [size] * len(found), f"{name} is {size} in dims and {found} in shapes"
        return fails(candidate.inputs)

    dims = {
        dim: size
        for tensor in (schema.inputs if schema is not None else ())
        for dim, size in zip(tensor.dims, inputs[tensor.name].shape, strict=True)
        if isinstance(dim, str)
    }
    found = minimise(
        inputs, still_fails=still_fails, budget=budget, schema=schema, dims=dims, **settings
    )
    assert calls == found.calls <= budget
    assert fails(found.inputs) == found.reproduced
    return found


def neighbours(inputs: Arrays, axes: Mapping[str, list[tuple[str, int]]]) -> list[Arrays]:
    """Every case with one index of one dim dropped, one dim cut off, or one element zeroed."""
    found: list[Arrays] = []
    for members in axes.values():
        size = inputs[members[0][0]].shape[members[0][1]]
        keeps = [np.arange(n) for n in range(1, size)]
        keeps += [np.delete(np.arange(size), n) for n in range(size) if size > 1]
        for keep in keeps:
            smaller = dict(inputs)
            for name, axis in members:
                smaller[name] = np.take(smaller[name], keep, axis=axis)
            found.append(smaller)
    for name, array in inputs.items():
        for position in np.flatnonzero(array.astype(bool)):
            zeroed = array.copy()
            zeroed.reshape(-1)[position] = 0
            found.append({**inputs, name: zeroed})
    return found


def axes_of(schema: OpSchema | None, inputs: Arrays) -> dict[str, list[tuple[str, int]]]:
    if schema is None:
        rank = max(array.ndim for array in inputs.values())
        return {str(n): [(name, n) for name in inputs] for n in range(rank)}
    return {
        dim.name: [
            (tensor.name, axis)
            for tensor in schema.inputs
            for axis, name in enumerate(tensor.dims)
            if name == dim.name
        ]
        for dim in schema.dims
    }


def assert_one_minimal(found: Minimized, fails: Fails, schema: OpSchema | None = None) -> None:
    assert found.reproduced
    assert found.one_minimal
    for neighbour in neighbours(found.inputs, axes_of(schema, found.inputs)):
        assert not fails(neighbour), f"a smaller case fails: {neighbour}"


def x_of(test: Callable[[np.ndarray], Any]) -> Fails:
    return lambda inputs: bool(test(inputs["x"]))
