"""Smaller shapes of a failing case: slices of the original values, along one dim or several."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gpuemu_flow.cases.candidates import Array, Candidate, Search, make_candidate
from gpuemu_flow.cases.op_schema import Dim, OpSchema, TensorDef
from gpuemu_flow.cases.shapes import TYPICAL
from gpuemu_flow.model.syntax import names_in
from gpuemu_flow.model.types import Shape

SMALL_SIZES = 8
"""Sizes up to this one are tried one after the other, because failing is not monotonic."""

CLASS_SIZES = sorted({size for sizes in TYPICAL.values() for size in sizes})
JOINT_SIZES = (1, 2, 3, 4, 5, 8)

Indices = NDArray[np.intp]


class Axis(Struct, frozen=True):
    """A dim that may shrink, and all axes of inputs that have its size."""

    name: str  # name of the schema's dim, or ``axis <n>``
    # For each of these axes, the name of the input and the number of the axis
    members: tuple[tuple[str, int], ...]
    dim: Dim | None = None  # Sizes that the schema allows; None allows all sizes from 1

    def size(self, candidate: Candidate) -> int:
        if not self.members:
            return candidate.dims[self.name]
        name, axis = self.members[0]
        return int(candidate.inputs[name].shape[axis])

    def smaller(self, size: int) -> list[int]:
        """Return the allowed sizes below `size`, in ascending order."""
        if self.dim is None:
            return list(range(1, size))
        if self.dim.candidates:
            return sorted(n for n in set(self.dim.candidates) if 0 <= n < size)
        first = max(self.dim.smallest, 0)
        return list(range(first, size, self.dim.multiple_of))


def find_axes(
    inputs: Mapping[str, Array], schema: OpSchema | None, dims: Mapping[str, int]
) -> list[Axis]:
    """Return the axes of a case that may shrink. If the inputs follow a schema, these are its dims.
    Otherwise they are the axes of the shape that all inputs share; if shapes differ, all axes of
    the same size shrink as one dim."""
    if schema is not None and dims:
        absent = {name for name, array in inputs.items() if array.ndim and not any(array.shape)}
        axes = _schema_axes(schema, {t.name for t in schema.inputs if _may_lack(t)} & absent)
        if all(_follows(axis, inputs, dims) for axis in axes):
            return axes
    shaped = {name: array.shape for name, array in inputs.items() if array.ndim}
    if len(set(shaped.values())) <= 1:
        rank = len(next(iter(shaped.values()), ()))
        return [Axis(f"axis {n}", tuple((name, n) for name in shaped)) for n in range(rank)]
    by_size: dict[int, list[tuple[str, int]]] = {}
    for name, shape in shaped.items():
        for n, size in enumerate(shape):
            by_size.setdefault(size, []).append((name, n))
    return [Axis(f"axes of size {size}", tuple(members)) for size, members in by_size.items()]


def _may_lack(tensor: TensorDef) -> bool:
    return tensor.rule is not None and tensor.rule.optional


def _schema_axes(schema: OpSchema, absent: Collection[str]) -> list[Axis]:
    """Return, as `Axis`, each dim that occurs in an input or in a derived dim's expression. Inputs
    that are None (`absent`) are ignored."""
    axes = []
    behind = {name for dim in schema.derived for name in names_in(dim.expression)}
    for dim in schema.dims:
        members = tuple(
            (tensor.name, n)
            for tensor in schema.inputs
            for n, size in enumerate(tensor.dims)
            if size == dim.name and tensor.name not in absent
        )
        if members or dim.name in behind:
            axes.append(Axis(dim.name, members, dim))
    return axes


def _follows(axis: Axis, inputs: Mapping[str, Array], dims: Mapping[str, int]) -> bool:
    return all(
        name in inputs and n < inputs[name].ndim and inputs[name].shape[n] == dims.get(axis.name)
        for name, n in axis.members
    )


def failing_position(
    schema: OpSchema, inputs: Mapping[str, Shape], output: str, index: Sequence[int]
) -> dict[str, int]:
    """Return the index of a failing output element along each dim, as far as it is known."""
    named = [tensor for tensor in schema.outputs if tensor.name == output] or schema.outputs[:1]
    if named and len(named[0].dims) == len(index):
        pairs = zip(named[0].dims, index, strict=True)
        return {size: at for size, at in pairs if isinstance(size, str)}
    if any(len(shape) == len(index) for shape in inputs.values()):
        return {f"axis {n}": at for n, at in enumerate(index)}
    return {}


def select(candidate: Candidate, chosen: Mapping[Axis, Indices]) -> Candidate:
    """Return the candidate with only the chosen indices of some dims, in the order given."""
    inputs = dict(candidate.inputs)
    dims = dict(candidate.dims)
    for axis, indices in chosen.items():
        for name, n in axis.members:
            inputs[name] = np.take(inputs[name], indices, axis=n)
        if axis.name in dims:
            dims[axis.name] = len(indices)
    return make_candidate(inputs, candidate.layouts, dims)


class ShapeShrinker:
    """Makes the dims of the best candidate smaller."""

    def __init__(self, search: Search, axes: Sequence[Axis], failing: Mapping[str, int]) -> None:
        self._search = search
        self._axes = axes
        self._failing: dict[str, int] = dict(failing)

    def shrink_roughly(self) -> None:
        """Shrink the dims by trying only a few sizes, and a few slices of each size. The case that
        remains is often small enough."""
        self._shrink_all_at_once()
        for axis in self._axes:
            self._shrink_axis(axis)
        self._shrink_equal_pairs()

    def shrink_fully(self) -> None:
        steps = -1
        while steps != self._search.steps:
            steps = self._search.steps
            for axis in self._axes:
                while self._take_smallest(axis):
                    pass
            self._shrink_equal_pairs()

    def _shrink_all_at_once(self) -> None:
        for wanted in JOINT_SIZES:
            targets = {}
            for axis in self._axes:
                size = axis.size(self._search.best)
                targets[axis] = next((n for n in axis.smaller(size) if n >= wanted), size)
            if self._accept_any(targets):
                return

    def _shrink_axis(self, axis: Axis) -> None:
        """Shrink a dim to a small size that fails. First try small sizes and `CLASS_SIZES`, in
        ascending order, until one fails. Then bisect between the last size that passed and the
        smallest size that is known to fail."""
        allowed = axis.smaller(axis.size(self._search.best))
        passing = -1
        for size in _rough_sizes(allowed):
            if self._accept_any({axis: size}):
                break
            passing = size
        between = [n for n in allowed if passing < n < axis.size(self._search.best)]
        while between:
            middle = len(between) // 2
            if self._accept_any({axis: between[middle]}):
                between = between[:middle]
            else:
                between = between[middle + 1 :]

    def _shrink_equal_pairs(self) -> None:
        """Shrink two dims of equal size together. An op that swaps two axes by mistake may fail
        only while their sizes are equal."""
        for first, second in combinations(self._axes, 2):
            size = first.size(self._search.best)
            if size != second.size(self._search.best):
                continue
            common = set(second.smaller(size))
            for n in _rough_sizes([n for n in first.smaller(size) if n in common]):
                if self._accept_any({first: n, second: n}):
                    break

    def _accept_any(self, targets: Mapping[Axis, int]) -> bool:
        """Shrink several dims to given sizes at once; return True if any choice of slices fails.
        All dims use the same kind of slice at a time, such as the first indices."""
        best = self._search.best
        shrunk = {axis: n for axis, n in targets.items() if n < axis.size(best)}
        kinds = {axis: list(self._few_slices(axis, n)) for axis, n in shrunk.items()}
        for turn in range(max((len(slices) for slices in kinds.values()), default=0)):
            chosen = {axis: slices[min(turn, len(slices) - 1)] for axis, slices in kinds.items()}
            if self._accept(chosen):
                return True
        return False

    def _take_smallest(self, axis: Axis) -> bool:
        """Shrink a dim to the smallest size that fails; return False if no smaller size does."""
        allowed = axis.smaller(axis.size(self._search.best))
        for size in allowed:
            for indices in self._many_slices(axis, size, every_run=size == allowed[-1]):
                if self._accept({axis: indices}):
                    return True
        return False

    def _few_slices(self, axis: Axis, size: int) -> Iterator[Indices]:
        """Yield a few slices of `size` indices, each as an array of indices. They are the first
        indices, a window around the failing element, and the indices with the most nonzero
        elements. No slice occurs twice."""
        whole = axis.size(self._search.best)
        found = [np.arange(size, dtype=np.intp)]
        at = self._failing.get(axis.name)
        if at is not None:
            found.append(_window(whole, size, at - size // 2))
        found.append(self._telling(axis, size))
        yield from _different(found)

    def _many_slices(self, axis: Axis, size: int, *, every_run: bool) -> Iterator[Indices]:
        """Yield many slices of `size` indices. These are the slices of `_few_slices`, the last
        indices, windows that begin or end at the failing element, and evenly spaced indices. If
        `every_run` is true, all slices that leave out one block of consecutive indices follow. If
        the size shrinks by one, these are all possible slices."""
        whole = axis.size(self._search.best)
        found = [*self._few_slices(axis, size), _window(whole, size, whole - size)]
        at = self._failing.get(axis.name)
        if at is not None:
            found += [_window(whole, size, at - size + 1), _window(whole, size, at)]
        if size:
            found.append(np.arange(size, dtype=np.intp) * (whole // size))
        if every_run:
            gap = whole - size
            found += [
                np.delete(np.arange(whole), slice(start, start + gap)) for start in range(size + 1)
            ]
        yield from _different(found)

    def _telling(self, axis: Axis, size: int) -> Indices:
        """Return the `size` indices of a dim for which the inputs have the most nonzero elements.
        NaN and Inf count most. The indices are in ascending order."""
        best = self._search.best
        weight = np.zeros(axis.size(best))
        for name, n in axis.members:
            values = best.inputs[name]
            others = tuple(k for k in range(values.ndim) if k != n)
            weight += np.count_nonzero(values.astype(bool), axis=others)
            if values.dtype.kind not in "iub":
                with np.errstate(all="ignore"):
                    special = ~np.isfinite(values.astype(np.float64))
                weight += np.count_nonzero(special, axis=others) * float(values.size)
        order = np.argsort(-weight, kind="stable")[:size]
        return np.sort(order).astype(np.intp)

    def _accept(self, chosen: Mapping[Axis, Indices]) -> bool:
        best = self._search.best
        text = ", ".join(
            f"{axis.name}: {axis.size(best)} to {len(indices)}" for axis, indices in chosen.items()
        )
        if not self._search.accept(select(best, chosen), text):
            return False
        for axis, indices in chosen.items():
            kept = np.flatnonzero(indices == self._failing.pop(axis.name, -1))
            if len(kept):
                self._failing[axis.name] = int(kept[0])
        return True


def _rough_sizes(allowed: Iterable[int]) -> list[int]:
    return [n for n in allowed if n <= SMALL_SIZES or n in CLASS_SIZES]


def _window(whole: int, size: int, start: int) -> Indices:
    start = min(max(start, 0), whole - size)
    return np.arange(start, start + size, dtype=np.intp)


def _different(found: Iterable[Indices]) -> Iterator[Indices]:
    seen = set()
    for indices in found:
        key = indices.tobytes()
        if key not in seen:
            seen.add(key)
            yield indices
