"""Test relations between wrong and correct outputs on one case after another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.cases.op_schema import OpSchema
from gpuemu_flow.numerics.dtypes import dtype_name, to_float64
from gpuemu_flow.numerics.perturb import widen
from gpuemu_flow.numerics.relations import ObservedCase, Relation, output_relations, predict
from gpuemu_flow.numerics.relations_inputs import Ask, holds, input_relations
from gpuemu_flow.numerics.relations_masks import KINDS, mask_holds, mask_relations
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import Case

PLAIN = ("normal", "uniform", "integers", "small", "negative", "ties")
"""Strategies whose values can reveal a relation: finite, and neither huge nor all equal."""

FIRST = 3
"""Number of known failing cases in which relations are looked for."""

OF_TILES = ("padded", "cut", "repeated", "unwritten-tiles", "masked-tiles", "tile-edge")
"""Relations whose formula is a tile size; other cases have to show which size it is."""

RIVALS = {"extra-zero": ("masked", "masked-tiles"), "masked": ("extra-zero",)}
"""Maps a relation to relations that differ from it in only one element of a row, so that both
relations may remain at the end."""

OF_ENDS = ("unwritten", "place")
OF_WRITING = (*OF_ENDS, "unwritten-tiles")
CONTRADICTED = 2
"""Number of passing cases that contradict a relation; a single one may contain only zeros."""

FORGIVEN = 8
"""One case in this many may contradict a relation, since rounding can be larger than the error."""

ENOUGH = 6
"""Number of new failing cases that a relation has to explain."""

LEAST, MOST = 12, 1 << 15
"""Minimum and maximum number of elements, over all inputs, of a case that can reveal relations."""

PREFERRED = (
    "factor", "wrapped", "transposed", "reshaped", "reversed", "offset", "power", "row-term",
    "unwritten", "ignored", "scaled-input", "swapped-inputs", "off-by-one", "clamped-index",
    "shifted", "rolled", "reversed-input", "swapped-halves", "swapped-input", "cut", "short",
    "extra-zero", "masked", "masked-tiles", "padded", "overread", "tile-edge", "wrong-axis",
    "mask-shift", "repeated", "repeated-input", "unwritten-tiles", "clamped", "eps", "row-stat",
    "half", "rounded-input", "place",
)  # fmt: skip
"""Order in which relations that fit equally well are preferred, simplest first."""


@dataclass(frozen=True)
class Tried:
    """One case after its run.

    `failed` is True if the case failed in the examined way, False if it passed, and None if it
    failed in another way or has no verdict.
    """

    case: Case
    failed: bool | None
    inputs: Mapping[str, NDArray[Any]]
    actual: Mapping[str, NDArray[Any]]
    expected: Mapping[str, NDArray[Any]]


class RelationSearch:
    """Maintains the set of relations that explain the failing cases observed so far.

    Parameters
    ----------
    schema : OpSchema
    ask : callable
        Evaluates the reference on given inputs.

    Attributes
    ----------
    left : set of Relation or None
        The remaining relations; None until a failing case was observed.
    enough : int
        Number of new failing cases that a relation has to explain before it is reported.
    """

    enough = ENOUGH

    def __init__(self, schema: OpSchema, ask: Ask) -> None:
        self._schema = schema
        self._ask = ask
        self.left: set[Relation] | None = None
        self._seen = 0
        self._begun = 0
        self._misses: dict[Relation, int] = {}
        self._spared: Counter[Relation] = Counter()

    @staticmethod
    def is_plain(case: Case) -> bool:
        """Tell whether a case's wrong output may show its relation to the correct output.

        Its values must be made by one of the `PLAIN` strategies, and it must have neither too few
        elements nor too many.
        """
        if any(0 in spec.shape for spec in case.inputs):
            return False
        return LEAST <= case.numel <= MOST and all(s.strategy in PLAIN for s in case.inputs)

    def candidates(self, failing: Sequence[Case]) -> list[Case]:
        """List a few failing cases to begin with, small but with sizes above 1 where possible."""
        plain = sorted(filter(self.is_plain, failing), key=_how_telling)
        chosen: list[Case] = []
        for case in plain:
            if all(case.dims != other.dims or not case.dims for other in chosen):
                chosen.append(case)
        return chosen[:FIRST]

    def observe(self, tried: Tried) -> bool | None:
        """Test relations on one more case, and drop those that too many cases have contradicted.

        If none is left and the case failed, find relations that explain this case.

        Returns
        -------
        bool or None
            True if a relation agrees with the case, or was found for it. False if no relation
            agrees, and at least one contradicts the case or none is left. None if all relations
            leave the case's outputs open. If the outputs cannot be compared, the result is True if
            any relation remains, else False.
        """
        seen = self.observation(tried)
        if seen is None:
            return bool(self.left)
        if not self.left:
            return self._begin(seen) if tried.failed else False
        self._seen += 1
        told = set()
        for relation in sorted(self.left or (), key=_rank):
            fits = self._fits(relation, seen, tried)
            told.add(fits)
            self._misses[relation] += fits is False
        allowed = self._seen // FORGIVEN
        self.left = {r for r in self.left or () if self._misses[r] <= allowed + (self._seen < 4)}
        if not self.left and tried.failed and self._begin(seen):
            return True  # the earlier cases fitted by chance
        return True if True in told else False if False in told or not told else None

    def _begin(self, seen: ObservedCase) -> bool:
        """Find relations that explain the failing case `seen`; return True if there are any."""
        if self._begun >= FIRST - 1:
            return False
        found = mask_relations(seen, self._ask)
        if seen.telling:
            found |= output_relations(seen) | input_relations(seen, self._ask)
        if seen.telling or found:
            self._begun += 1
            self._seen = 1
            self.left, self._misses = found, dict.fromkeys(found, 0)
        return bool(found)

    def _fits(self, relation: Relation, seen: ObservedCase, tried: Tried) -> bool | None:
        if relation.kind in KINDS:
            return mask_holds(relation, seen, self._ask)
        told = holds(relation, seen, self._ask)
        if told is not None:
            return told
        if relation.kind == "cut" and dict(tried.case.dims).get(relation.subject, 0) < 2:
            return None
        if relation.kind in _OF_OUTPUTS:
            return predict(relation, seen)
        # The relation does not apply to this case. If it needs two axes of one size, and cases with
        # other sizes pass, then the equal size itself is the cause.
        return not tried.failed and relation.kind != "swapped-input"

    def weigh(self, passing: Sequence[Case]) -> None:
        """Drop relations about one end of a dim if known passing cases contradict them.

        No case is run. Such a relation says that the op is wrong at the first or last index of the
        dim. The op would then fail in every case in which the dim's size is above 1. The relation
        is dropped once `CONTRADICTED` such cases have passed.
        """
        plain = [
            dict(case.dims)
            for case in passing
            if case.numel > 1 and all(spec.strategy in PLAIN for spec in case.inputs)
        ]

        def spared(relation: Relation) -> int:
            subject = relation.subject
            return sum(not subject or dims.get(subject, 0) > 1 for dims in plain)

        self.left = {
            r for r in self.left or () if r.kind not in OF_ENDS or spared(r) < CONTRADICTED
        }

    def spared(self, tried: Tried) -> None:
        """Test relations on a passing case, and drop those that enough passing cases contradict.

        A relation about unwritten elements is dropped after one contradicting case, any other
        relation after two.
        """
        seen = self.observation(tried)
        if seen is None or tried.failed is not False:
            return
        for relation in self.left or ():
            self._spared[relation] += self._fits(relation, seen, tried) is False
        # An element that was written in one case is not one that is never written.
        self.left = {
            r
            for r in self.left or ()
            if self._spared[r] < (1 if r.kind in OF_WRITING else CONTRADICTED)
        }

    def best(self) -> Relation | None:
        """Return the best remaining relation; None while a similar relation fits equally well."""
        best = min(self.left or (), key=lambda r: (self._misses[r], _rank(r)), default=None)
        if best is None or best.kind not in OF_TILES:
            return None if best is not None and self._has_rival(best) else best
        alike = [
            other
            for other in self.left or ()
            if (other.kind, other.subject) == (best.kind, best.subject)
            and self._misses[other] == self._misses[best]
        ]
        return best if len(alike) == 1 else None

    def _has_rival(self, best: Relation) -> bool:
        """Tell whether there is a similar relation that no case distinguishes from `best`."""
        return any(
            other.kind in RIVALS.get(best.kind, ())
            and other.subject == best.subject
            and self._misses[other] == self._misses[best]
            for other in self.left or ()
        )

    def output_shape(self, case: Case) -> tuple[int, ...] | None:
        """Return the shape of a case's only output, derived from the schema without a run.

        The result is None if the schema has several outputs, or if the case has no dims.
        """
        sizes = dict(case.dims)
        if len(self._schema.outputs) != 1 or not sizes:
            return None
        axes = self._schema.outputs[0].dims
        return tuple(sizes.get(dim, 0) if isinstance(dim, str) else dim for dim in axes)

    def observation(self, tried: Tried) -> ObservedCase | None:
        """Return a case's tensors as floats; None if its outputs cannot be compared."""
        actual = _floats(tried.actual)
        expected = _floats(tried.expected)
        if actual is None or expected is None or actual.keys() != expected.keys():
            return None
        axes = {tensor.name: tensor.dims for tensor in self._schema.inputs}
        if len(self._schema.outputs) == len(expected):
            for name, tensor in zip(expected, self._schema.outputs, strict=True):
                axes.setdefault(name, tensor.dims)
        dtypes = {name: dtype_name(array.dtype) or "" for name, array in tried.actual.items()}
        inputs = {n: np.array(a) for n, a in widen(tried.inputs).items()}
        seen = ObservedCase(
            dict(tried.case.dims), axes, dtypes, inputs, actual, expected, not tried.failed
        )
        return seen if seen.usable() else None


def _floats(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]] | None:
    if not arrays or any(dtype_name(array.dtype) is None for array in arrays.values()):
        return None
    return {name: np.array(to_float64(array)) for name, array in arrays.items()}


def _how_telling(case: Case) -> tuple[bool, bool, int]:
    """Return a sort key that puts the most telling cases first.

    Cases without a dim of size 1 come first, among these the cases of at least 64 elements, and
    among these the smaller ones.
    """
    return any(size == 1 for _, size in case.dims), case.numel < 64, case.numel


_OF_OUTPUTS = (
    "factor", "offset", "power", "clamped", "transposed", "reshaped", "shifted", "reversed",
    "repeated", "row-term", "half", "wrapped",
)  # fmt: skip


def _rank(relation: Relation) -> tuple[int, bool, int, str, str]:
    number = relation.formula.lstrip("-").replace(".", "").isdigit()
    place = PREFERRED.index(relation.kind) if relation.kind in PREFERRED else len(PREFERRED)
    return place, number, len(relation.formula), relation.subject, relation.formula
