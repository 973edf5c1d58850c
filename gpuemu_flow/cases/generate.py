"""Make the input tensors of a case: draw values, and lay them out in memory."""

from __future__ import annotations

import math
from collections import Counter
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
    may_hold_lone,
    put_lone,
    put_near,
    put_negative_zeros,
    put_shared,
    put_shared_specials,
    put_specials,
)
from gpuemu_flow.cases.values import draw, draw_alike, put_ends
from gpuemu_flow.model.types import DTYPES, STRATEGIES, Case, InputSpec, Shape
from gpuemu_flow.numerics.dtypes import dtype_name, numpy_dtype
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
        low, high = spec.low, spec.high
        where = SeededRng(seed), _drawn_shape(spec), spec.dtype
        values = draw(spec.strategy, *where, low, high, turn=spec.turn)
    else:
        from gpuemu_flow.cases import rule_values  # noqa: PLC0415 - few inputs have rules

        sizes, shapes = dict(case.dims), {each.name: each.shape for each in case.inputs}
        setting = rule_values.setting_of(
            replace(spec, shape=_drawn_shape(spec)), SeededRng(seed), sizes, shapes
        )
        low, high = setting.low, setting.high
        other = spec.rule.other if spec.rule.relation else ""
        related = {
            each.name: input_values(case, each) for each in case.inputs if each.name == other
        }
        values = rule_values.draw_by_rule(setting, spec.strategy, related, turn=spec.turn)
    _share(values, case, spec, seed, low, high)
    finished = _finished(values, spec, seed, low, high)
    _share_specials(finished, case, spec, low, high)
    if spec.rule is None or spec.rule.unused is None:
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
                    key = (spec.strategy, spec.turn, shape, spec.dtype, spec.low, spec.high)
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
    case: Case, values: Mapping[str, Array] | None = None
) -> dict[str, LaidOut]:
    """Return the inputs as `materialise` does, but with guard zones around them."""
    return {
        spec.name: lay_out_guarded(_values(case, spec, values), spec.layout) for spec in case.inputs
    }


def _values(case: Case, spec: InputSpec, given: Mapping[str, Array] | None) -> Array:
    return input_values(case, spec) if given is None else given[spec.name]


def make_inputs(
    case: Case,
    input_dtype: str | None = None,
    *,
    guards: bool = False,
    values: Mapping[str, Array] | None = None,
) -> dict[str, Array]:
    """Return the case's tensors, those of floats as `input_dtype` if it is given."""
    if guards and not _converts(case.dtype, input_dtype):
        laid = materialise_guarded(case, values)
        return {name: each.array for name, each in laid.items()}
    return converted(materialise(case, values), case.dtype, input_dtype)


def _converts(dtype: str, input_dtype: str | None) -> bool:
    return input_dtype not in (None, dtype) and DTYPES[dtype].kind == "float"


def converted(arrays: dict[str, Array], dtype: str, input_dtype: str | None) -> dict[str, Array]:
    """Convert the arrays of float type `dtype` to `input_dtype`; return the others unchanged."""
    if input_dtype is None or not _converts(dtype, input_dtype):
        return arrays
    wide = numpy_dtype(input_dtype)
    return {
        name: array.astype(wide) if dtype_name(array.dtype) == dtype else array
        for name, array in arrays.items()
    }


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


