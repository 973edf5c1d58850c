"""Parse what a schema says of single inputs: rules for values, expressions of dims, scalars."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeGuard

from msgspec import Struct
from msgspec.structs import replace

from gpuemu_flow.cases.op_schema import DerivedDim, Dim, OpSchema, TensorDef, allowed_sizes
from gpuemu_flow.model.errors import did_you_mean
from gpuemu_flow.model.syntax import OPERATORS, ExpressionError, names_in
from gpuemu_flow.model.types import DTYPES, KINDS, SCALAR, Bound, Number, ValueRule

KeyPath = tuple[str | int, ...]
Report = Callable[[KeyPath, str, str, str], None]

RULE_KEYS = (
    "nonfinite", "values", "share", "kind", "to", "of", "axis", "bits", "descending",
    "allow_empty_rows", "scale", "optional", "generate", "unused",
)  # fmt: skip
OWN_KEYS: dict[str, tuple[str, ...]] = {
    "": (),
    "permutation": (),
    "sorted": ("range", "descending"),
    "offsets": ("to",),
    "lengths": ("to", "range"),
    "mask": ("share", "allow_empty_rows"),
    "one_hot": (),
    "positive": ("range", "values", "share"),
    "probabilities": (),
    "symmetric": (),
    "positive_definite": (),
    "unique": ("range", "values", "share"),
    "indices": ("of", "axis", "range", "values", "share"),
    "quantized": ("bits", "range", "scale"),
    "packed": (),
}
"""Keys besides dims, dtype and strategy that each kind reads."""
NEEDED = {"offsets": ("to",), "indices": ("of",)}
INTEGERS = ("permutation", "offsets", "lengths", "indices", "packed")
FLOATS = ("probabilities", "positive_definite")
NO_BOOL = tuple(kind for kind in KINDS if kind not in ("mask", "one_hot"))
MOST_VALUES = 64


def shown(value: object) -> str:
    """Return a value from a configuration as text for a message."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return "an integer of more than 30 digits"
    if isinstance(value, Mapping):
        return "a table"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:59] + "…"


