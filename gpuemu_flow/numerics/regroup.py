"""Measure what perturbed inputs do not show: regrouped sums, and arithmetic on constants."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS
from gpuemu_flow.numerics.noise import widened
from gpuemu_flow.numerics.perturb import Arrays
from gpuemu_flow.numerics.rng import SeededRng
from gpuemu_flow.numerics.single import (
    PRODUCTS,
    Single,
    bare,
    narrowed,
    operands_in_float32,
    options_in_float32,
    wrapped,
)
from gpuemu_flow.numerics.spread import Spread

# Arithmetic on constants (positions, windows and other tables) with each rounding perturbed.
#
# A reference may compute a table from ``np.arange`` and sizes alone. A correct op computes the
# table in float32, and maybe in another order: ``(i + 0.5) * (n / o)`` in place of ``(i + 0.5) * n
# / o``. Other measurements do not show the errors of such a table. Perturbed inputs do not change
# the table. The shadow, which is the reference computed in float32, does not convert integers that
# the reference makes, nor values computed from these alone. Therefore, it does not compute the
# table in float32.

UP, DOWN = 1.0, -1.0
"""Directions in which all roundings of constants are perturbed together."""

LARGER = 8.0
"""Factor on the perturbations in the draws that tell rounding errors from changed indices."""

RANDOM = 2
"""Number of draws in which roundings are perturbed at random, besides the draw in which all results
are increased and the draw in which all are decreased. A thorough measurement makes three times as
many random draws."""


class _BesideConstants(Single):
    """A float32 or integer input of a run that perturbs only arithmetic on constants. It is a run
    of the shadow, which is the reference computed in float32. Constants are arrays that the shadow
    makes without inputs. They are of the class `_Constant`. Arithmetic on an input is not
    perturbed."""


class _Constant(Single):
    """An array that depends on no input. Where a numpy function computes float32 values from it and
    may round them, these values are changed by up to `unit`."""

    holds_integers = True
    rng: SeededRng
    unit: float  # largest relative change
    direction: float  # `UP`, `DOWN`, or 0 for random changes of each element

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: tuple[Any, ...] = (), **options: Any
    ) -> Any:
        result = super().__array_ufunc__(ufunc, method, *inputs, out=out, **options)
        if any(_is_kind_of_input(type(value)) for value in (*inputs, *out)):
            return result if out else _as_input(result)
        moves = method != "at" and ufunc.nout == 1 and options.get("where", True) is True
        if out or not moves or getattr(result, "dtype", None) != np.float32:
            return result
        plain = np.asarray(bare(result))
        operands = operands_in_float32(ufunc, method, inputs)
        wide = {name: widened(bare(value)) for name, value in options.items()}
        exact = getattr(ufunc, method)(*map(widened, operands), **wide)
        rounded = plain != exact
        if ufunc is np.true_divide and method == "__call__":
            rounded |= _not_power_of_two(operands[1]) & (plain != 0.0)
        return self._again(self._moved(plain, rounded))

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        result = super().__array_function__(func, types, args, kwargs)
        return _as_input(result) if any(map(_is_kind_of_input, types)) else result

    def _product(self, result: Any) -> Any:
        plain = np.asarray(bare(narrowed(result, weak=False)))
        return self._moved(plain, plain != np.rint(plain)) if plain.dtype == np.float32 else result

    def _moved(self, plain: NDArray[Any], rounded: NDArray[Any]) -> NDArray[Any]:
        shares = self.direction or (2.0 * self.rng.f64(plain.size) - 1.0).reshape(plain.shape)
        with np.errstate(all="ignore"):
            moved = (plain * (1.0 + shares * self.unit)).astype(plain.dtype)
        return np.where(rounded, moved, plain)


def moving_constants(
    inputs: Arrays, rng: SeededRng, unit: float, direction: float = 0.0
) -> dict[str, NDArray[Any]]:
    """Wrap the inputs so that the shadow's arithmetic on constants is perturbed. The shadow is the
    reference computed in float32. Constants are arrays that the shadow makes without inputs, such
    as ``np.arange(n)``. Quotients count as rounded even where they are exact, unless the divisor is
    a power of two: an op may multiply by a rounded reciprocal or ratio instead. Arithmetic on
    inputs or on single numbers, and arithmetic of other libraries, is not perturbed."""
    attributes = {"rng": rng, "unit": unit, "direction": direction}
    made = type("_Constant", (_Constant,), attributes)
    return wrapped(inputs, _BesideConstants, made=made)


def add_constant_draws(
    outputs: Mapping[str, Spread],
    evaluate: Callable[[Arrays], Arrays | None],
    inputs: Arrays,
    rng: SeededRng,
    unit: float,
    *,
    thorough: bool,
) -> None:
    """Run the shadow with perturbed arithmetic on constants, and record how outputs change. The
    shadow is the reference computed in float32. Its results are added to the outputs' spreads. A
    large change has one of two reasons, which further evaluations with larger perturbations
    distinguish. The first is a rounding error, for example in the angle of a rotary embedding far
    from the first position. This change grows with the perturbation. The second is that the
    perturbation selects another index, for example that of another nearest neighbour. The result
    then jumps to the value at this index, however large the perturbation is."""
    draws = [evaluate(moved) for moved in constant_draws(inputs, rng, unit, thorough=thorough)]
    for values in draws:
        for name, flat in (values or {}).items():
            outputs[name].add_constants(flat)
    if not any(output.changes_with_constants() for output in outputs.values()):
        return
    plain = evaluate(moving_constants(inputs, rng, 0.0))
    larger = constant_draws(inputs, rng, LARGER * unit, thorough=thorough)
    pairs = list(zip(draws, map(evaluate, larger), strict=True))
    known = [(small, large) for small, large in pairs if small is not None and large is not None]
    if plain is None or len(known) < len(pairs):
        return
    for name, output in outputs.items():
        output.compare_constants(plain[name], [(one[name], other[name]) for one, other in known])


def constant_draws(
    inputs: Arrays, rng: SeededRng, unit: float, *, thorough: bool
) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield, for each draw, inputs of a class that perturbs the shadow's arithmetic on constants.
    The shadow is the reference computed in float32. Constants are arrays that the shadow makes
    without inputs, such as ``np.arange(n)``. One draw increases all rounded results of arithmetic
    on constants, one decreases all of them, and the others change each at random. See
    `moving_constants`."""
    count = 3 * RANDOM if thorough else RANDOM
    for draw, direction in enumerate((UP, DOWN, *[0.0] * count)):
        yield moving_constants(inputs, rng.derive(f"auto/constants/{draw}"), unit, direction)


