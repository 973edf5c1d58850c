"""Compare gradients with central differences, in float64 and for any framework."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuemu_flow.client.calls import check_tolerances
from gpuemu_flow.frameworks.base import (
    Array,
    Arrays,
    CheckOutcome,
    FrameworkAdapter,
    Inputs,
    caller,
)
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, dtype_name, to_float64

EPS, ATOL, RTOL = 1e-4, 1e-5, 1e-3
_DRAWN_TOGETHER = 0.75  # for a smooth function, half the step leaves half the difference
_CALLS = 8  # a mask of few elements may well be drawn twice in a row
MAX_ELEMENTS = 1000
"""Most elements to check in one input. Of a larger input, a fixed seed chooses the elements."""


class GradientChecker:
    """Compares an op's gradients with central differences.

    The op is called with float64 tensors, so that the differences are exact enough to judge by. The
    outputs are summed with random weights: a plain sum would hide the errors of ops whose outputs
    have a constant sum, such as softmax. Elements at which the op has a kink are left out.

    Parameters
    ----------
    adapter : FrameworkAdapter
    eps : float
        Step of the differences, multiplied by the element's magnitude if this is above 1. It can
        also be passed as `epsilon`.
    atol, rtol : float
    """

    def __init__(
        self,
        adapter: FrameworkAdapter,
        eps: float = EPS,
        atol: float = ATOL,
        rtol: float = RTOL,
        *,
        epsilon: float | None = None,
        max_elements: int = MAX_ELEMENTS,
    ) -> None:
        check_tolerances(atol, rtol)
        self.adapter = adapter
        self.eps = eps if epsilon is None else epsilon
        self.atol = atol
        self.rtol = rtol
        self.max_elements = max_elements

    def check(
        self,
        op: Callable[..., Any],
        inputs: Inputs,
        check_inputs: Sequence[str] | None = None,
    ) -> CheckOutcome:
        """Check the gradients for all float inputs, or only for those in `check_inputs`.

        Parameters
        ----------
        inputs : mapping of name to tensor, or sequence of tensors
            Inputs of the op; `base.caller` describes how they are passed.
        """
        given = self.adapter.arrays(inputs)
        floats = [n for n, a in given.items() if dtype_name(a.dtype) in FLOAT_LIMITS]
        names = [n for n in floats if check_inputs is None or n in check_inputs]
        if not names:
            return CheckOutcome(False, "no input of a float dtype to differentiate by")
        wide = {n: to_float64(a) if n in floats else a for n, a in given.items()}
        function = caller(op, inputs)
        outputs, pull = self.adapter.pullback(function, wide, names)
        weights = _weights(outputs)
        gradients = pull(weights)

        def weighted(arrays: Arrays) -> float:
            made = self.adapter.evaluate(function, arrays)
            return float(sum(np.sum(to_float64(a) * w) for a, w in zip(made, weights, strict=True)))

        outcome = self._compare(weighted, wide, gradients)
        if not outcome.passed and self._is_random(weighted, wide):
            return CheckOutcome(
                False,
                "no verdict: calls on the same inputs gave different outputs; an op that draws "
                "random numbers must draw the same ones in each call",
            )
        return outcome

    def _is_random(self, weighted: Callable[[Arrays], float], arrays: Arrays) -> bool:
        """Tell whether calls on the same inputs differ too much for central differences."""
        found = [weighted(arrays) for _ in range(_CALLS)]
        return max(found) - min(found) > self.eps * self.atol

    def _compare(
        self,
        weighted: Callable[[Arrays], float],
        arrays: dict[str, Array],
        gradients: dict[str, Array],
    ) -> CheckOutcome:
        tried = kinks = 0
        here = weighted(arrays)
        worst = 0.0
        for name, gradient in gradients.items():
            if gradient.shape != arrays[name].shape:
                message = f"the gradient by {name!r} has shape {list(gradient.shape)}"
                return CheckOutcome(False, message, float("inf"))
            for index in self._places(arrays[name].shape):
                numeric, smooth = self._difference(weighted, arrays, name, index, here)
                tried += 1
                if not smooth:
                    kinks += 1
                    continue
                analytic = float(gradient[index])
                error = abs(analytic - numeric)
                worst = max(worst, error)
                if not error <= self.atol + self.rtol * abs(numeric):
                    return CheckOutcome(
                        False,
                        f"the gradient by {name!r} at {list(index)} is {analytic:.6g}; central "
                        f"differences give {numeric:.6g}",
                        error,
                        {"input": name, "index": list(index)},
                    )
        if not tried:
            return CheckOutcome(False, "no verdict: the inputs hold no element to differentiate by")
        if kinks == tried:
            return CheckOutcome(False, "no verdict: the op has a kink at every element tried")
        return CheckOutcome(
            True, f"{tried - kinks} elements agree", worst, {"tried": tried, "kinks": kinks}
        )

    def _places(self, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        size = int(np.prod(shape))
        flat = np.arange(size)
        if size > self.max_elements:
            flat = np.sort(np.random.default_rng(0).choice(size, self.max_elements, replace=False))
        return [tuple(int(i) for i in np.unravel_index(place, shape)) for place in flat]

    def _difference(
        self,
        weighted: Callable[[Arrays], float],
        arrays: dict[str, Array],
        name: str,
        index: tuple[int, ...],
        here: float,
    ) -> tuple[float, bool]:
        """Return the central difference for one element, and whether the derivative seems to exist.

        The derivative seems to exist if two step sizes give nearly the same result, and if there is
        no kink. To find a kink, the slopes on the two sides of the element's value are compared. As
        the step shrinks, these slopes converge if the function is smooth, and stay apart at a kink.
        """
        step = self.eps * max(1.0, abs(float(arrays[name][index])))
        found, apart = [], []
        for size in (step, step / 2):
            sides = []
            for sign in (1.0, -1.0):
                moved = arrays[name].copy()
                moved[index] += sign * size
                sides.append(weighted({**arrays, name: moved}))
            found.append((sides[0] - sides[1]) / (2 * size))
            apart.append(abs(sides[0] - 2 * here + sides[1]) / size)
        coarse, fine = found
        allowed = self.atol + self.rtol * max(abs(coarse), abs(fine))
        kink = apart[1] > allowed and apart[1] > _DRAWN_TOGETHER * apart[0]
        return fine, abs(coarse - fine) <= allowed and not kink


def _weights(outputs: Sequence[Array]) -> list[Array]:
    rng = np.random.default_rng(1)
    return [rng.uniform(0.5, 1.5, array.shape) for array in outputs]
