"""Make the input tensors of a case: draw values, and lay them out in memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from gpuemu_flow.cases.generated_values import decode_values
from gpuemu_flow.cases.special_values import (
    LONE,
    LONE_TURNS,
    SHARING,
    SHARING_TURNS,
    lenders_of,
    put_lone,
    put_near,
    put_negative_zeros,
    put_shared,
    put_shared_specials,
    put_specials,
)
from gpuemu_flow.cases.turns import NEEDED, SHARED_SPECIALS, ZEROS, holds_specials, specials_lender
from gpuemu_flow.cases.values import draw, draw_alike, put_ends
from gpuemu_flow.model.types import DTYPES, Case, InputSpec, Shape, ValueRule
from gpuemu_flow.numerics.layouts import LaidOut, lay_out, lay_out_guarded, reduced_shape
from gpuemu_flow.numerics.rng import SeededRng, derive_seed

Array = NDArray[Any]

MOST_ALIKE = 1024
"""Largest number of elements of inputs that are drawn together; for larger inputs, numpy's cost
per call hardly matters."""


def input_values(case: Case, spec: InputSpec) -> Array:
    """Return the values of one input.

    The random numbers come from the domains ``data`` and ``input_<position>`` of the case's seed.
    So an input does not depend on the others, unless its spec demands that it share values with
    another input, or that its values be related to those of another. For the layout ``expanded``,
    the values are drawn once for the reduced shape and repeated without copying; the array is then
    read-only.

    Raises GenerateError: The user's function that generates the values failed or was not called.
    """
    if spec.is_generated:
        return decode_values(spec)
    seed = _seed_of(case, spec)
    if spec.rule is None:
        where = SeededRng(seed), _drawn_shape(spec), spec.dtype
        values = draw(spec.strategy, *where, *_range(spec), turn=spec.turn)
        _share(values, case, spec, seed, *_range(spec))
        finished = _finished(values, spec, seed, *_range(spec))
        _share_specials(finished, case, spec, *_range(spec))
        return finished
    from gpuemu_flow.cases import rule_values  # noqa: PLC0415 - few inputs have rules

    sizes, shapes = dict(case.dims), {each.name: each.shape for each in case.inputs}
    setting = rule_values.setting_of(
        replace(spec, shape=_drawn_shape(spec)), SeededRng(seed), sizes, shapes
    )
    values = rule_values.draw_by_rule(
        setting, spec.strategy, _compared(case, spec.rule), turn=spec.turn
    )
    _share(values, case, spec, seed, setting.low, setting.high)
    finished = _finished(values, spec, seed, setting.low, setting.high)
    _share_specials(finished, case, spec, setting.low, setting.high)
    if spec.rule.unused is None:
        return finished
    known = {each.name: each for each in case.inputs}
    others = [input_values(case, known[name]) for name in spec.rule.unused.others]
    return rule_values.poisoned(finished, spec.rule, others, SeededRng(seed))


def _share(
    values: Array, case: Case, spec: InputSpec, seed: int, low: float | None, high: float | None
) -> None:
    """Write values of other inputs into an input's values, in place, if its spec demands it."""
    if spec.strategy == SHARING and spec.turn in SHARING_TURNS:
        lent = [input_values(case, other) for other in lenders_of(spec, case.inputs)]
        if lent:
            put_shared(values, spec.dtype, SeededRng(seed), lent, low, high)


def _share_specials(
    values: Array, case: Case, spec: InputSpec, low: float | None, high: float | None
) -> None:
    """Copy NaN and infinities from another input into `values`, if the input's spec demands it.

    They keep their positions.
    """
    lender = specials_lender(spec, case.inputs)
    if lender is not None:
        nonfinite = spec.rule.nonfinite if spec.rule else None
        put_shared_specials(values, input_values(case, lender), low, high, nonfinite=nonfinite)


def _shares(spec: InputSpec) -> bool:
    """Tell whether an input's values may depend on other inputs."""
    sharing = {SHARING: SHARING_TURNS, "special": SHARED_SPECIALS}
    return spec.turn in sharing.get(spec.strategy, ())


def _seed_of(case: Case, spec: InputSpec) -> int:
    return derive_seed(derive_seed(case.seed, "data"), f"input_{spec.position}")


def _drawn_shape(spec: InputSpec) -> Shape:
    return reduced_shape(spec.shape) if spec.layout == "expanded" else spec.shape


def _range(spec: InputSpec) -> tuple[float | None, float | None]:
    return spec.low, spec.high


def _finished(
    values: Array, spec: InputSpec, seed: int, low: float | None, high: float | None
) -> Array:
    """Return drawn `values` after writing into them the special values that `spec` demands.

    A spec can demand the ends of the range, lone values, negative zeros, NaN and infinities, or the
    same sign in the whole first row. For the layout ``expanded``, the result is a view that repeats
    the values in the input's full shape.
    """
    if spec.ends:
        put_ends(values, SeededRng(seed), spec.ends, low, high)
    if spec.near:
        put_near(values, spec.dtype, SeededRng(seed), spec.near, low, high)
    if spec.strategy == LONE and spec.turn in LONE_TURNS:
        put_lone(values, spec.dtype, SeededRng(seed), spec.turn, low, high)
    if (spec.strategy, spec.turn) == ZEROS and (low is None or low < 0):
        put_negative_zeros(values, SeededRng(seed))
    if (spec.ends or spec.turn in (1, *SHARED_SPECIALS)) and holds_specials(spec):
        nonfinite = spec.rule.nonfinite if spec.rule else None
        most = values.size if spec.turn in SHARED_SPECIALS else NEEDED
        put_specials(values, SeededRng(seed), low, high, nonfinite=nonfinite, most=most)
    if spec.strategy == "wide" and spec.turn == 1 and low is None and high is None:
        _sign_first_row(values, negative=bool(spec.position % 2))
    return np.broadcast_to(values, spec.shape) if spec.layout == "expanded" else values


