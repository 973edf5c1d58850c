"""Arithmetic on constants (positions, windows and other tables) with each rounding perturbed.

A reference may compute a table from ``np.arange`` and sizes alone. A correct op computes the table
in float32, and maybe in another order: ``(i + 0.5) * (n / o)`` in place of ``(i + 0.5) * n / o``.
Other measurements do not show the errors of such a table. Perturbed inputs do not change the table.
The shadow, which is the reference computed in float32, does not convert integers that the reference
makes, nor values computed from these alone. Therefore, it does not compute the table in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.numerics.noise import widened
from gpuemu_flow.numerics.perturb import Arrays
from gpuemu_flow.numerics.rng import SeededRng
from gpuemu_flow.numerics.single import Single, bare, narrowed, operands_in_float32, wrapped
from gpuemu_flow.numerics.spread import Spread

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
        if any(map(_is_input, (*inputs, *out))):
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


def _is_input(value: Any) -> bool:
    return _is_kind_of_input(type(value))


def _as_input(result: Any) -> Any:
    """Convert each `_Constant` in a result to a `Single`, which is not perturbed. Call this for a
    result that depends on an input."""
    if isinstance(result, (tuple, list)):
        make = getattr(type(result), "_make", type(result))
        return make(map(_as_input, result))
    if not isinstance(result, _Constant):
        return result
    return result.view(Single)
