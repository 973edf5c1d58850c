"""Coverage: the number of cases per op, dtype, shape class, layout and strategy, and the gaps."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

from gpuemu_flow.cases.op_schema import OpSchema, TensorDef
from gpuemu_flow.cases.plan import expand_strategies, possible_layouts
from gpuemu_flow.cases.shapes import ShapePlanner
from gpuemu_flow.model.types import DTYPES, Case, Verdict, is_kept_finite

ASPECTS = ("shape_class", "layout", "strategy")
PAIRS = tuple(itertools.combinations(ASPECTS, 2))
JUDGED = (Verdict.PASSED, Verdict.FAILED)
"""Verdicts of cases that count as exercised; a case that ends in an error judges nothing."""


class Cell(NamedTuple):
    """The features by which a case is counted."""

    op: str
    dtype: str
    shape_class: str
    layout: str
    strategy: str


Count = Annotated[int, Meta(ge=0)]


class CountedCell(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A `Cell` with the number of cases that count as exercised, and of those without a verdict."""

    op: str
    dtype: str
    shape_class: str
    layout: str
    strategy: str
    judged: Count
    unjudged: Count


class Gap(Struct, frozen=True):
    """Values of one aspect that no case of an op and dtype had."""

    op: str
    dtype: str
    # ``dtype``; one of `ASPECTS`; two of these aspects, written ``layout × strategy``; or
    # ``nonfinite``, for inputs in which no NaN and no Inf is tried
    aspect: str
    missing: tuple[str, ...]  # values that no case had; a pair is joined by `` × ``
    possible: int  # number of possible values


class Row(Struct, frozen=True):
    """One line of the table: an op and dtype, with counts of the values that were exercised."""

    op: str
    dtype: str
    cases: int  # number of cases that count as exercised; see `Coverage.add`
    # For each aspect and pair of aspects, the number of values exercised, and of possible values
    seen: dict[str, tuple[int, int]]
    unjudged: int = 0  # number of cases that ended without a verdict: in an error, or inconclusive


class Coverage:
    """Numbers of cases by `Cell`; two coverages can be merged, in either order.

    >>> coverage = Coverage()
    >>> coverage.count(Cell("softmax", "float32", "tail", "contiguous", "normal"))
    >>> coverage.total
    1
    """

    def __init__(
        self,
        counts: Mapping[Cell, int] | None = None,
        unjudged: Mapping[Cell, int] | None = None,
    ) -> None:
        self._counts: Counter[Cell] = Counter(dict(counts or {}))
        self._unjudged: Counter[Cell] = Counter(dict(unjudged or {}))

    def add(self, op: str, case: Case, verdict: Verdict) -> None:
        """Count a case as exercised if it was judged, else as a case without a verdict. An
        inconclusive case with a dim of size 0 counts as exercised, too: it has no values to judge,
        only the shapes of its outputs."""
        cell = Cell(op, case.dtype, case.shape_class, case.layout, case.strategy)
        empty = case.shape_class == "empty" and verdict is Verdict.INCONCLUSIVE
        if verdict in JUDGED or empty:
            self.count(cell)
        else:
            self._unjudged[cell] += 1

    def count(self, cell: Cell, number: int = 1) -> None:
        self._counts[cell] += number

    def merge(self, other: Coverage) -> Coverage:
        return Coverage(self._counts + other._counts, self._unjudged + other._unjudged)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Coverage)
            and self._counts == other._counts
            and self._unjudged == other._unjudged
        )

    __hash__ = None  # type: ignore[assignment]  # it can change; `object` promises a hash

    @property
    def total(self) -> int:
        return sum(self._counts.values())

    def by(self, name: str) -> Counter[str]:
        counts: Counter[str] = Counter()
        for cell, number in sorted(self._counts.items(), key=lambda item: getattr(item[0], name)):
            counts[getattr(cell, name)] += number
        return counts

    @property
    def counted(self) -> list[CountedCell]:
        """Return the counts of each `Cell`, sorted."""
        both = {cell: (self._counts[cell], self._unjudged[cell]) for cell in self._cells()}
        return [CountedCell(*cell, *n) for cell, n in sorted(both.items()) if any(n)]

    def _cells(self) -> set[Cell]:
        return {*self._counts, *self._unjudged}

    @classmethod
    def of(cls, counted: Iterable[CountedCell]) -> Coverage:
        """Return the coverage with these counts."""
        found = cls()
        for row in counted:
            cell = Cell(row.op, row.dtype, row.shape_class, row.layout, row.strategy)
            found._counts[cell] += row.judged
            found._unjudged[cell] += row.unjudged
        return cls(+found._counts, +found._unjudged)

    def gaps(
        self,
        op: str,
        schema: OpSchema,
        dtypes: Sequence[str],
        layouts: Sequence[str],
        strategies: Sequence[str],
    ) -> list[Gap]:
        """List, for each aspect, the values that no case of an op had; pairs come last."""
        possible = _possible(schema, layouts, strategies)
        found: list[Gap] = []
        for dtype in dtypes:
            cells = [cell for cell in self._counts if cell.op == op and cell.dtype == dtype]
            if not cells:
                found.append(Gap(op, dtype, "dtype", (dtype,), len(dtypes)))
                continue
            found += _nonfinite_gaps(op, schema, dtype)
            for aspect, wanted in _wanted(possible):
                seen = {_of(cell, aspect) for cell in cells}
                missing = tuple(" × ".join(names) for names in wanted if names not in seen)
                if missing:
                    found.append(Gap(op, dtype, " × ".join(aspect), missing, len(wanted)))
        return found

    def row(
        self,
        op: str,
        dtype: str,
        schema: OpSchema,
        layouts: Sequence[str],
        strategies: Sequence[str],
    ) -> Row:
        cells = {c: n for c, n in self._counts.items() if c.op == op and c.dtype == dtype}
        seen = {}
        for aspect, wanted in _wanted(_possible(schema, layouts, strategies)):
            met = {_of(cell, aspect) for cell in cells}
            seen[" × ".join(aspect)] = (sum(names in met for names in wanted), len(wanted))
        without = sum(n for c, n in self._unjudged.items() if c.op == op and c.dtype == dtype)
        return Row(op, dtype, sum(cells.values()), seen, without)


