"""Shrink the shapes, values and layouts of a failing case while it fails for the same reason.

The op is not run here: a predicate decides for each candidate whether it fails for the same reason.
Values are the original's own or simpler, never drawn anew. Sizes and values stay within the schema,
because a case that the op's author has excluded would be no fair test of the op.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gpuemu_flow.cases.candidates import (
    Array,
    BudgetSpentError,
    Candidate,
    Predicate,
    Search,
    StopMinimising,
    make_candidate,
)
from gpuemu_flow.cases.generated_values import encode_values
from gpuemu_flow.cases.op_schema import OpSchema, TensorDef
from gpuemu_flow.cases.rule_values import fit_to_rule, setting_of, without_poison
from gpuemu_flow.cases.shrink_shapes import ShapeShrinker, find_axes
from gpuemu_flow.cases.shrink_values import ValueShrinker, find_domains
from gpuemu_flow.model.errors import UsageError
from gpuemu_flow.model.syntax import ExpressionError
from gpuemu_flow.model.types import LAYOUTS, Case, InputSpec
from gpuemu_flow.numerics.dtypes import dtype_name
from gpuemu_flow.numerics.rng import SeededRng

Correct = Callable[[Candidate], "Candidate | None"]


def corrector(schema: OpSchema | None, start: Candidate) -> Correct:
    """Return a function that corrects a candidate so that it satisfies the schema.

    The function returns the corrected candidate, or None if the candidate cannot be corrected.
    """
    if schema is None or not _has_rules(schema):
        return lambda candidate: candidate
    names = {tensor.name for tensor in schema.inputs}
    if names != set(start.inputs):
        return lambda candidate: candidate
    known: OpSchema = schema
    generated = any(tensor.rule and tensor.rule.generate for tensor in known.inputs)
    if generated:
        return lambda candidate: _as_returned(known, start, candidate)
    return lambda candidate: _corrected(known, candidate)


def _as_returned(schema: OpSchema, start: Candidate, candidate: Candidate) -> Candidate | None:
    """Correct a candidate, provided that it has the sizes and the generated inputs of `start`.

    `start` is the original case, whose generated inputs were returned by functions of the user. It
    is not known what these functions would return for other sizes. Therefore, the result is None
    if a size or a generated input differs. It is also None if the candidate cannot be corrected.
    """
    if dict(candidate.dims) != dict(start.dims):
        return None
    for tensor in schema.inputs:
        before, after = start.inputs[tensor.name], candidate.inputs[tensor.name]
        if before.shape != after.shape:
            return None
        if tensor.rule and tensor.rule.generate and before.tobytes() != after.tobytes():
            return None
    return _corrected(schema, candidate)


def _has_rules(schema: OpSchema) -> bool:
    ruled = any(tensor.rule is not None for tensor in schema.inputs)
    return ruled or bool(schema.derived or schema.limits)


def _corrected(schema: OpSchema, candidate: Candidate) -> Candidate | None:
    fitted = _fitted(schema, candidate) if schema.derived or schema.limits else candidate
    if fitted is None:
        return None
    inputs = dict(fitted.inputs)
    shapes = {name: array.shape for name, array in inputs.items()}
    for tensor in _in_order(schema):
        if tensor.rule is None:
            continue
        values = inputs[tensor.name]
        spec = InputSpec(
            tensor.name,
            values.shape,
            dtype_name(values.dtype) or "",
            low=tensor.low,
            high=tensor.high,
            rule=tensor.rule,
        )
        try:
            setting = setting_of(spec, SeededRng(0), fitted.dims, shapes)
        except UsageError:
            return None
        corrected = fit_to_rule(values, setting, inputs)
        if corrected is None:
            return None
        if tensor.rule.unused is not None:
            others = [inputs[name] for name in tensor.rule.unused.others]
            corrected = without_poison(corrected, tensor.rule, others)
        if corrected.tobytes() != values.tobytes():
            inputs[tensor.name] = corrected
    return make_candidate(inputs, fitted.layouts, fitted.dims)


def _in_order(schema: OpSchema) -> list[TensorDef]:
    """Return the inputs, sorted so that a rule compares its input only with earlier inputs."""
    done: list[TensorDef] = []
    rest = list(schema.inputs)
    while rest:
        names = {tensor.name for tensor in done}
        ready = [t for t in rest if not (t.rule and t.rule.relation) or t.rule.other in names]
        done += ready or rest
        rest = [tensor for tensor in rest if tensor not in done]
    return done


def _fitted(schema: OpSchema, candidate: Candidate) -> Candidate | None:
    """Return the candidate with inputs cut to the new sizes of derived dims.

    Return None if the sizes are not allowed, or if an input is too small to be cut.
    """
    try:
        free = {dim.name: candidate.dims[dim.name] for dim in schema.dims}
    except KeyError:
        return candidate  # a case of whole shapes
    if not schema.allows(free):
        return None
    try:
        dims = schema.all_sizes(free)
    except ExpressionError:
        return None
    inputs = dict(candidate.inputs)
    for tensor, shape in zip(schema.inputs, schema.shapes(dims), strict=True):
        values = inputs[tensor.name]
        if tensor.rule is not None and tensor.rule.optional and not any(values.shape):
            continue  # None stands in its place
        if values.ndim != len(shape) or any(
            a < b for a, b in zip(values.shape, shape, strict=True)
        ):
            return None
        if values.shape != shape:
            inputs[tensor.name] = np.array(values[tuple(slice(0, size) for size in shape)])
    return replace(make_candidate(inputs, candidate.layouts, dims))


STRATEGIES = ("binary-search-dims", "binary-search-values", "all")


class Minimized(Struct, frozen=True):
    """The result of a minimisation."""

    inputs: Mapping[str, Array]  # values in C order, read-only
    dims: Mapping[str, int]  # Sizes of the schema's dims, where dims were given
    layouts: Mapping[str, str]  # Memory layout of each input
    steps: int  # number of times that a smaller failing case was found
    calls: int  # number of calls of the predicate
    # True if no single step that the strategy allows makes the case smaller; False if the budget
    # ended first. A step zeroes an element, makes an input contiguous, or makes a dim smaller. For
    # each smaller size of a dim, several slices are tried: the first and the last indices, windows
    # at the failing element, evenly spaced indices, and the indices with the most non-zero values.
    # For the next smaller size, all slices that drop one run of indices are tried as well.
    one_minimal: bool
    # False when the original itself did not fail; the other attributes then describe the original
    reproduced: bool
    log: tuple[str, ...]  # one line per step


def minimise(
    inputs: Mapping[str, Array],
    *,
    still_fails: Predicate,
    budget: int,
    schema: OpSchema | None = None,
    dims: Mapping[str, int] | None = None,
    layouts: Mapping[str, str] | None = None,
    failing: Mapping[str, int] | None = None,
    strategy: str = "all",
) -> Minimized:
    """Shrink a failing case.

    Raises ValueError: Unknown strategy, layout or dtype, or a budget below 1.
    """
    start = _start(inputs, dims or {}, layouts or {}, strategy, budget)
    search = Search(start, still_fails, budget, correct=corrector(schema, start))
    one_minimal = reproduced = False
    try:
        reproduced = search.fails(start)
        if reproduced:
            _minimise(search, schema, failing or {}, strategy)
            one_minimal = True
    except (BudgetSpentError, StopMinimising):
        pass
    best = search.best
    return Minimized(
        inputs=best.inputs,
        dims=best.dims,
        layouts=best.layouts,
        steps=search.steps,
        calls=search.calls,
        one_minimal=one_minimal,
        reproduced=reproduced,
        log=tuple(search.log),
    )


def _start(
    inputs: Mapping[str, Array],
    dims: Mapping[str, int],
    layouts: Mapping[str, str],
    strategy: str,
    budget: int,
) -> Candidate:
    if strategy not in STRATEGIES:
        raise ValueError(f"there is no strategy {strategy!r}; known: {', '.join(STRATEGIES)}")
    if budget < 1:
        raise ValueError(f"a budget of {budget} calls does not reach the original")
    for name, array in inputs.items():
        if dtype_name(array.dtype) is None:
            raise ValueError(f"input {name!r} has the unknown dtype {array.dtype}")
        if layouts.get(name, LAYOUTS[0]) not in LAYOUTS:
            raise ValueError(f"input {name!r} has the unknown layout {layouts[name]!r}")
    own = {name: np.array(array, order="C") for name, array in inputs.items()}
    return make_candidate(own, {name: layouts.get(name, LAYOUTS[0]) for name in own}, dims)


def _minimise(
    search: Search, schema: OpSchema | None, failing: Mapping[str, int], strategy: str
) -> None:
    """Run all phases repeatedly until none of them finds a smaller case."""
    start = search.best
    shapes = values = None
    if strategy != "binary-search-values":
        axes = find_axes(start.inputs, schema, start.dims)
        shapes = ShapeShrinker(search, axes, failing)
    if strategy != "binary-search-dims":
        values = ValueShrinker(search, find_domains(start.inputs, schema))
    if strategy == "all":
        _relax_layouts(search)
    if shapes is not None:
        shapes.shrink_roughly()
    while True:
        before, complete = search.steps, True
        if values is not None:
            # After zeroing, most slices are equal, so that trying all sizes costs few calls. Half
            # of the budget is kept for the sizes in case nothing can be zeroed.
            rest = search.budget - search.calls
            share = rest if shapes is None else max(1, rest // 2)
            complete = search.within(share, values.shrink)
        if shapes is not None:
            shapes.shrink_fully()
        if strategy == "all":
            _relax_layouts(search)
        if complete and search.steps == before:
            return


def _relax_layouts(search: Search) -> None:
    """Try contiguous layouts for all inputs at once, then for one after another."""
    plain = dict.fromkeys(search.best.layouts, LAYOUTS[0])
    search.accept(replace(search.best, layouts=plain), "all inputs contiguous")
    for name, layout in search.best.layouts.items():
        if layout != LAYOUTS[0]:
            layouts = {**search.best.layouts, name: LAYOUTS[0]}
            search.accept(replace(search.best, layouts=layouts), f"{name}: {layout} to contiguous")


def minimised_case(case: Case, minimized: Minimized | Candidate) -> Case:
    """Return the case with the shapes, dims and layouts of a minimised candidate.

    Its values no longer follow from its seed; they are in the candidate. The layout of the case as
    a whole becomes ``contiguous`` when all its inputs are contiguous.
    """
    specs = tuple(
        replace(
            spec,
            shape=minimized.inputs[spec.name].shape,
            layout=minimized.layouts[spec.name],
            given=encode_values(minimized.inputs[spec.name]) if spec.is_generated else None,
        )
        for spec in case.inputs
    )
    relaxed = all(spec.layout == LAYOUTS[0] for spec in specs)
    return replace(
        case,
        inputs=specs,
        dims=tuple((name, minimized.dims.get(name, size)) for name, size in case.dims),
        layout=LAYOUTS[0] if relaxed else case.layout,
    )