def is_number(value: object) -> TypeGuard[float]:
    """Tell whether a value is a number but not a boolean."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


class RuleReader(Struct):
    """Parser of the keys of one input's table that constrain its values."""

    path: KeyPath  # the path of the input's table
    name: str  # the input's name
    table: Mapping[object, object]
    dims: tuple[str, ...]  # names of the known dims, including derived ones
    report: Report

    def complain(self, key: str, slug: str, message: str, hint: str) -> None:
        """Report a problem with one key of the table."""
        self.report((*self.path, key), slug, message, hint)

    def read(self) -> tuple[float | None, float | None, ValueRule | None]:
        """Return the lower bound, the upper bound and the rule for the input's values.

        A bound is None if the table does not limit the values in this direction. If a bound is an
        expression, None is returned for both, and the rule contains the bounds. The rule is None if
        nothing but the returned bounds limits the values.
        """
        kind = self.kind()
        low, high = self.bounds()
        rule = ValueRule(
            kind=kind,
            values=self.values(),
            share=self.share(),
            nonfinite=self.flag("nonfinite"),
            to=self.size("to"),
            of=self.word("scale" if kind == "quantized" else "of"),
            axis=self.integer("axis", -32, 31),
            bits=self.integer("bits", 1, 64),
            descending=bool(self.flag("descending")),
            allow_empty_rows=bool(self.flag("allow_empty_rows")),
            optional=bool(self.flag("optional")),
            generate=self.function(),
        )
        self.fitting(kind)
        if isinstance(low, str) or isinstance(high, str):
            return None, None, replace(rule, low=low, high=high)
        return low, high, rule if rule != ValueRule() else None

    def plain_bounds(self) -> tuple[float | None, float | None]:
        """Return the bounds that are numbers; a bound that is an expression is returned as None."""
        low, high = self.bounds()
        return None if isinstance(low, str) else low, None if isinstance(high, str) else high

    def kind(self) -> str:
        value = self.table.get("kind")
        if value is None:
            return ""
        if isinstance(value, str) and value in KINDS:
            return value
        hint = did_you_mean(value if isinstance(value, str) else "", KINDS)
        if value == "scalar":
            hint = f"scalars stand beside the inputs: scalars = {{ {self.name} = [1, 2] }}"
        self.complain(
            "kind", "schema-kind", f"{self.name!r} has an unknown kind {shown(value)}", hint
        )
        return ""

    def fitting(self, kind: str) -> None:
        """Report keys that inputs of a kind do not use, and needed keys that the table lacks."""
        if self.table.get("dtype") == "bool" and self.table.get("range", [0, 1]) != [0, 1]:
            text = f"{self.name!r} is of bool, whose values no range limits"
            hint = "drop it, or declare an input of integers"
            self.complain("range", "schema-rule-key", text, hint)
        if "generate" in self.table:
            for key in ("range", *RULE_KEYS):
                if key in self.table and key not in ("generate", "optional"):
                    text = f"{self.name!r} is generated: {key!r} would say nothing"
                    hint = "its function says what the values are"
                    self.complain(key, "schema-rule-key", text, hint)
            return
        if kind:
            for key in ("range", *RULE_KEYS):
                if key in self.table and key not in ("kind", "optional", "unused", *OWN_KEYS[kind]):
                    text = f"{self.name!r} is of kind {kind!r}, which does not read {key!r}"
                    reads = ", ".join(OWN_KEYS[kind]) or "none of its own"
                    self.complain(key, "schema-rule-key", text, f"keys of this kind: {reads}")
            for key in NEEDED.get(kind, ()):
                if key not in self.table:
                    text = f"{self.name!r} is of kind {kind!r} and lacks {key!r}"
                    example = {"to": 'to = "T"', "of": 'of = "table"'}[key]
                    self.report(self.path, "schema-rule-key", text, f"for example {example}")
            return
        for key in RULE_KEYS:
            plain = (
                "kind", "values", "share", "nonfinite", "optional", "generate", "unused"
            )  # fmt: skip
            if key in self.table and key not in plain:
                text = f"{self.name!r} has {key!r}, which only inputs of some kinds have"
                self.complain(key, "schema-rule-key", text, f"kind = one of {', '.join(KINDS)}")
        if "share" in self.table and "values" not in self.table:
            text = f"{self.name!r} has a share, and no values or mask that it is the share of"
            self.complain("share", "schema-rule-key", text, "values = [-100], or drop it")

    def bounds(self) -> tuple[Bound | None, Bound | None]:
        value = self.table.get("range")
        if value is None:
            return None, None
        hint = "range = [lowest, highest], numbers or expressions of dims; both ends occur"
        ends: list[Any] = list(value) if isinstance(value, (list, tuple)) else []
        usable = all(isinstance(e, str) or (is_number(e) and not math.isnan(e)) for e in ends)
        if len(ends) != 2 or not usable:
            text = f"{self.name!r} has no usable range: {shown(value)}"
            self.complain("range", "schema-range", text, hint)
            return None, None
        known = [self.expression("range", e) for e in ends if isinstance(e, str)]
        if not all(known):
            return None, None
        low, high = ends
        numbers = is_number(low) and is_number(high)
        if low == math.inf or high == -math.inf or (numbers and low > high):
            text = f"the range of {self.name!r} is empty: {shown(value)}"
            self.complain("range", "schema-range", text, hint)
            return None, None
        return (None if low == -math.inf else low), (None if high == math.inf else high)

    def expression(self, key: str, text: str) -> bool:
        """Tell whether a text is an expression that names only known dims; report its errors."""
        try:
            unknown = sorted(names_in(text) - set(self.dims))
        except ExpressionError as error:
            self.complain(key, "schema-expression", f"{self.name!r}: {error}", 'such as "V-1"')
            return False
        for name in unknown:
            hint = did_you_mean(name, self.dims) or "there are no dims"
            self.complain(key, "schema-unknown-dim", f"{text!r} has an unknown dim {name!r}", hint)
        return not unknown

    def values(self) -> tuple[Number | str, ...]:
        value = self.table.get("values")
        if value is None:
            return ()
        listed = list(value) if isinstance(value, (list, tuple)) else []
        if not 0 < len(listed) <= MOST_VALUES or not all(is_number(v) for v in listed):
            text = f"{self.name!r} has no usable values: {shown(value)}"
            hint = f"a list of 1 to {MOST_VALUES} numbers, such as [-100]"
            self.complain("values", "schema-values", text, hint)
            return ()
        family = DTYPES[str(self.table["dtype"])].kind if self.table.get("dtype") in DTYPES else ""
        if family in ("int", "uint", "bool") and not all(map(math.isfinite, listed)):
            text = f"{self.name!r} is of integers, which are never Inf or NaN: {shown(value)}"
            self.complain("values", "schema-values", text, "numbers of its dtype, such as [-1]")
            return ()
        found = dict.fromkeys(listed)
        return tuple(v if math.isfinite(v) else str(float(v)) for v in found)

    def share(self) -> float | None:
        value = self.table.get("share")
        if value is None:
            return None
        if is_number(value) and 0 <= value <= 1:
            return float(value)
        text = f"{self.name!r} has the share {shown(value)}"
        self.complain("share", "schema-values", text, "a number from 0 to 1, such as 0.1")
        return None

    def flag(self, key: str) -> bool | None:
        value = self.table.get(key)
        if value is None or isinstance(value, bool):
            return value
        text = f"{key} of {self.name!r} is {shown(value)}"
        self.complain(key, "schema-type", text, "true or false")
        return None

    def size(self, key: str) -> int | str | None:
        value = self.table.get(key)
        if value is None:
            return None
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        if isinstance(value, str):
            return value if self.expression(key, value) else None
        text = f"{key} of {self.name!r} is {shown(value)}"
        self.complain(key, "schema-type", text, 'a size, or an expression of dims such as "T"')
        return None

    def integer(self, key: str, low: int, high: int) -> int:
        value = self.table.get(key)
        if value is None:
            return 0
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return value
        text = f"{key} of {self.name!r} is {shown(value)}"
        self.complain(key, "schema-type", text, f"a whole number from {low} to {high}")
        return 0

    def function(self) -> str:
        value = self.table.get("generate")
        if value is None:
            return ""
        if isinstance(value, str) and ":" in value:
            return value
        text = f"generate of {self.name!r} is {shown(value)}"
        self.complain("generate", "schema-type", text, 'a function, such as "gen.py:routes"')
        return ""

    def word(self, key: str) -> str:
        value = self.table.get(key)
        if value is None or isinstance(value, str):
            return value or ""
        text = f"{key} of {self.name!r} is {shown(value)}"
        self.complain(key, "schema-type", text, "the name of an input")
        return ""


