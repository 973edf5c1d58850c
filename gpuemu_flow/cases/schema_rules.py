"""Parse the rules for an input's values: kinds, ranges that depend on dims, listed values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from msgspec import Struct
from msgspec.structs import replace

from gpuemu_flow.cases.op_schema import TensorDef
from gpuemu_flow.errors import did_you_mean
from gpuemu_flow.expressions import ExpressionError, names_in
from gpuemu_flow.types import DTYPES
from gpuemu_flow.value_rules import KINDS, Bound, Number, ValueRule

KeyPath = tuple[str | int, ...]
Report = Callable[[KeyPath, str, str, str], None]

RULE_KEYS = (
    "nonfinite", "values", "share", "kind", "to", "of", "axis", "bits", "descending",
    "allow_empty_rows", "scale", "optional", "generate",
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
    "unique": ("range",),
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
                if key in self.table and key not in ("kind", "optional", *OWN_KEYS[kind]):
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
            plain = ("kind", "values", "share", "nonfinite", "optional", "generate")
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
        good = [is_number(e) or (isinstance(e, str) and self.expression("range", e)) for e in ends]
        if len(ends) != 2 or any(isinstance(e, float) and math.isnan(e) for e in ends):
            text = f"{self.name!r} has no usable range: {shown(value)}"
            self.complain("range", "schema-range", text, hint)
            return None, None
        if not all(good):
            if not any(isinstance(e, str) for e in ends):
                text = f"{self.name!r} has no usable range: {shown(value)}"
                self.complain("range", "schema-range", text, hint)
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
            hint = did_you_mean(name, self.dims) or f"dims: {', '.join(self.dims) or 'none'}"
            self.complain(key, "schema-unknown-dim", f"{text!r} has an unknown dim {name!r}", hint)
        return not unknown

    def values(self) -> tuple[Number, ...]:
        value = self.table.get("values")
        if value is None:
            return ()
        listed = list(value) if isinstance(value, (list, tuple)) else []
        if not 0 < len(listed) <= MOST_VALUES or not all(is_number(v) for v in listed):
            text = f"{self.name!r} has no usable values: {shown(value)}"
            hint = f"a list of 1 to {MOST_VALUES} numbers, such as [-100]"
            self.complain("values", "schema-values", text, hint)
            return ()
        return tuple(dict.fromkeys(listed))

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
