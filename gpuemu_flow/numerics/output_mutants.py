"""Plant known kinds of kernel bugs in a reference's output, to test the op's own check.

Some bugs are planted in an output itself. Others are planted in an input, which is changed to what
a buggy kernel would have read, such as a stale row, or a reduction's input without its tail. The
reference then computes the wrong output from the changed input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gpuemu_flow.errors import FlowError
from gpuemu_flow.numerics import planted
from gpuemu_flow.numerics.dtypes import dtype_name, to_float64, widened
from gpuemu_flow.numerics.planted import Site
from gpuemu_flow.numerics.rng import SeededRng
from gpuemu_flow.numerics.trivial import Arrays, as_dtype, same_outputs
from gpuemu_flow.types import Json

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
            "the last, partial tile of the last axis is 0", planted.tail_zeroed(-1)),
    _output("tail-rows-dropped", "uninitialised-output",
            "the last, partial tile of rows is 0", planted.tail_zeroed(-2)),
    _output("last-column-dropped", "off-by-one",
            "the mask ends one early: the last column is 0", planted.last_zeroed),
    _output("shifted-by-one", "off-by-one",
            "every element is its neighbour's", planted.shifted),
    _output("sum-of-the-last-tile", "lost-accumulation",
            "= for +=: only the share of the last tile is left", planted.last_tile_share),
    _output("scale-two", "missing-scale",
            "twice the value", planted.scaled(2.0)),
    _output("scale-root-d", "missing-scale",
            "1/√D too much, D the last dim of an input", planted.root_scaled),
    _output("alpha-tenth-more", "missing-scale",
            "a constant is off by 10 %", planted.scaled(1.1)),
    _output("epsilon-like-shift", "wrong-epsilon",
            "all values a little smaller, as by a wrong epsilon", planted.shifted_a_little),
    _output("swapped-axes", "swapped-axes",
            "the last two axes are swapped, or written in the old memory order", planted.swapped),
    _output("stale-row", "stale-tile",
            "one row is the row before it", planted.stale_row),
    _output("stale-tile", "stale-tile",
            "the second tile of the last axis repeats the first", planted.stale_tile),
    _output("one-stale-element", "stale-tile",
            "one element is another's, as after a race", planted.stale_element),
    _output("half-rounding", "half-accumulation",
            "rounded to a 16-bit float on the way", planted.half_rounded),
    _output("half-accumulation", "half-accumulation",
            "the rounding errors of a sum kept in the narrow dtype", planted.half_accumulated),
    _output("negative-clamped", "tail-mask",
            "padding of 0 in a maximum: nothing is below 0", planted.clamped),
    _output("nan-becomes-zero", "nan-swallowed",
            "NaN comes out as 0", planted.nan_zeroed),
    _output("inf-saturates", "inf-or-signed-zero",
            "Inf comes out as the largest finite value", planted.saturated),
    _output("index-off-by-one", "off-by-one",
            "one integer is one too large", planted.index_off),
    _output("index-wraps", "integer-overflow",
            "integers are kept in a signed byte", planted.index_wrapped),
    _input("reduction-tail-dropped", "tail-mask",
           "the last, partial tile of an input is read as 0", planted.tail_zeroed(-1)),
    _input("last-left-out", "off-by-one",
           "the last index of an input is left out", planted.last_zeroed),
    _input("last-tile-only", "lost-accumulation",
           "= for +=: of an input only the last tile counts", planted.only_last_tile),
    _input("half-loads", "half-accumulation",
           "an input is rounded to a 16-bit float", planted.half_rounded),
    _input("input-axes-swapped", "swapped-axes",
           "an input is read with its last two axes swapped", planted.swapped),
    _input("input-stale-row", "stale-tile",
           "one row of an input is the row before it", planted.stale_row),
    _input("input-nan-as-zero", "nan-swallowed",
           "NaN in an input counts as 0", planted.nan_zeroed),
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
    """Return the reference's outputs on changed inputs, converted to `dtypes`.

    The result is empty if `evaluate` is None, or if the reference fails.
    """
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


class MutationScore(Struct, frozen=True):
    """The share of the planted bugs that the check would find."""

    # For each killed mutant, the number of cases that killed it, and of cases to which it applied
    killed: dict[str, tuple[int, int]]
    survivors: tuple[Survivor, ...]
    # Mutants that changed no output of any case; `share` ignores them
    not_applicable: tuple[str, ...]

    @property
    def share(self) -> float:
        """Return the share of killed mutants among those that apply; 0 if none does."""
        total = len(self.killed) + len(self.survivors)
        return len(self.killed) / total if total else 0.0

    def to_json(self) -> dict[str, Json]:
        """Return plain JSON."""
        return {
            "score": self.share,
            "killed": [
                {"name": name, "cases_killed": killed, "cases": cases}
                for name, (killed, cases) in self.killed.items()
            ],
            "survivors": [
                {"name": s.name, "kind": s.kind, "why": s.why, "cases": s.cases}
                for s in self.survivors
            ],
            "not_applicable": list(self.not_applicable),
        }


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
    killed: dict[str, tuple[int, int]] = {}
    survivors: list[Survivor] = []
    unused: list[str] = []
    for mutant in mutants:
        tried = cases.get(mutant.name)
        if not tried:
            unused.append(mutant.name)
        elif any(tried):
            killed[mutant.name] = (sum(tried), len(tried))
        else:
            survivors.append(Survivor(mutant.name, mutant.kind, mutant.why, len(tried)))
    return MutationScore(killed, tuple(survivors), tuple(unused))