def dtype_fault(kind: str, dtype: str) -> str:
    """Return in words which dtypes a kind needs; empty if `dtype` is one of them."""
    family = DTYPES[dtype].kind
    if kind in INTEGERS and family not in ("int", "uint"):
        return "an integer dtype"
    if kind in FLOATS and family != "float":
        return "a float dtype"
    if kind in NO_BOOL and family == "bool":
        return "a dtype of numbers"
    if kind == "packed" and dtype != "uint8":
        return "uint8, two values in each byte"
    return ""


_INDEX_WORDS = frozenset(
    ("idx", "index", "indexes", "indices", "ids", "labels", "label", "target", "targets", "token",
     "tokens", "positions", "slots", "table", "blocks", "pages")
)  # fmt: skip


def wants_range(tensor: TensorDef) -> bool:
    """Tell whether an input needs a range: it looks like an index but has no upper limit."""
    bounded = (tensor.low, tensor.high, tensor.rule, tensor.strategy) != (None,) * 4
    if bounded or tensor.dtype is None or DTYPES[tensor.dtype].kind not in ("int", "uint"):
        return False
    words = re.split(r"[^a-z]+", tensor.name.lower())
    return not _INDEX_WORDS.isdisjoint(words)


EXAMPLE = 'scalars = { eps = [1e-6, 1e-3], causal = [true, false], k = { range = [1, "N"] } }'
DTYPES_OF = {"int": "int64", "float": "float64"}


def read_scalars(value: object, dims: tuple[str, ...], report: Report) -> tuple[TensorDef, ...]:
    """Return a schema's scalars as inputs of one element; errors are reported."""
    if not isinstance(value, Mapping) or len(value) > MOST_VALUES:
        report(("scalars",), "schema-type", f"scalars is {shown(value)}", EXAMPLE)
        return ()
    found = (_scalar(str(name), given, dims, report) for name, given in value.items())
    return tuple(scalar for scalar in found if scalar is not None)


def _scalar(name: str, given: object, dims: tuple[str, ...], report: Report) -> TensorDef | None:
    path = ("scalars", name)
    if isinstance(given, (list, tuple)):
        return _listed(name, list(given), report)
    if not isinstance(given, Mapping) or not {"range", "generate"} & given.keys():
        text = f"scalar {name!r} is {shown(given)}"
        report(path, "schema-type", text, f"a list, or a table with a range: {EXAMPLE}")
        return None
    own = "generate" if "generate" in given else "range"
    for key in given:
        if key not in (own, "type"):
            hint = did_you_mean(str(key), (own, "type"))
            report((*path, str(key)), "config-unknown-key", f"unknown key {shown(key)}", hint)
    reader = RuleReader(path, name, given, dims, report)
    low, high = reader.bounds()
    whole = own == "range" and not any(isinstance(end, float) for end in (low, high))
    kind = given.get("type", "int" if whole else "float")
    if kind not in DTYPES_OF:
        text = f"scalar {name!r} is of type {shown(kind)}"
        report((*path, "type"), "schema-type", text, '"int" or "float"')
        return None
    dtype = DTYPES_OF[kind]
    if own == "generate":
        return TensorDef(name, (), dtype, rule=ValueRule(kind=SCALAR, generate=reader.function()))
    if low is None or high is None:
        text = f"scalar {name!r} has no two ends"
        report((*path, "range"), "schema-range", text, "range = [lowest, highest]")
        return None
    return TensorDef(name, (), dtype, rule=ValueRule(kind=SCALAR, low=low, high=high))


