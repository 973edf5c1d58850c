"""Parse the ``constraints`` of a schema.

Constraints on the values of inputs become rules of these inputs. Comparisons of dims become limits
on sizes.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from gpuemu_flow.cases.op_schema import OpSchema, TensorDef, allowed_sizes, some_sizes
from gpuemu_flow.cases.schema_rules import KeyPath, Report, dtype_fault, shown
from gpuemu_flow.model.errors import did_you_mean
from gpuemu_flow.model.syntax import ExpressionError, compute, names_in
from gpuemu_flow.model.types import DTYPES, SCALAR, Bound, Shape, ValueRule

MOST = 64
EXAMPLES = '"lengths.sum() == T", "start <= end", "offsets == cumsum(lengths)", "K <= N"'
_COMPARED = re.compile(r"(.+?)(<=|>=|==|!=|<|>)(.+)", re.DOTALL)
_SUM = re.compile(r"\s*(\w+)\.sum\(\)\s*")
_CUMSUM = re.compile(r"\s*cumsum\((\w+)\)\s*")
_COLUMN = re.compile(r"(\w+)\[\s*\.\.\.\s*,\s*(-?\d{1,4})\s*\]")
_FLIPPED = {"<=": ">=", ">=": "<=", "<": ">", ">": "<", "==": "==", "!=": "!="}


class Constraints(Struct):
    """Parser of the ``constraints`` of one schema."""

    # The schema's inputs; parsing adds to them the rules that the constraints demand
    inputs: tuple[TensorDef, ...]
    dims: tuple[str, ...]  # names of dims, derived dims included
    report: Report
    # Filled with the comparisons of dims; see `OpSchema.limits`
    limits: list[tuple[str, str, str]] = field(default_factory=list)

    def read(self, value: object) -> None:
        if value is None:
            return
        if not isinstance(value, (list, tuple)) or len(value) > MOST:
            text = f"constraints is {shown(value)}"
            self.report(("constraints",), "schema-type", text, f"a list such as [{EXAMPLES}]")
            return
        for place, item in enumerate(value):
            path: KeyPath = ("constraints", place)
            match = _COMPARED.fullmatch(item) if isinstance(item, str) else None
            if match is None:
                self.refuse(path, f"{shown(item)} is no constraint")
                continue
            self.one(path, str(item), match[1].strip(), match[2], match[3].strip())

    def refuse(self, path: KeyPath, message: str, hint: str = "") -> None:
        self.report(path, "schema-constraint", message, hint or f"such as {EXAMPLES}")

    def one(self, path: KeyPath, text: str, left: str, sign: str, right: str) -> None:
        columns = _COLUMN.fullmatch(left), _COLUMN.fullmatch(right)
        if columns[0] and columns[1]:
            self.columns(path, text, columns[0], sign, columns[1])
            return
        names = {tensor.name for tensor in self.inputs}
        turned = right in names and left not in names and not _CUMSUM.fullmatch(right)
        if turned or _SUM.fullmatch(right) or _CUMSUM.fullmatch(left):
            left, right, sign = right, left, _FLIPPED[sign]
        summed, accumulated = _SUM.fullmatch(left), _CUMSUM.fullmatch(right)
        if summed:
            self.total(path, text, summed[1], sign, right)
        elif accumulated:
            self.offsets(path, text, left, sign, accumulated[1])
        elif left in names and right in names:
            self.relation(path, text, left, sign, right)
        elif left in names:
            self.bound(path, text, left)
        else:
            self.limit(path, text, left, sign, right)

    def known(self, path: KeyPath, text: str, name: str) -> TensorDef | None:
        found = next((tensor for tensor in self.inputs if tensor.name == name), None)
        if found is None:
            hint = did_you_mean(name, [tensor.name for tensor in self.inputs])
            self.refuse(path, f"{text!r} names {name!r}, which is no input", hint)
        return found

    def expression(self, path: KeyPath, text: str, expression: str) -> bool:
        try:
            unknown = sorted(names_in(expression) - set(self.dims))
        except ExpressionError as error:
            self.refuse(path, f"{text!r}: {error}")
            return False
        if unknown:
            known = (*self.dims, *(tensor.name for tensor in self.inputs))
            hint = did_you_mean(unknown[0], known)
            self.refuse(path, f"{text!r} names {unknown[0]!r}, no input and no dim", hint)
        return not unknown

    def change(self, path: KeyPath, text: str, tensor: TensorDef, rule: ValueRule) -> None:
        if rule.generate:
            hint = "its function says what the values are; put the other input on the left"
            self.refuse(path, f"{text!r} would change {tensor.name!r}, which is generated", hint)
            return
        self.inputs = tuple(
            replace(each, rule=rule) if each.name == tensor.name else each for each in self.inputs
        )

    def total(self, path: KeyPath, text: str, name: str, sign: str, right: str) -> None:
        tensor = self.known(path, text, name)
        if tensor is None or not self.expression(path, text, right):
            return
        rule = tensor.rule or ValueRule()
        if sign != "==":
            self.refuse(path, f"{text!r}: a sum can only be compared by ==", f"{name}.sum() == T")
        elif rule.kind not in ("", "lengths") or rule.values or rule.relation:
            text = f"{text!r}: {name!r} is of kind {rule.kind or 'values'!r}"
            self.refuse(path, text, "only inputs of the kind 'lengths' can have a given sum")
        else:
            low = tensor.low if rule.low is None else rule.low
            high = tensor.high if rule.high is None else rule.high
            made = replace(rule, kind="lengths", total=right, low=low, high=high)
            self.change(path, text, replace(tensor, low=None, high=None), made)

    def offsets(self, path: KeyPath, text: str, name: str, sign: str, lengths: str) -> None:
        tensor, other = self.known(path, text, name), self.known(path, text, lengths)
        if tensor is None or other is None:
            return
        rule = tensor.rule or ValueRule()
        if sign != "==" or name == lengths or rule.relation:
            self.refuse(path, f"{text!r} cannot be satisfied", f"{name} == cumsum({lengths})")
            return
        if not (other.rule and other.rule.kind == "lengths"):
            hint = f'give {lengths} kind = "lengths"'
            self.refuse(path, f"{text!r}: {lengths!r} is not of kind 'lengths'", hint)
            return
        bare = replace(rule, kind="", to=None, relation="cumsum", other=lengths)
        self.change(path, text, tensor, bare)

    def columns(
        self, path: KeyPath, text: str, left: re.Match[str], sign: str, right: re.Match[str]
    ) -> None:
        tensor = self.known(path, text, left[1])
        if tensor is None:
            return
        rule, places = tensor.rule or ValueRule(), (int(left[2]), int(right[2]))
        width = tensor.dims[-1] if tensor.dims else None
        fits = isinstance(width, int) and all(-width <= place < width for place in places)
        if left[1] != right[1] or sign in ("==", "!=") or rule.kind or rule.relation or rule.values:
            hint = "one input without a kind, compared by <, <=, > or >="
            self.refuse(path, f"{text!r} is no relation of places of one input", hint)
        elif not fits or len({place % int(width or 1) for place in places}) < 2:
            hint = f'give {left[1]} a last axis of a fixed size: dims = ["N", 4]'
            self.refuse(path, f"{text!r}: the last axis of {left[1]!r} has no such places", hint)
        else:
            relations = (*rule.columns, (places[0], sign, places[1]))
            self.change(path, text, tensor, replace(rule, columns=relations))

    def relation(self, path: KeyPath, text: str, left: str, sign: str, right: str) -> None:
        tensor, other = self.known(path, text, left), self.known(path, text, right)
        if tensor is None or other is None:
            return
        rule = tensor.rule or ValueRule()
        if rule.relation or rule.kind or left == right or self.leads_back(other, left):
            hint = f"exchange the sides, or give {left} no kind and one constraint only"
            fault = f"{text!r} cannot be satisfied together with the other rules of {left!r}"
            self.refuse(path, fault, hint)
        elif tensor.dims != other.dims:
            hint = "give both the same dims"
            self.refuse(path, f"{text!r} compares inputs of different dims", hint)
        elif self.impossible(tensor, sign, other):
            text = f"{text!r} cannot hold: the ranges of {left!r} and {right!r} do not allow it"
            self.report(path, "schema-unsatisfiable", text, "move one of the ranges")
        else:
            self.change(path, text, tensor, replace(rule, relation=sign, other=right))

    def leads_back(self, other: TensorDef, name: str) -> bool:
        seen = other
        for _ in self.inputs:
            if seen.rule is None or not seen.rule.relation:
                return False
            if seen.rule.other == name:
                return True
            seen = next(tensor for tensor in self.inputs if tensor.name == seen.rule.other)
        return True

    def impossible(self, tensor: TensorDef, sign: str, other: TensorDef) -> bool:
        """Tell whether the ranges of two inputs conflict with the constraint ``tensor SIGN other``.
        They conflict if the range of `other` contains a value for which no value in the range of
        `tensor` satisfies the constraint. For floats, ``<`` and ``>`` count as ``<=`` and ``>=``.
        The rules for two signs are stricter. With ``==``, a range of `tensor` has to be the same as
        that of `other`. With ``!=``, the range of `tensor` has to contain more than one value."""
        strict = 1 if DTYPES[tensor.dtype or "float32"].kind != "float" else 0
        if sign in ("<", "<=") and tensor.low is not None:
            least = tensor.low + (strict if sign == "<" else 0)
            return other.low is None or other.low < least
        if sign in (">", ">=") and tensor.high is not None:
            most = tensor.high - (strict if sign == ">" else 0)
            return other.high is None or other.high > most
        if sign == "!=":
            return tensor.low is not None and tensor.low == tensor.high
        return sign == "==" and (tensor.low, tensor.high) not in (
            (None, None),
            (other.low, other.high),
        )

    def bound(self, path: KeyPath, text: str, name: str) -> None:
        hint = f"write it as range = [lowest, highest] of {name}"
        self.refuse(path, f"{text!r} is a bound of one input", hint)

    def limit(self, path: KeyPath, text: str, left: str, sign: str, right: str) -> None:
        if self.expression(path, text, left) and self.expression(path, text, right):
            self.limits.append((left, sign, right))


def demand_rules(schema: OpSchema, report: Report) -> None:
    """Report the inputs' value rules that cannot be satisfied. Such a rule refers to an input or an
    axis that does not exist, or does not suit the dtype or the dims of its own input."""
    for tensor in schema.inputs:
        rule, path = tensor.rule, ("inputs", tensor.name)
        if rule is None:
            continue
        if tensor.dtype is not None and (fault := dtype_fault(rule.kind, tensor.dtype)):
            text = f"{tensor.name!r} of kind {rule.kind!r} is {tensor.dtype}"
            report((*path, "dtype"), "schema-dtype", text, f"it must be {fault}")
        if rule.optional and not any(_above_zero(schema, axis) for axis in tensor.dims):
            text = f"{tensor.name!r} is optional, and no dim of it is always above 0"
            report(
                (*path, "optional"), "schema-unsatisfiable", text, "an empty one looks like None"
            )
        if rule.of:
            _demand_pointed(schema, tensor, rule, path, report)
        _demand_shape(tensor, rule, path, report)


def _above_zero(schema: OpSchema, axis: str | int) -> bool:
    if isinstance(axis, int):
        return axis > 0
    if any(each.name == axis for each in schema.derived):
        return all(sizes[axis] > 0 for sizes in some_sizes(schema, axis))
    return any(dim.name == axis and dim.smallest > 0 for dim in schema.dims)


def _demand_pointed(
    schema: OpSchema, tensor: TensorDef, rule: ValueRule, path: KeyPath, report: Report
) -> None:
    key = "scale" if rule.kind == "quantized" else "of"
    other = next((each for each in schema.inputs if each.name == rule.of), None)
    if other is None or other.name == tensor.name:
        hint = did_you_mean(rule.of, [each.name for each in schema.inputs])
        text = f"{tensor.name!r} points to {rule.of!r}, which is no other input"
        report((*path, key), "schema-rule-key", text, hint)
    elif rule.kind == "indices" and not -len(other.dims) <= rule.axis < len(other.dims):
        text = f"{other.name!r} has no axis {rule.axis} for {tensor.name!r} to point along"
        report((*path, "axis"), "schema-rule-key", text, f"it has {len(other.dims)} axes")


def _demand_shape(tensor: TensorDef, rule: ValueRule, path: KeyPath, report: Report) -> None:
    if rule.kind in ("symmetric", "positive_definite") and (
        len(tensor.dims) < 2 or tensor.dims[-1] != tensor.dims[-2]
    ):
        text = f"{tensor.name!r} of kind {rule.kind!r} has no two equal last dims"
        report((*path, "dims"), "schema-unsatisfiable", text, 'such as ["B", "N", "N"]')
    if rule.kind not in ("", "scalar", "indices", "positive", "packed", "quantized"):
        _demand_axis(tensor, rule, path, report)


def _demand_axis(tensor: TensorDef, rule: ValueRule, path: KeyPath, report: Report) -> None:
    if not tensor.dims:
        text = f"{tensor.name!r} of kind {rule.kind!r} is a scalar"
        report((*path, "dims"), "schema-unsatisfiable", text, "give it at least one dim")


# Find rules that no input values can follow at the smallest or largest sizes of the dims.


MOST_CORNERS = 256
_INTEGER_KINDS = ("permutation", "offsets", "lengths", "indices")


def demand_feasible(schema: OpSchema, report: Report) -> None:
    """Report each input with a rule that cannot be satisfied at some allowed sizes of the dims.
    Only the smallest and the largest sizes are tried. Each input is reported only once."""
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
                where = "scalars" if tensor.rule and tensor.rule.kind == SCALAR else "inputs"
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
        """Return why no values can follow the rule: a key, a message and a hint. The result is None
        if values can be found."""
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
        """Return a fault if the input's integer dtype cannot hold the rule's largest value. `high`
        is the upper limit of the input's values; None for no limit. Without a fault, the result is
        None."""
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
