"""Arithmetic that marks rounded results, perturbs one operation, or multiplies by reciprocals.

A result may depend on roundings although random changes of these roundings (see `noise`) leave it
unchanged. For example, where three roundings together decide a quantised value, twelve random draws
may well agree. The dependence always shows if each rounded result becomes NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.numerics.noise import Doubting
from gpuemu_flow.numerics.perturb import Arrays
from gpuemu_flow.numerics.rng import SeededRng
from gpuemu_flow.numerics.single import Single, bare, float32_quotient, wrapped

STAND_INS = (85, 86)
"""Integers that NaN is cast to, one for each evaluation: no element equals both by chance."""


class _Casting(Single):
    """A float32 array that turns NaN into `stand_in` when it is cast to an integer dtype.

    In numpy, the integer that NaN becomes depends on the processor.
    """

    stand_in: int

    def astype(self, dtype: Any, *args: Any, **options: Any) -> Any:
        with np.errstate(invalid="ignore"):
            cast = super().astype(dtype, *args, **options)
        if np.dtype(dtype).kind not in "iu":
            return cast
        stand_in = np.dtype(dtype).type(self.stand_in)
        return np.where(np.isnan(bare(self)), stand_in, bare(cast)).view(type(self))


class _Marking(_Casting, Doubting):
    """An array that replaces each rounded result by NaN.

    A quotient also becomes NaN if the product of dividend and reciprocal has another value.
    """

    def _product(self, result: Any) -> Any:
        return np.full_like(bare(result), np.nan)

    def _moved(self, values: Any, exact: Any = None) -> NDArray[Any]:
        plain = np.asarray(values)
        return plain if exact is None else np.where(plain == exact, plain, plain.dtype.type(np.nan))


class _Stepping(Doubting):
    """An array that multiplies all rounded results of one chosen operation by one factor.

    Several values may be computed from one such result, for example from a scale. All of them then
    use the changed result.
    """

    turn: int
    met: list[int]

    def _product(self, result: Any) -> Any:
        return self._moved(bare(result), np.full_like(bare(result), np.nan))

    def _moved(self, values: Any, exact: Any = None) -> NDArray[Any]:
        plain = np.asarray(values)
        if exact is None:
            return plain
        rounded = plain != exact
        if not rounded.any():
            return plain
        self.met.append(self.turn)
        if len(self.met) != self.turn:
            return plain
        return np.where(rounded, plain * plain.dtype.type(1.0 + self.unit), plain)


class _Inverting(_Casting):
    """An array that changes quotients where the divisor's reciprocal overflows.

    Such a quotient becomes the product of the dividend and the infinite reciprocal.
    """

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: tuple[Any, ...] = (), **options: Any
    ) -> Any:
        result = super().__array_ufunc__(ufunc, method, *inputs, out=out, **options)
        terms = float32_quotient(result, ufunc, method, inputs, options)
        if terms is None:
            return result
        above, below = terms
        with np.errstate(all="ignore"):
            inverse = np.float32(1.0) / below
            product = above * inverse
        overflows = np.isinf(inverse) & (below != 0.0)
        if not overflows.any():
            return result
        return self._into(out, np.where(overflows, product, np.asarray(bare(result))), "unsafe")


def marking(inputs: Arrays, stand_in: int) -> dict[str, NDArray[Any]]:
    """Return the inputs as float32 arrays whose arithmetic gives NaN wherever it rounds.

    A cast to an integer turns NaN into `stand_in`, so an integer result that is the same for two
    values of `stand_in` depends on no rounding. Results of matrix products count as rounded.
    """
    return wrapped(inputs, _Marking, stand_in=stand_in, rng=SeededRng(0), unit=0.0)


def stepping(inputs: Arrays, turn: int, change: float) -> tuple[dict[str, NDArray[Any]], list[int]]:
    """Return float32 arrays that change one operation's result, and a list that counts operations.

    The arithmetic adds one entry to the list for each operation that rounds.
    """
    met: list[int] = []
    return wrapped(inputs, _Stepping, turn=turn, met=met, rng=SeededRng(0), unit=change), met


def inverting(inputs: Arrays, stand_in: int) -> dict[str, NDArray[Any]]:
    """Return the inputs as arrays that change quotients where the divisor's reciprocal overflows.

    Such a quotient becomes the product of the dividend and the infinite reciprocal, as in an op
    that multiplies by reciprocals. A cast to an integer turns NaN into `stand_in`.
    """
    return wrapped(inputs, _Inverting, stand_in=stand_in)
