"""Find rules that no input values can follow at the smallest or largest sizes of the dims."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping

from gpuemu_flow.cases.op_schema import OpSchema, TensorDef
from gpuemu_flow.cases.schema_rules import Report
from gpuemu_flow.cases.sizes_allowed import allowed_sizes
from gpuemu_flow.expressions import ExpressionError, compute
from gpuemu_flow.types import DTYPES, Shape
from gpuemu_flow.value_rules import Bound, ValueRule

MOST_CORNERS = 256
_INTEGER_KINDS = ("permutation", "offsets", "lengths", "indices")


def demand_feasible(schema: OpSchema, report: Report) -> None:
    """Report each input with a rule that cannot be satisfied at some allowed sizes of the dims.

    Only the smallest and the largest sizes are tried. Each input is reported only once.
    """
    ruled = [tensor for tensor in schema.inputs if tensor.rule is not None]
    told: set[str] = set()
    if not ruled:
        return
    for sizes in _corners(schema):
        shapes = dict(zip((t.name for t in schema.inputs), schema.shapes(sizes), strict=True))
        for tensor in ruled:
            if tensor.name in told:
                continue
            found = _Feasible(tensor, sizes, shapes).fault()
            if found is not None:
                key, why, hint = found
                at = ", ".join(f"{dim.name} = {sizes[dim.name]}" for dim in schema.dims)
                text = f"{tensor.name!r}: {why}, for {at}"
                where = "scalars" if tensor.rule and tensor.rule.kind == "scalar" else "inputs"
                path = (where, tensor.name, key) if key else (where, tensor.name)
                report(path, "schema-unsatisfiable", text, hint)
                told.add(tensor.name)


def _corners(schema: OpSchema) -> Iterator[dict[str, int]]:
    """Yield allowed sizes with every dim at its smallest or largest size, smallest sizes first."""
    ends = [tuple(dict.fromkeys((dim.smallest, dim.largest))) for dim in schema.dims]
    found = False
    for chosen in itertools.islice(itertools.product(*ends), MOST_CORNERS):
        sizes = {dim.name: size for dim, size in zip(schema.dims, chosen, strict=True)}
        if schema.allows(sizes):
            found = True
            yield schema.all_sizes(sizes)
    if not found:
        yield schema.all_sizes(allowed_sizes(schema) or {})


Fault = tuple[str, str, str]


class _Feasible:
    """Checks one input's rule at given sizes of the dims."""

    def __init__(
        self, tensor: TensorDef, sizes: Mapping[str, int], shapes: Mapping[str, Shape]
    ) -> None:
        self._tensor = tensor
        self._rule = tensor.rule or ValueRule()
        self._sizes, self._shapes = sizes, shapes
        self._shape = shapes[tensor.name]
        self._count = math.prod(self._shape)
        self._width = self._shape[-1] if self._shape else 1

    def fault(self) -> Fault | None:
        """Return why no values can follow the rule: a key, a message and a hint.

        The result is None if values can be found.
        """
        try:
            low, high = self._number(self._rule.low), self._number(self._rule.high)
            low = self._tensor.low if low is None else low
            high = self._tensor.high if high is None else high
            if not self._count:
                return self._of_empty()
            if low is not None and high is not None and low > high:
                return "range", f"no value lies from {low} to {high}", "widen the range or the dims"
            return self._of_kind(low, high) or self._too_large(high)
        except ExpressionError as error:
            return "", str(error), "fix the expression"

    def _number(self, bound: Bound | None) -> int | float | None:
        if isinstance(bound, str):
            return compute(bound, self._sizes, self._shapes)
        return bound

    def _of_empty(self) -> Fault | None:
        if self._rule.kind == "offsets" and not self._width:
            return "dims", "offsets need at least one element", 'such as ["B+1"]'
        if self._rule.total is not None and self._number(self._rule.total):
            return "", "no lengths have a sum above 0", "give it elements"
        return None

    def _of_kind(self, low: float | None, high: float | None) -> Fault | None:
        rule = self._rule
        to = self._number(rule.to)
        if rule.kind == "offsets" and self._width == 1 and to:
            return "dims", f"a single offset is 0, and cannot end at {to}", 'such as ["B+1"]'
        if rule.kind == "indices" and rule.of in self._shapes:
            shape = self._shapes[rule.of]
            if -len(shape) <= rule.axis < len(shape) and not shape[rule.axis]:
                return "of", f"{rule.of!r} has nothing that could be pointed to", "min = 1"
        if rule.kind == "lengths":
            return self._of_lengths(low, high if to is None else to)
        if rule.kind == "unique" and low is not None and high is not None:
            there_are = math.floor(high) - math.ceil(low) + 1
            if DTYPES[self._tensor.dtype or "float32"].kind != "float" and there_are < self._width:
                why = f"{self._width} different values do not fit from {low} to {high}"
                return "range", why, "widen the range"
        return None

    def _of_lengths(self, low: float | None, most: float | None) -> Fault | None:
        total = self._number(self._rule.total)
        most = total if most is None else most
        least = low or 0
        if most is not None and least > most:
            return "range", f"no length lies from {least} to {most}", "widen it"
        if total is None or most is None:
            return None
        if not least * self._count <= total <= most * self._count:
            why = f"{self._count} lengths from {least} to {most} have no sum of {total}"
            return "", why, 'a constraint of dims such as "T <= B*S" leaves such sizes out'
        return None

    def _too_large(self, high: float | None) -> Fault | None:
        """Return a fault if the input's integer dtype cannot hold the rule's largest value.

        `high` is the upper limit of the input's values; None for no limit. Without a fault, the
        result is None.
        """
        dtype, kind = self._tensor.dtype, self._rule.kind
        if dtype is None or DTYPES[dtype].kind not in ("int", "uint"):
            return None
        largest = high
        if kind in _INTEGER_KINDS:
            to = self._number(self._rule.to)
            total = self._number(self._rule.total)
            size = self._shapes[self._rule.of][self._rule.axis] if self._rule.of else 0
            known = {"permutation": self._width - 1, "indices": size - 1}
            largest = known.get(kind, high if to is None else to)
            largest = total if largest is None else largest
        bits = 8 * DTYPES[dtype].itemsize - (DTYPES[dtype].kind == "int")
        if kind in _INTEGER_KINDS and largest is not None and largest >= 1 << bits:
            return "dtype", f"{dtype} cannot hold {largest}", "take a wider one"
        return None