def _not_power_of_two(divisor: Any) -> NDArray[np.bool_]:
    fractions, _ = np.frexp(np.abs(np.asarray(divisor, np.float64)))
    uneven: NDArray[np.bool_] = np.asarray(fractions != 0.5)
    return uneven


def _is_kind_of_input(kind: type) -> bool:
    return issubclass(kind, Single) and not issubclass(kind, _Constant)


def _as_input(result: Any) -> Any:
    """Convert each `_Constant` in a result to a `Single`, which is not perturbed. Call this for a
    result that depends on an input."""
    if isinstance(result, (tuple, list)):
        make = getattr(type(result), "_make", type(result))
        return make(map(_as_input, result))
    if not isinstance(result, _Constant):
        return result
    return result.view(Single)


class _Regrouped(Single):
    """A float32 array that remembers, until it is changed, the two arrays it was computed from."""

    # Two arrays: this array is the first minus the second. None if this array is no sum or
    # difference, or has been changed.
    terms: tuple[NDArray[Any], NDArray[Any]] | None = None

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: tuple[Any, ...] = (), **options: Any
    ) -> Any:
        for array in out:
            if isinstance(array, _Regrouped):
                array.terms = None
        if method == "__call__" and ufunc in (np.add, np.subtract) and not (out or options):
            return self._sum(ufunc, *inputs)
        return super().__array_ufunc__(ufunc, method, *inputs, out=out, **options)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.terms = None
        super().__setitem__(key, value)

    def _sum(self, ufunc: np.ufunc, left: Any, right: Any) -> Any:
        """Compute a sum or difference of two arrays, regrouped if one of them is itself a sum."""
        minus = ufunc is np.subtract
        one, other = operands_in_float32(ufunc, "__call__", (left, right))
        plain = ufunc(one, other)
        if getattr(plain, "dtype", None) != np.float32:
            return self._again(plain)
        first, second = (getattr(value, "terms", None) for value in (left, right))
        if first is not None:
            terms = (first[0], first[1] + other if minus else first[1] - other)
        elif second is not None and minus:
            terms = (one + second[1], second[0])
        elif second is not None:
            terms = (one + second[0], second[1])
        else:
            terms = (one, other if minus else np.negative(other))
        grouped = first is not None or second is not None
        result: _Regrouped = np.asarray(terms[0] - terms[1] if grouped else plain).view(_Regrouped)
        result.terms = terms
        return result


def regrouped(inputs: Arrays) -> dict[str, NDArray[Any]]:
    """Wrap the inputs' float32 arrays so that sums and differences of three terms are regrouped.
    Where a reference computes ``(a - b) - c``, the wrapped arrays compute ``a - (b + c)``. Any
    other use of ``a - b`` gets the usual value of that difference. Arithmetic on single elements,
    and that of other libraries, is unchanged."""
    return wrapped(inputs, _Regrouped)


FAR = 1e6
"""Magnitude of inputs below which float32 hardly overflows: a product of six of them does not."""

_LARGEST = FLOAT_LIMITS["float32"].max
_DIGITS = 2.0**-50
"""Error of a float64 sum, per term, as a share of the sum of the terms' magnitudes."""


