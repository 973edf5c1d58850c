"""Scale a problem's sizes down, and find by trial the sizes that may vary."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping

import msgspec

from gpuemu_flow.model.syntax import OPERATORS, compute
from gpuemu_flow.services.problems.model import ProblemFacts
from gpuemu_flow.services.problems.probing import ProbeError

Constants = Mapping[str, int]
Try = Callable[[Constants], ProblemFacts]
"""Runs the model with other values of its constants; raises ProbeError where it does not run."""

MOST_TRIES = 120
_WORDS = ("min", "max", "cdiv")
SMALL = (32, 24, 40, 16, 48, 20, 28, 12)
"""Values that constants are scaled to. Different constants get different values, if the model then
runs."""
MOST_ELEMENTS = 1 << 14
"""Largest number of elements of one input; with more, sizes are scaled further."""
MOST_GIVEN = 1 << 22
"""Largest number of elements of one input in cases of a size that the problem gives."""


class CachedAttempts(msgspec.Struct):
    """Runs a model with changed constants, at most `left` more times."""

    attempt: Try
    left: int = MOST_TRIES

    def __call__(self, constants: Constants) -> ProblemFacts | None:
        """Return facts about the model with given constants; None if it fails, or none is left."""
        if self.left <= 0:
            return None
        self.left -= 1
        try:
            return self.attempt(constants)
        except ProbeError:
            return None


def scale_down(
    tries: CachedAttempts, constants: Constants
) -> tuple[dict[str, int], ProblemFacts | None]:
    """Find small constants with which the model runs, and the facts of that run."""
    for changed in _plans(constants):
        found = tries(changed)
        if found is not None and largest(found) <= MOST_ELEMENTS:
            return changed, found
    best: dict[str, int] = {}
    known: ProblemFacts | None = None
    for name in sorted(constants, key=lambda one: -constants[one]):
        for value in (8, 16, 32, 64, 128):
            if value >= constants[name]:
                break
            found = tries({**best, name: value})
            if found is not None:
                best[name], known = value, found
                break
    return best, known if known is not None else tries({})


def _plans(constants: Constants) -> Iterator[dict[str, int]]:
    """Yield sets of small values for the constants, in the order in which they are to be tried. The
    first sets reduce all large constants. The later sets leave one or two of them unchanged."""
    large = sorted({value for value in constants.values() if value > SMALL[0]}, reverse=True)
    distinct = dict(zip(large, _distinct(len(large)), strict=False))
    everything = [name for name, value in constants.items() if value > SMALL[0]]
    if not everything:
        yield {}
        return
    yield {name: distinct[constants[name]] for name in everything}
    for size in (32, 16, 8, 64):
        yield {name: min(size, constants[name]) for name in everything}
    medium = {name: min(8, value) for name, value in constants.items() if value > 8}
    yield medium
    yield {name: min(4, value) for name, value in constants.items() if value > 4}
    for count in (1, 2):
        for kept in itertools.combinations(everything, count):
            for size in (32, 16):
                rest = [name for name in everything if name not in kept]
                if rest:
                    yield {name: min(size, constants[name]) for name in rest}


def _distinct(count: int) -> list[int]:
    return [SMALL[at] if at < len(SMALL) else SMALL[at % len(SMALL)] + at for at in range(count)]


def largest(about: ProblemFacts) -> int:
    """Return the number of elements of the largest input."""
    return max((math.prod(shape) for shape in about.shapes), default=1)


class VariableSizes(msgspec.Struct):
    """The sizes that may vary."""

    # Allowed values of each constant that may vary, by the constant's name.
    dims: dict[str, tuple[int, ...]]
    # The shape of each tensor. Each axis is a fixed size, or an expression of names in `dims`.
    axes: tuple[tuple[int | str, ...], ...]
    # Relations of dims that keep cases small.
    limits: tuple[str, ...] = ()


def with_given(
    tries: CachedAttempts,
    constants: Constants,
    scaled: Constants,
    varied: VariableSizes,
    most: int = MOST_GIVEN,
) -> VariableSizes:
    """Add the sizes that the problem gives, each for cases in which the other dims are small. A dim
    whose given size is too large, or does not run beside the scaled others, goes without."""
    dims = dict(varied.dims)
    for name, sizes in varied.dims.items():
        given = constants[name]
        if given in sizes or any(
            _elements(axes, {**{each: few[0] for each, few in varied.dims.items()}, name: given})
            > most
            for axes in varied.axes
        ):
            continue
        least = {each: few[0] for each, few in varied.dims.items()}
        if _runs(tries, scaled, {**least, name: given}, varied):
            dims[name] = tuple(sorted((*sizes, given)))
    if dims == varied.dims:
        return varied
    products = [
        "*".join(f"({axis})" if OPERATORS & {*str(axis)} else str(axis) for axis in axes)
        for axes in (*varied.axes, tuple(dims))
        if sum(isinstance(axis, str) for axis in axes) > 1
    ]
    limits = tuple(dict.fromkeys(f"{product} <= {most}" for product in products))
    return VariableSizes(dims, varied.axes, limits)


def _elements(axes: tuple[int | str, ...], sizes: Constants) -> int:
    return math.prod(compute(axis, sizes, {}) for axis in axes)


def vary(
    tries: CachedAttempts,
    constants: Constants,
    scaled: Constants,
    about: ProblemFacts,
    wanted: Mapping[str, tuple[int, ...]] | None = None,
) -> VariableSizes:
    """Find the constants that only set sizes of inputs, and the sizes that they may have."""
    axes: list[list[int | str]] = [list(shape) for shape in about.shapes]
    dims: dict[str, tuple[int, ...]] = {}
    for name in constants:
        value = scaled.get(name, constants[name])
        if name in _WORDS or not name.isascii():
            continue  # no name of a dim
        found = _linear(tries, name, value, scaled, about)
        if not found:
            continue
        if any(isinstance(axes[i][j], str) for i, j in found):
            continue  # an axis of two constants: both stay as they are
        sizes = [value]
        for size in _sizes(value) if wanted is None else wanted[name]:
            made = None if size in sizes else tries({**scaled, name: size})
            if made is not None and all(
                made.shapes[i][j] == compute(text, {name: size}, {})
                for (i, j), text in found.items()
            ):
                sizes.append(size)
        if len(sizes) > 1:
            dims[name] = tuple(sorted(sizes))
            for (i, j), text in found.items():
                axes[i][j] = text
    varied = VariableSizes(dims, tuple(tuple(shape) for shape in axes))
    return _together(tries, scaled, about, varied)


def _sizes(value: int) -> tuple[int, ...]:
    return (1, 3, 7, 17, value + 1, 2 * value, value // 2)


def _linear(
    tries: CachedAttempts, name: str, value: int, scaled: Constants, about: ProblemFacts
) -> dict[tuple[int, int], str]:
    """Map the axes whose sizes are linear in one constant, or a part of it, to their expressions.
    The keys are (index of the input, index of the axis). The result is empty if the size of any
    axis depends on the constant in another way, or if the model does not run with other values."""
    for other, third in ((value + 1, value + 2), (2 * value, 4 * value)):
        second = tries({**scaled, name: other})
        if second is None or not same_but_shapes(about, second):
            continue
        last = tries({**scaled, name: third})
        if last is None or not same_but_shapes(about, last):
            continue
        sizes = {
            (i, j): (x, y, z)
            for i, shapes in enumerate(zip(about.shapes, second.shapes, last.shapes, strict=True))
            for j, (x, y, z) in enumerate(zip(*shapes, strict=True))
            if not x == y == z
        }
        found = {at: _formula(name, (value, other, third), own) for at, own in sizes.items()}
        if all(found.values()):
            return found
    return {}


def _formula(name: str, values: tuple[int, int, int], sizes: tuple[int, int, int]) -> str:
    """Return the expression of a constant that gives these sizes for its values, or an empty one.

    It is linear, or the number of blocks that cover the constant.
    """
    step, change = values[1] - values[0], sizes[1] - sizes[0]
    factor, rest = divmod(change, step)
    offset = sizes[0] - factor * values[0]
    if factor >= 1 and not rest and sizes[2] == factor * values[2] + offset:
        return _expression(name, factor, offset)
    block = step // max(1, change)
    covers = block > 1 and all(
        -(-v // block) == size for v, size in zip(values, sizes, strict=True)
    )
    return f"cdiv({name}, {block})" if covers else ""


def _expression(name: str, factor: int, offset: int) -> str:
    text = name if factor == 1 else f"{factor}*{name}"
    return text + (f"+{offset}" if offset > 0 else f"-{-offset}" if offset < 0 else "")


def same_but_shapes(one: ProblemFacts, other: ProblemFacts) -> bool:
    """Tell whether the model takes the same arguments in two runs, apart from the sizes of axes."""
    return (
        one.init == other.init
        and len(one.arguments) == len(other.arguments)
        and all(
            (a.name, a.dtype, len(a.shape), a.value) == (b.name, b.dtype, len(b.shape), b.value)
            for a, b in zip(one.arguments, other.arguments, strict=True)
        )
    )


def _together(
    tries: CachedAttempts, scaled: Constants, about: ProblemFacts, varied: VariableSizes
) -> VariableSizes:
    """Drop the smallest sizes until the model runs with combinations of the remaining ones. The
    model must run with each combination of sizes that `_corners` returns. Until it does, the
    smallest size of every dim is dropped. If this would leave a dim with fewer than two sizes, the
    result has no dims."""
    while varied.dims:
        if all(_runs(tries, scaled, picked, varied) for picked in _corners(varied.dims)):
            return varied
        dims = {name: sizes[1:] for name, sizes in varied.dims.items()}
        if any(len(sizes) < 2 for sizes in dims.values()):
            break
        varied = VariableSizes(dims, varied.axes)
    return VariableSizes({}, about.shapes) if varied.dims else varied


def _corners(dims: Mapping[str, tuple[int, ...]]) -> list[dict[str, int]]:
    """Return combinations of sizes to try, as the sizes of all dims by name. In the first
    combination all dims have their smallest size, in the second their largest size. In each further
    one, a single dim has its smallest size and all others have their largest."""
    least = {name: sizes[0] for name, sizes in dims.items()}
    most = {name: sizes[-1] for name, sizes in dims.items()}
    return [least, most, *({**most, name: least[name]} for name in dims if len(dims) > 1)]


def _runs(
    tries: CachedAttempts, scaled: Constants, picked: Constants, varied: VariableSizes
) -> bool:
    found = tries({**scaled, **picked})
    if found is None:
        return False
    expected = [tuple(compute(size, picked, {}) for size in shape) for shape in varied.axes]
    return list(found.shapes) == expected