def _nonfinite_gaps(op: str, schema: OpSchema, dtype: str) -> Iterator[Gap]:
    """Yield a gap that names the float inputs that can never hold NaN or Inf, if there are any. An
    input's rule, range or kind can exclude NaN and Inf."""
    floats = [t for t in schema.inputs if DTYPES[t.dtype or dtype].kind == "float"]
    missing = tuple(t.name for t in floats if _never_nonfinite(t))
    if missing:
        yield Gap(op, dtype, "nonfinite", missing, len(floats))


def _never_nonfinite(tensor: TensorDef) -> bool:
    rule = tensor.rule
    if rule is not None and (rule.kind or rule.nonfinite is not None):
        return not rule.nonfinite
    return is_kept_finite("float", tensor.low, tensor.high, rule)


Aspect = tuple[str, ...]
Names = tuple[str, ...]


def _of(cell: Cell, aspect: Aspect) -> Names:
    return tuple(getattr(cell, name) for name in aspect)


def _possible(
    schema: OpSchema, layouts: Sequence[str], strategies: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    classes = (ShapePlanner.label(name) for name in ShapePlanner(schema).classes)
    return {
        "shape_class": tuple(dict.fromkeys(classes)),
        "layout": possible_layouts(schema, layouts),
        "strategy": expand_strategies(strategies),
    }


def _wanted(possible: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[Aspect, list[Names]]]:
    aspects: Iterable[Aspect] = (*((name,) for name in ASPECTS), *PAIRS)
    for aspect in aspects:
        yield aspect, list(itertools.product(*(possible[name] for name in aspect)))


HEADINGS = ("op", "dtype", "judged", "unjudged", "classes", "layouts", "strategies", "pairs")


def table(rows: Iterable[Row]) -> list[list[str]]:
    """Return the table as text cells, headings first. The last column of a line is the sum over all
    pairs of aspects."""
    lines = [list(HEADINGS)]
    for row in rows:
        if not row.seen:  # a client's op: only its cases are known
            lines.append(
                [row.op, row.dtype, str(row.cases), str(row.unjudged), *["-"] * (len(ASPECTS) + 1)]
            )
            continue
        pairs = [row.seen[" × ".join(pair)] for pair in PAIRS]
        parts = [*(row.seen[aspect] for aspect in ASPECTS), _sum(pairs)]
        shown = [f"{met}/{possible}" for met, possible in parts]
        lines.append([row.op, row.dtype, str(row.cases), str(row.unjudged), *shown])
    return lines


def _sum(pairs: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return sum(met for met, _ in pairs), sum(possible for _, possible in pairs)