class _Overflowing(Single):
    """A float32 array whose sums and matrix products overflow as in the worst order of additions.
    An element of such a result is infinite or NaN if at least one order of its terms may make it
    so, even if numpy's own order does not."""

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: tuple[Any, ...] = (), **options: Any
    ) -> Any:
        sums = ufunc is np.add and method in ("reduce", "accumulate", "reduceat")
        if not (sums or (ufunc is np.matmul and method == "__call__")):
            return super().__array_ufunc__(ufunc, method, *inputs, out=out, **options)
        if options.get("where", True) is not True or options.get("initial") is not None:
            return super().__array_ufunc__(ufunc, method, *inputs, out=out, **options)
        options = options_in_float32(options)
        plain = operands_in_float32(ufunc, method, inputs)
        call = getattr(ufunc, method)
        result = call(*plain, **options)
        if getattr(result, "dtype", None) == np.float32:
            options.pop("dtype", None)  # `_overflowed` computes in float64
            terms, places = (plain[:1], plain[1:]) if sums else (plain, [])
            result = _overflowed(result, lambda *a: call(*a, *places, **options), terms)
        return self._into(out, result, "unsafe")

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        result = super().__array_function__(func, types, args, kwargs)
        known = func in PRODUCTS and kwargs.get("out") is None and not kwargs.get("dtype")
        if not known or getattr(result, "dtype", None) != np.float32:
            return result
        terms: list[Any] = []
        shape = _taken(args, terms), _taken(kwargs, terms)

        def call(*given: Any) -> Any:
            rest = list(given)
            return func(*_put(shape[0], rest), **_put(shape[1], rest))

        return self._again(_overflowed(bare(result), call, terms))


def overflowing(inputs: Arrays) -> dict[str, NDArray[Any]]:
    """Wrap the inputs' float32 arrays so that a sum overflows if any order of its terms would. A
    sum of n terms may become infinite where n times the sum of the terms of one sign exceeds the
    range of float32, and NaN where this holds for both signs. The factor n covers weights that are
    divided by their sum only at the end, as in an online softmax. Three kinds of sums are computed
    as usual: the elementwise sum of two arrays (``a + b``), sums by other libraries, and sums by
    methods written in C (``a.dot(b)``)."""
    return wrapped(inputs, _Overflowing)


def _overflowed(result: Any, call: Callable[..., Any], terms: list[Any]) -> NDArray[Any]:
    """Return the result with infinities and NaN wherever some order of the terms may give them."""
    plain = np.asarray(result)
    with np.errstate(all="ignore"):
        wide = [np.nan_to_num(_wide(t), nan=0.0, posinf=0.0, neginf=0.0) for t in terms]
        if not all(values.size for values in wide) or not plain.size:
            return plain
        sizes = [np.abs(values) for values in wide]
        most = float(max(values.size for values in wide))
        if most * most * np.prod([values.max() for values in sizes]) <= _LARGEST:
            return plain
        total, exact = np.asarray(call(*sizes)), np.asarray(call(*wide))
        count = np.asarray(call(*(np.ones(values.shape) for values in wide)))
        above, below = (total + exact) / 2.0, (total - exact) / 2.0
        doubt = count * _DIGITS * total
        to_plus = ((count * above > _LARGEST) & (above > doubt)) | (plain == np.inf)
        to_minus = ((count * below > _LARGEST) & (below > doubt)) | (plain == -np.inf)
        changed = np.where(to_plus, np.inf, np.where(to_minus, -np.inf, plain))
        changed = np.where((to_plus & to_minus) | np.isnan(plain), np.nan, changed)
        return changed.astype(np.float32)


def _wide(value: Any) -> NDArray[np.float64]:
    return np.asarray(bare(value), dtype=np.float64)


def _taken(value: Any, terms: list[Any]) -> Any:
    """Move the arrays of numbers in a call's arguments to the end of the list `terms`. The
    arguments may be nested in lists, tuples and dicts. They are returned with `_PLACE` instead of
    each array. `_put` is the inverse."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "iufb":
            terms.append(value)
            return _PLACE
        return value
    if type(value) in (list, tuple):
        return type(value)(_taken(inner, terms) for inner in value)
    if isinstance(value, dict):
        return {name: _taken(inner, terms) for name, inner in value.items()}
    return value


_PLACE = object()
"""Stands for an array that was taken out of its arguments."""


def _put(value: Any, terms: list[Any]) -> Any:
    """Return a call's arguments with the arrays of `terms` in place of each `_PLACE`. The arrays
    are used in order, and are removed from the list."""
    if value is _PLACE:
        return terms.pop(0)
    if type(value) in (list, tuple):
        return type(value)(_put(inner, terms) for inner in value)
    if isinstance(value, dict):
        return {name: _put(inner, terms) for name, inner in value.items()}
    return value