# Choose the variety of values that an input shows in each of the first cases of a run.
#
# A strategy can draw several varieties of values. A tensor with few rows has no room for all of
# them at once: under `negative`, for example, the single row of a vector is either near -100 or
# near 0. One variety can also hide another one: if a tensor holds NaN, its sum does not depend on
# an infinity. Chance would then decide whether a run tests a variety at all. The first cases in
# which an input has a strategy therefore show the varieties of this strategy one after the other:
#
# - `negative`, with at least 3 rows: in the first case, one row is near -100,000, or as near to
#   it as the dtype allows.
# - `negative`, with fewer rows: the third case has such a row. If there is only one row, it is
#   near -100 in the first case, and near 0 in the second.
# - `offset`, with fewer than 4 rows: in each case, the first row's values spread around the
#   offset by a different amount. In the first case, this amount is about 0.01 for float32.
# - `extremes`: in the first case, one number overflows when it is squared.
# - `wide`, with several rows and no range: in the first case, the first row has only positive or
#   only negative numbers, by turns from input to input. The product of the first rows of two
#   neighbouring inputs is therefore far below 0.
# - `wide`, with a single row: in the first case, the numbers are halfway between two steps of a
#   quantiser.
# - `wide`, with any number of rows: in the second case, magnitudes of all orders from 1 to about
#   500 occur. In half of the rows they rise, so that the first tile's maximum is far below others.
# - `ties`: in the first case, each row has few different values. In the second case, all values
#   are zeros, of both signs if the range allows negative numbers.
# - `sparse`, with a single row: in the first case, the first half of the row is zeros.
# - `special`: the first case has NaN and both infinities, the second has +Inf only, the third has
#   a single NaN, and the fourth has -Inf everywhere; see `Turns.of` for the choice of these
#   cases. In one further case, some of the input's NaN and infinities are copied to the other
#   inputs that have the same shape and this strategy.
# - `normal`, for an input that the op may compare with another input, which is drawn in another
#   way: in two cases, a quarter of the values are copied from the other input.
# - `normal`, with long rows: in three more cases, one row has a single zero, and another row has
#   a single nonzero value; see `put_lone`.
#
# Integers show only the varieties of `normal`. Booleans show only single zeros and nonzero
# values.

VARIETIES = {
    "negative": 3, "offset": 4, "extremes": 1, "wide": 2, "ties": 2, "special": 4, "sparse": 1,
    SHARING: len(SHARING_TURNS),
}  # fmt: skip
"""Number of first cases of a strategy that show its varieties."""
FEWER_ROWS = {"offset": 4, "sparse": 2}
"""Number of rows from which on a tensor has room for all varieties of a strategy."""
NEEDED = 3
"""Number of elements that NaN and both infinities need."""
SHARED_SPECIALS = (5, 6)
"""Turns of `special` in which inputs of one shape have NaN at the same places.

The first input of turn 5 lends them. Turn 6 is turn 1 of an input that takes them."""
ZEROS = ("ties", 2)
"""The strategy and turn of only zeros."""
MEDIUM = 32
"""Length that a vector of medium length exceeds."""
LONG = 0.5
"""Least length of a long row, relative to the longest row of the input so far."""


def holds_specials(spec: InputSpec) -> bool:
    """Tell whether NaN and infinities may be written into the values of an input."""
    rule = spec.rule
    return (
        spec.strategy == "special"
        and _has_free_floats(spec)
        and (rule is None or rule.nonfinite is not False)
    )


def specials_lender(spec: InputSpec, inputs: Sequence[InputSpec]) -> InputSpec | None:
    if spec.strategy != "special" or spec.turn not in SHARED_SPECIALS:
        return None
    for other in inputs:
        if other.turn == SHARED_SPECIALS[0] and _may_share(other, spec):
            return None if other is spec else other
    return None


def _may_share(other: InputSpec, spec: InputSpec) -> bool:
    return other.shape == spec.shape and other.layout != "expanded" and holds_specials(other)


def _has_free_floats(spec: InputSpec) -> bool:
    """Tell whether an input has floats, each of which may be changed without the others."""
    rule = spec.rule
    if DTYPES[spec.dtype].kind != "float" or 0 in spec.shape or spec.is_generated:
        return False
    return rule is None or not (rule.kind or rule.values or rule.concerns_whole)


