"""Plant known kinds of kernel bugs in a reference's output, to test the op's own check.

Some bugs are planted in an output itself. Others are planted in an input, which is changed to what
a buggy kernel would have read, such as a stale row, or a reduction's input without its tail. The
reference then computes the wrong output from the changed input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from gpuemu_flow.model.errors import FlowError
from gpuemu_flow.model.types import DTYPES
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, dtype_name, numpy_dtype, to_float64, widened
from gpuemu_flow.numerics.rng import SeededRng
from gpuemu_flow.numerics.trivial import Arrays, as_dtype, same_outputs

Array = NDArray[Any]

TILES = (128, 64, 32, 16, 8)
LEAST_DEPTH = 64
"""Fewest terms of a sum whose rounding errors in a narrow dtype are beyond doubt."""


class Site(Struct, frozen=True):
    """The tensor in which a bug is planted."""

    values: Array  # Correct values, at least one; floats may be wider than `dtype`
    dtype: str  # Dtype that the tensor has, or will be rounded to
    rng: SeededRng  # Generator that decides which elements the bug hits
    longest: int  # largest dim over all inputs
    depths: tuple[int, ...]  # Last dim of each input

    @property
    def is_float(self) -> bool:
        return DTYPES[self.dtype].kind == "float"

    def wide(self) -> NDArray[np.float64]:
        return np.array(to_float64(self.values), np.float64)


Planter = Callable[[Site], "Array | None"]


def _axis_size(site: Site, axis: int) -> int:
    return site.values.shape[axis] if site.values.ndim >= -axis else 0


def _partial_tile(size: int) -> tuple[int, int] | None:
    """Choose a tile width that divides an axis of this size into full tiles and a partial one."""
    for tile in TILES:
        if size > tile and size % tile:
            return size - size % tile, tile
    return None


def tail_zeroed(axis: int) -> Planter:
    """Return a planter that sets the last, partial tile of an axis to 0."""

    def make(site: Site) -> Array | None:
        found = _partial_tile(_axis_size(site, axis))
        if found is None:
            return None
        return _zeroed(site, axis, slice(found[0], None))

    return make


def last_zeroed(site: Site) -> Array | None:
    return _zeroed(site, -1, slice(-1, None)) if _axis_size(site, -1) > 1 else None


def only_last_tile(site: Site) -> Array | None:
    size = _axis_size(site, -1)
    tile = next((tile for tile in TILES if size > tile), 0)
    if not tile or not site.is_float:
        return None
    return _zeroed(site, -1, slice(0, (size - 1) // tile * tile))


def _zeroed(site: Site, axis: int, which: slice) -> Array:
    wrong = np.array(site.values)
    place = (Ellipsis, which) if axis == -1 else (Ellipsis, which, slice(None))
    wrong[place] = 0
    return wrong


def shifted(site: Site) -> Array | None:
    return np.roll(site.values, 1, axis=-1) if _axis_size(site, -1) > 1 else None


def last_tile_share(site: Site) -> Array | None:
    """Multiply all values by the fraction of the longest dim that its last tile of 32 covers. This
    imitates a sum over the longest dim that adds only the terms of the last tile."""
    if not site.is_float or site.longest <= 32:
        return None
    width = site.longest % 32 or 32
    return site.wide() * (width / site.longest)


def scaled(factor: float) -> Planter:
    def make(site: Site) -> Array | None:
        return site.wide() * factor if site.is_float else None

    return make


def root_scaled(site: Site) -> Array | None:
    """Divide all values by the square root of the last dim of one input, chosen at random."""
    depths = [size for size in site.depths if size > 1]
    if not depths or not site.is_float:
        return None
    return site.wide() / math.sqrt(site.rng.choice(depths))


def shifted_a_little(site: Site) -> Array | None:
    """Multiply all values by 1 - e, where e is the larger of 2^-10 and 8 eps of the dtype."""
    if not site.is_float:
        return None
    return site.wide() * (1.0 - max(2.0**-10, 8.0 * FLOAT_LIMITS[site.dtype].eps))


def swapped(site: Site) -> Array | None:
    """Swap the last two axes, and give the result the original shape if their sizes differ."""
    if min(_axis_size(site, -1), _axis_size(site, -2)) < 2:
        return None
    values = np.ascontiguousarray(site.values)
    return np.swapaxes(values, -1, -2).reshape(values.shape)


def _rows(site: Site) -> Array | None:
    """Return a copy of the values as rows; None if there are fewer than two."""
    if site.values.ndim < 2 or site.values.shape[-1] == 0:
        return None
    rows = np.array(site.values).reshape(-1, site.values.shape[-1])
    return rows if rows.shape[0] > 1 else None


def stale_row(site: Site) -> Array | None:
    rows = _rows(site)
    if rows is None:
        return None
    differs = np.flatnonzero(np.logical_or.reduce(rows[1:] != rows[:-1], axis=1))
    if not differs.size:
        return None
    row = int(differs[site.rng.choice_index(differs.size)]) + 1
    rows[row] = rows[row - 1]
    return rows.reshape(site.values.shape)


def stale_tile(site: Site) -> Array | None:
    size = _axis_size(site, -1)
    tile = next((tile for tile in TILES if size > tile), 0)
    if not tile:
        return None
    wrong = np.array(site.values)
    width = min(tile, size - tile)
    wrong[..., tile : tile + width] = site.values[..., :width]
    return wrong


def stale_element(site: Site) -> Array | None:
    """Replace one element by another: of a few random ones, the one that differs most."""
    flat = np.array(site.values).reshape(-1)
    if flat.size < 2:
        return None
    place = site.rng.choice_index(flat.size)
    others = [site.rng.choice_index(flat.size) for _ in range(8)]
    distance = np.abs(to_float64(flat[others]) - to_float64(flat[place : place + 1]))
    if not np.isfinite(distance).any():
        return None
    flat[place] = flat[others[int(np.nanargmax(np.where(np.isinf(distance), -1, distance)))]]
    return flat.reshape(site.values.shape)


def half_rounded(site: Site) -> Array | None:
    if not site.is_float or FLOAT_LIMITS[site.dtype].mantissa_bits <= 10:
        return None
    wide = site.wide()
    finite = np.abs(wide[np.isfinite(wide)])
    name = "float16" if finite.max(initial=0.0) <= FLOAT_LIMITS["float16"].max else "bfloat16"
    return to_float64(wide.astype(numpy_dtype(name)))


def half_accumulated(site: Site) -> Array | None:
    """Add random errors, as if the longest dim had been summed in a narrow dtype. The narrow dtype
    is the tensor's dtype, or float16 if the tensor's dtype has 32 bits or more. The relative errors
    are normally distributed. Their standard deviation is ``eps * √n / 4``, where ``eps`` is that of
    the narrow dtype, and n is the longest dim of all inputs. A real sum of terms that all have the
    same sign has a larger error."""
    if not site.is_float or site.longest < LEAST_DEPTH:
        return None
    eps = max(FLOAT_LIMITS[site.dtype].eps, FLOAT_LIMITS["float16"].eps)
    wide = site.wide()
    noise = site.rng.normal_f64(wide.size).reshape(wide.shape)
    wrong: Array = wide * (1.0 + noise * (eps * math.sqrt(site.longest) / 4.0))
    return wrong


def clamped(site: Site) -> Array | None:
    return np.maximum(site.wide(), 0.0) if site.is_float else None


def nan_zeroed(site: Site) -> Array | None:
    wide = site.wide()
    return np.where(np.isnan(wide), 0.0, wide) if site.is_float and np.isnan(wide).any() else None


def saturated(site: Site) -> Array | None:
    wide = site.wide()
    if not site.is_float or not np.isinf(wide).any():
        return None
    return np.where(np.isinf(wide), np.copysign(FLOAT_LIMITS[site.dtype].max, wide), wide)


def index_off(site: Site) -> Array | None:
    if DTYPES[site.dtype].kind not in ("int", "uint"):
        return None
    flat = np.array(site.values).reshape(-1)
    flat[site.rng.choice_index(flat.size)] += 1
    return flat.reshape(site.values.shape)


def index_wrapped(site: Site) -> Array | None:
    if DTYPES[site.dtype].kind not in ("int", "uint"):
        return None
    return site.values.astype(np.int64).astype(np.int8).astype(np.int64)


Evaluate = Callable[[Arrays], Arrays]
"""The reference as a function: it gets float inputs as float64."""


class OutputMutant(Struct, frozen=True):
    """One kind of bug."""

    name: str  # A unique name
    kind: str  # the family of bugs that this one belongs to
    why: str  # the real bug that this one imitates
    # Makes the wrong tensor from a `Site`; returns None where the bug would not show
    plant: Callable[[Site], NDArray[Any] | None]
    # True if the tensor is an input, on which the reference is then evaluated; False if it is an
    # output
    in_input: bool = False


def _output(name: str, kind: str, why: str, make: Callable[[Site], Any]) -> OutputMutant:
    return OutputMutant(name, kind, why, make)


def _input(name: str, kind: str, why: str, make: Callable[[Site], Any]) -> OutputMutant:
    return OutputMutant(name, kind, why, make, in_input=True)


OUTPUT_MUTANTS: tuple[OutputMutant, ...] = (
    _output("tail-columns-dropped", "tail-mask",
            "the last, partial tile of the last axis is 0", tail_zeroed(-1)),
    _output("tail-rows-dropped", "uninitialised-output",
            "the last, partial tile of rows is 0", tail_zeroed(-2)),
    _output("last-column-dropped", "off-by-one",
            "the mask ends one early: the last column is 0", last_zeroed),
    _output("shifted-by-one", "off-by-one",
            "every element is its neighbour's", shifted),
    _output("sum-of-the-last-tile", "lost-accumulation",
            "= for +=: only the share of the last tile is left", last_tile_share),
    _output("scale-two", "missing-scale",
            "twice the value", scaled(2.0)),
    _output("scale-root-d", "missing-scale",
            "1/√D too much, D the last dim of an input", root_scaled),
    _output("alpha-tenth-more", "missing-scale",
            "a constant is off by 10 %", scaled(1.1)),
    _output("epsilon-like-shift", "wrong-epsilon",
            "all values a little smaller, as by a wrong epsilon", shifted_a_little),
    _output("swapped-axes", "swapped-axes",
            "the last two axes are swapped, or written in the old memory order", swapped),
    _output("stale-row", "stale-tile",
            "one row is the row before it", stale_row),
    _output("stale-tile", "stale-tile",
            "the second tile of the last axis repeats the first", stale_tile),
    _output("one-stale-element", "stale-tile",
            "one element is another's, as after a race", stale_element),
    _output("half-rounding", "half-accumulation",
            "rounded to a 16-bit float on the way", half_rounded),
    _output("half-accumulation", "half-accumulation",
            "the rounding errors of a sum kept in the narrow dtype", half_accumulated),
    _output("negative-clamped", "tail-mask",
            "padding of 0 in a maximum: nothing is below 0", clamped),
    _output("nan-becomes-zero", "nan-swallowed",
            "NaN comes out as 0", nan_zeroed),
    _output("inf-saturates", "inf-or-signed-zero",
            "Inf comes out as the largest finite value", saturated),
    _output("index-off-by-one", "off-by-one",
            "one integer is one too large", index_off),
    _output("index-wraps", "integer-overflow",
            "integers are kept in a signed byte", index_wrapped),
    _input("reduction-tail-dropped", "tail-mask",
           "the last, partial tile of an input is read as 0", tail_zeroed(-1)),
    _input("last-left-out", "off-by-one",
           "the last index of an input is left out", last_zeroed),
    _input("last-tile-only", "lost-accumulation",
           "= for +=: of an input only the last tile counts", only_last_tile),
    _input("half-loads", "half-accumulation",
           "an input is rounded to a 16-bit float", half_rounded),
    _input("input-axes-swapped", "swapped-axes",
           "an input is read with its last two axes swapped", swapped),
    _input("input-stale-row", "stale-tile",
           "one row of an input is the row before it", stale_row),
    _input("input-nan-as-zero", "nan-swallowed",
           "NaN in an input counts as 0", nan_zeroed),
)  # fmt: skip


def plant(
    mutant: OutputMutant,
    inputs: Arrays,
    expected: Arrays,
    *,
    seed: int,
    dtypes: Mapping[str, str] | None = None,
    evaluate: Evaluate | None = None,
) -> dict[str, NDArray[Any]] | None:
    """Return the outputs of a case with the bug in them."""
    given = dtypes or {}
    wanted = {n: given.get(n) or dtype_name(a.dtype) or "" for n, a in expected.items()}
    right = {name: as_dtype(values, wanted[name]) for name, values in expected.items()}
    rng = SeededRng(seed).derive(f"mutant/{mutant.name}")
    tensors = inputs if mutant.in_input else expected
    longest = max((size for array in inputs.values() for size in array.shape), default=1)
    depths = tuple(array.shape[-1] for array in inputs.values() if array.ndim)
    for name in _shuffled(tensors, rng):
        dtype = (dtype_name(inputs[name].dtype) or "") if mutant.in_input else wanted[name]
        site = Site(tensors[name], dtype, rng, longest, depths)
        with np.errstate(all="ignore"):
            wrong = mutant.plant(site) if tensors[name].size and dtype else None
        if wrong is None:
            continue
        if not mutant.in_input:
            outputs = {**right, name: as_dtype(wrong, wanted[name])}
        else:
            outputs = _evaluated(evaluate, {**inputs, name: wrong}, wanted)
        if outputs.keys() == right.keys() and not same_outputs(outputs, right):
            return outputs
    return None


def _evaluated(
    evaluate: Evaluate | None, inputs: Arrays, dtypes: Mapping[str, str]
) -> dict[str, NDArray[Any]]:
    """Return the reference's outputs on changed inputs, converted to `dtypes`. The result is empty
    if `evaluate` is None, or if the reference fails."""
    if evaluate is None:
        return {}
    try:
        evaluated = evaluate(widened(inputs))
    except FlowError:
        return {}
    return {n: as_dtype(evaluated[n], dtype) for n, dtype in dtypes.items() if n in evaluated}


def _shuffled(tensors: Arrays, rng: SeededRng) -> list[str]:
    names = list(tensors)
    rng.shuffle(names)
    return names


class MutantResult(Struct, frozen=True):
    """The verdict of the op's own check on one mutant, in one case to which the mutant applies."""

    mutant: str  # name of the mutant
    seed: int  # the case's seed
    killed: bool  # true if the check rejected the outputs with the bug