def _listed(name: str, values: list[Any], report: Report) -> TensorDef | None:
    path = ("scalars", name)
    plain = all(v is None or isinstance(v, (bool, int, float, str)) for v in values)
    finite = all(not isinstance(v, float) or abs(v) < float("inf") for v in values)
    small = all(not isinstance(v, int) or abs(v) < 1 << 63 for v in values)
    if not 0 < len(values) <= MOST_VALUES or not (plain and finite and small):
        text = f"scalar {name!r} has no usable values: {shown(values)}"
        report(path, "schema-values", text, f"1 to {MOST_VALUES} finite numbers, booleans or words")
        return None
    if all(isinstance(v, bool) for v in values):
        return TensorDef(name, (), "bool", rule=ValueRule(kind=SCALAR, values=tuple(values)))
    numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    if len(numbers) == len(values) and len({type(v) for v in values}) == 1:
        dtype = "int64" if isinstance(values[0], int) else "float64"
        return TensorDef(name, (), dtype, rule=ValueRule(kind=SCALAR, values=tuple(values)))
    # Words, and lists of several types: the element is an index into the list.
    chosen = ValueRule(kind=SCALAR, values=tuple(range(len(values))), choices=tuple(values))
    return TensorDef(name, (), "int64", rule=chosen)


def is_expression(text: str) -> bool:
    """Tell whether an axis is an expression rather than a name."""
    return not OPERATORS.isdisjoint(text)


class Expressions:
    """Collects the dims of one schema that are expressions."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self.found: dict[str, tuple[KeyPath, str]] = {}

    def add(self, path: KeyPath, name: str, text: str) -> None:
        """Add an expression, or report that the text is no expression."""
        try:
            names_in(text)
        except ExpressionError as error:
            hint = 'such as "2*D", "(H-1)//2+1", "cdiv(N, 16)"'
            self._report(path, "schema-expression", f"{name!r}: {error}", hint)
            text = "1"  # one mistake, one message
        self.found.setdefault(name, (path, text))

    def ordered(self, dims: Mapping[str, Dim]) -> tuple[DerivedDim, ...]:
        """Return the derived dims, each after the dims that it needs; report cycles."""
        done: dict[str, DerivedDim] = {}
        rest = dict(self.found)
        while rest:
            ready = [
                name
                for name, (_, text) in rest.items()
                if all(used in dims or used in done for used in names_in(text))
            ]
            for name in ready:
                done[name] = DerivedDim(name, rest.pop(name)[1])
            if not ready:
                break
        for path, text in rest.values():
            for used in sorted(names_in(text) - set(dims) - set(done)):
                if used in rest:
                    message = f"{text!r} needs {used!r}, which needs it: there is no end to it"
                    self._report(path, "schema-expression", message, "give one of them sizes")
                else:
                    hint = did_you_mean(used, tuple(dims)) or "add it to dims"
                    message = f"{text!r} has an unknown dim {used!r}"
                    self._report(path, "schema-unknown-dim", message, hint)
        return tuple(done.values())


def used_names(texts: Iterable[object], derived: Iterable[DerivedDim]) -> set[str]:
    """Return the names that expressions use, also indirectly through the derived dims they name."""
    found: set[str] = set()
    behind = {dim.name: dim.expression for dim in derived}
    todo = [text for text in texts if isinstance(text, str)]
    while todo:
        text = todo.pop()
        names = {text} if text in behind else _names(text)
        for name in names - found:
            found.add(name)
            if name in behind:
                todo += sorted(_names(behind[name]))
    return found


def _names(text: str) -> frozenset[str]:
    try:
        return names_in(text)
    except ExpressionError:
        return frozenset((text,))  # a name that expressions cannot have


def rule_texts(rule: ValueRule | None) -> list[object]:
    """List the expressions of a rule."""
    return [] if rule is None else [rule.low, rule.high, rule.to, rule.total]


def demand_sizes(schema: OpSchema, report: Report) -> bool:
    """Tell whether sizes that satisfy the schema were found; report an error if not."""
    if not (schema.derived or schema.limits) or allowed_sizes(schema) is not None:
        return True
    said = [
        dim.expression if dim.name == dim.expression else f"{dim.name} = {dim.expression}"
        for dim in schema.derived
    ]
    said += [f"{left} {sign} {right}" for left, sign, right in schema.limits]
    message = f"no sizes of the dims were found that allow {', '.join(said[:4])}"
    key = "constraints" if schema.limits else "dims"
    hint = "widen the dims, or fix the expressions: none may be negative or divide by 0"
    report((key,), "schema-unsatisfiable", message, hint)
    return False