class Turns:
    """Chooses the variety of values that each input shows in a case. The class counts the varieties
    that have been shown, separately for each input and strategy. The next case in which an input
    has the same strategy then shows the next variety."""

    def __init__(self) -> None:
        self._shown: Counter[tuple[str, str]] = Counter()
        self._lone: set[tuple[str, int]] = set()
        self._lent: set[str] = set()
        self._longest: Counter[str] = Counter()

    def of(self, inputs: Sequence[InputSpec]) -> tuple[InputSpec, ...]:
        """Return the inputs of the next case, each with the variety that it is to show. The
        varieties of the strategy `special`, except for the first one, need a case in which no other
        input may have NaN or infinities. Otherwise, special values of two inputs could hide each
        other's effect: for example, the difference of two infinities is NaN."""
        alone = sum(map(holds_specials, inputs)) == 1
        turned = tuple(self._with_turn(spec, inputs, alone=alone) for spec in inputs)
        return self._with_shared_specials(self._with_lone(turned))

    def _with_lone(self, inputs: tuple[InputSpec, ...]) -> tuple[InputSpec, ...]:
        """Select at most one input to get lone values in this case; return all inputs. A lone value
        is the only zero or the only nonzero value in a row; see `put_lone`. Of the inputs that
        can get lone values (see `_lone_turn`), the one that has had them in the fewest cases is
        selected. No input is selected if any input has a strategy in `STRATEGIES` other than
        `normal`, since such a strategy can draw many zeros, which could hide the lone values."""
        for spec in inputs:
            width = spec.shape[-1] if spec.shape else 0
            self._longest[spec.name] = max(self._longest[spec.name], width)
        if any(spec.strategy in STRATEGIES and spec.strategy != LONE for spec in inputs):
            return inputs
        due = [(spec, self._lone_turn(spec)) for spec in inputs]
        free = [(self._shown[spec.name, "lone"], spec, turn) for spec, turn in due if turn]
        if not free:
            return inputs
        _, chosen, turn = min(free, key=lambda each: each[0])
        self._shown[chosen.name, "lone"] += 1
        self._lone.add((chosen.name, turn))
        return tuple(replace(spec, turn=turn) if spec is chosen else spec for spec in inputs)

    def _lone_turn(self, spec: InputSpec) -> int:
        """Return the number of the next way to write lone values to an input; 0 for none.

        A lone value is the only zero or the only nonzero value in a row. `LONE_TURNS` has the
        numbers of three ways to write lone values; see `put_lone`. Each way is used in
        at most one case of an input. None is used if the input's strategy is not `normal`, or if it
        shows another variety of values in this case. Otherwise, the length of its rows decides:

        - If the rows are at least half as long as the input's longest rows so far, all three ways
          are possible.
        - If it is a shorter vector, but has more than `MEDIUM` elements, only the second way is.
        - In all other cases, none is.
        """
        if spec.turn or spec.ends or spec.strategy != LONE or not may_hold_lone(spec):
            return 0
        turns: tuple[int, ...] = ()
        if spec.shape[-1] >= LONG * self._longest[spec.name]:
            turns = LONE_TURNS
        elif len(spec.shape) == 1 and spec.shape[-1] > MEDIUM:
            turns = LONE_TURNS[1:2]
        return next((turn for turn in turns if (spec.name, turn) not in self._lone), 0)

    def _with_shared_specials(self, inputs: tuple[InputSpec, ...]) -> tuple[InputSpec, ...]:
        """Let one input lend NaN and infinities to other inputs of the same shape.

        Each borrower copies some of the lender's NaN and infinities to the same positions. Only
        inputs that may hold NaN and infinities take part.

        A strategy can draw several varieties of values. In a case, an input shows one chosen
        variety of its strategy, or none in particular.

        - The lender is the first input that shows none. If it has already lent in an earlier case,
          nothing is lent.
        - The borrowers are the inputs of the lender's shape that show none, or the first variety.
        """
        lender = next((spec for spec in inputs if not spec.turn and _may_share(spec, spec)), None)
        if lender is None or lender.name in self._lent:
            return inputs
        takers = {
            spec.name: SHARED_SPECIALS[spec.turn]
            for spec in inputs
            if spec is not lender and spec.turn in (0, 1) and _may_share(spec, lender)
        }
        if not takers:
            return inputs
        self._lent.add(lender.name)
        turns = {lender.name: SHARED_SPECIALS[0], **takers}
        return tuple(replace(spec, turn=turns.get(spec.name, spec.turn)) for spec in inputs)

    def _with_turn(self, spec: InputSpec, inputs: Sequence[InputSpec], *, alone: bool) -> InputSpec:
        key, elements = (spec.name, spec.strategy), math.prod(spec.shape)
        shown = self._shown[key]
        if shown >= VARIETIES.get(spec.strategy, 0):
            return spec
        if spec.strategy == SHARING:
            if not lenders_of(spec, inputs):
                return spec
        elif not _has_free_floats(spec):
            return spec
        elif spec.strategy == "special":
            if not holds_specials(spec) or (not alone if shown else elements < NEEDED):
                return spec
        elif math.prod(spec.shape[:-1]) >= FEWER_ROWS.get(spec.strategy, math.inf):
            return spec
        self._shown[key] += 1
        return replace(spec, turn=shown + 1)