class Survivor(Struct, frozen=True):
    """A mutant that no case killed."""

    name: str
    kind: str
    why: str
    cases: int


class Killed(Struct, frozen=True):
    """A mutant, the number of cases that killed it, and of cases to which it applied."""

    name: str
    cases_killed: int
    cases: int


class MutationScore(Struct, frozen=True):
    """The share of the planted bugs that the check would find."""

    # Share of killed mutants among those that apply; 0 if none does
    share: float = field(name="score")
    killed: tuple[Killed, ...]
    survivors: tuple[Survivor, ...]
    # Mutants that changed no output of any case; `share` ignores them
    not_applicable: tuple[str, ...]


def has_finite(outputs: Mapping[str, NDArray[Any]]) -> bool:
    """Tell whether any element of the outputs is finite; callers plant no bug if none is."""
    return any(bool(np.isfinite(to_float64(array)).any()) for array in outputs.values())


class Planted(Protocol):
    """The facts about a mutant that `score` needs."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def why(self) -> str: ...


def score(
    results: Iterable[MutantResult], mutants: Iterable[Planted] = OUTPUT_MUTANTS
) -> MutationScore:
    """Combine the results of many cases: a mutant is killed if the check rejects it in any case."""
    cases: dict[str, list[bool]] = {}
    for result in results:
        cases.setdefault(result.mutant, []).append(result.killed)
    killed: list[Killed] = []
    survivors: list[Survivor] = []
    unused: list[str] = []
    for mutant in mutants:
        tried = cases.get(mutant.name)
        if not tried:
            unused.append(mutant.name)
        elif any(tried):
            killed.append(Killed(mutant.name, sum(tried), len(tried)))
        else:
            survivors.append(Survivor(mutant.name, mutant.kind, mutant.why, len(tried)))
    total = len(killed) + len(survivors)
    share = len(killed) / total if total else 0.0
    return MutationScore(share, tuple(killed), tuple(survivors), tuple(unused))