def _sign_first_row(values: Array, *, negative: bool) -> None:
    """Give all elements of the first row one sign, in place: minus if `negative`, else plus.

    An array of only one row is left unchanged.

    If one of two inputs gets minus and the other plus, the product of their first rows is far below
    0. In causal attention, this product is the only score of the first query that is not masked. An
    op that masks with -10,000 in place of -Inf fails, because the masked scores outweigh the
    product.
    """
    if values.ndim > 1 and values.size > values.shape[-1]:
        first = values.reshape(-1, values.shape[-1])[0]
        np.abs(first, out=first)
        if negative:
            np.negative(first, out=first)


def _compared(case: Case, rule: ValueRule) -> dict[str, Array]:
    """Return the name and the values of the input to which a rule relates its own input.

    They are the only item of the returned dict, which is empty if the rule has no relation.
    """
    return {
        spec.name: input_values(case, spec)
        for spec in case.inputs
        if rule.relation and spec.name == rule.other
    }


def materialise(case: Case, values: Mapping[str, Array] | None = None) -> dict[str, Array]:
    """Return the inputs of a case by name, in the op's order and in their memory layouts."""
    return {spec.name: lay_out(_values(case, spec, values), spec.layout) for spec in case.inputs}


def materialise_each(cases: Sequence[Case]) -> Iterator[dict[str, Array]]:
    """Yield the inputs of several cases as `materialise` returns them.

    Small inputs of one shape are drawn together, because numpy's cost per call is most of the time
    to draw 64 elements. Large inputs are made one after another, so that they are still in the
    processor's cache when they are used.
    """
    for case, known in zip(cases, drawn_together(cases), strict=True):
        yield materialise(case, all_values(case, known))


def all_values(case: Case, known: Mapping[str, Array]) -> dict[str, Array]:
    """Return the values of all inputs of a case; `known` are those of some."""
    return {
        spec.name: known[spec.name] if spec.name in known else input_values(case, spec)
        for spec in case.inputs
    }


def drawn_together(cases: Sequence[Case]) -> list[dict[str, Array]]:
    """Return the values of the small inputs of each case, by name.

    Inputs with the same strategy, drawn shape, dtype and range are drawn together.
    """
    alike: dict[tuple[Any, ...], list[tuple[int, InputSpec]]] = {}
    for number, case in enumerate(cases):
        for spec in case.inputs:
            if spec.rule is None and not spec.is_generated and not _shares(spec):
                shape = _drawn_shape(spec)
                if 0 < math.prod(shape) <= MOST_ALIKE:
                    key = (spec.strategy, spec.turn, shape, spec.dtype, *_range(spec))
                    alike.setdefault(key, []).append((number, spec))
    drawn: list[dict[str, Array]] = [{} for _ in cases]
    for (strategy, turn, shape, dtype, low, high), members in alike.items():
        seeds = [_seed_of(cases[number], spec) for number, spec in members]
        together = draw_alike(strategy, seeds, shape, dtype, low, high, turn=turn)
        for place, (number, spec) in enumerate(members):
            # A copy, so that each input has its own contiguous memory, as if it were drawn alone.
            values = together[place, ...].copy()
            drawn[number][spec.name] = _finished(values, spec, seeds[place], low, high)
    return drawn


def materialise_guarded(
    case: Case,
    buffers: Mapping[str, NDArray[np.uint8]] | None = None,
    values: Mapping[str, Array] | None = None,
) -> dict[str, LaidOut]:
    """Return the inputs as `materialise` does, but with guard zones around them.

    An input that has one of the `buffers` is laid out in it; other inputs get new memory.
    """
    buffers = buffers or {}
    return {
        spec.name: lay_out_guarded(
            _values(case, spec, values), spec.layout, buffer=buffers.get(spec.name)
        )
        for spec in case.inputs
    }


def _values(case: Case, spec: InputSpec, given: Mapping[str, Array] | None) -> Array:
    return input_values(case, spec) if given is None else given[spec.name]


def decoy_values(case: Case, judged: Mapping[str, Array]) -> dict[str, Array]:
    """Return other values for a case, whose inputs are `judged`: of the same shapes and dtypes.

    Floats that are free of rules are moved, shrunk and negated, which takes a fraction of the time
    to draw others: a sum, a norm or a maximum differs, too. Other inputs are drawn.
    """
    other = replace(case, seed=derive_seed(case.seed, "decoy"))
    return {
        spec.name: _moved(judged[spec.name]) if _is_free(spec) else input_values(other, spec)
        for spec in case.inputs
    }


def _is_free(spec: InputSpec) -> bool:
    bounded = spec.rule is not None or (spec.low, spec.high) != (None, None)
    return not bounded and DTYPES[spec.dtype].kind == "float" and spec.layout != "expanded"


def _moved(values: Array) -> Array:
    flat, middle = values.reshape(-1), (values.size - 1) // 2
    moved: Array = np.concatenate((flat[middle:], flat[:middle])).reshape(values.shape)
    with np.errstate(all="ignore"):
        moved *= moved.dtype.type(-0.75)
    return moved
