"""Holds a stated cause, as `run --format json` prints it, against a planted bug's truth."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

from truths import Dim, Dims, Element, Layout, Place, Planted, Relation, Truth, Value
from workspace import SCHEMAS

LARGEST = 520
AGREED = 0.9

HOLDS = {
    "large": ("largest_above", "magnitude_above", "row_range_above"),
    "negative": ("lowest_below", "row_least_top_below", "negative", "negative_row"),
    "small": ("row_least_magnitude_below", "zero_row"),
    "nan": ("nan", "not_finite"),
    "inf": ("infinite", "plus_inf", "minus_inf", "minus_inf_row", "not_finite"),
    "ties": ("ties", "tied_top"),
    "zeros": ("zero", "zero_row"),
    "constant": ("constant_row",),
    "cancel": ("row_offset_above",),
    "mid": (),
}


def is_right(planted: Planted, cause: dict[str, Any]) -> bool:
    """Say whether a stated cause is one that the truth allows."""
    if cause["relation"] and cause["relation"]["kind"].startswith("element-"):
        return any(
            _of_elements(truth, cause["relation"], planted)
            for truth in (*planted.truths, *planted.together)
        )
    if cause["relation"]:
        relations = [truth for truth in planted.truths if isinstance(truth, Relation)]
        return any(_relation(truth, cause) for truth in relations)
    conditions = cause["conditions"]
    if planted.together:
        each = [any(_condition(truth, c) for c in conditions) for truth in planted.together]
        return all(each) and len(conditions) == len(planted.together)
    return all(any(_condition(truth, c) for truth in planted.truths) for c in conditions)


def _relation(truth: Relation, cause: dict[str, Any]) -> bool:
    relation = cause["relation"]
    said = f"{relation['subject']} {relation['formula']} {cause['sentence']}".replace(
        "log2 e", "log2"
    )
    words = (word.replace("log2 e", "log2") for word in truth.words)
    return relation["kind"] in truth.kinds and all(word in said for word in words)


STATED = re.compile(
    r"(?P<bars>\|?)(?P<name>[\w ]+?)\|?(?: is)? "
    r"(?P<how>≥|≤|<|>|=|odd|even|between) ?(?P<value>\S*)(?: and (?P<end>\S+))?$"
)
NEARLY = 1.2
"""Factor by which a stated threshold may be off."""


def _of_elements(truth: Truth, relation: dict[str, str], planted: Planted) -> bool:
    """Judge a claim on the wrong elements: the input and the value, or the place."""
    formula = relation["formula"]
    if relation["kind"] == "element-place":
        if isinstance(truth, Place):
            return formula in _places(truth)
        return isinstance(truth, Dim) and _same_place(truth, relation, planted)
    match = STATED.match(formula)
    if match is None:
        return False
    how, number = match["how"], _number(match["value"])
    kinds = {
        "≥": ("magnitude_above",) if match["bars"] or "magnitude" in formula else ("above",),
        "≤": ("magnitude_below",) if match["bars"] or "magnitude" in formula else ("below",),
        "<": ("below",),
        ">": ("magnitude_above",) if match["bars"] else ("above",),
        "=": ("equal", "infinite") if math.isinf(number) else ("equal",),
        "between": ("magnitude_above", "magnitude_below") if match["bars"] else ("above", "below"),
    }.get(how, (how,))
    if "largest element" in formula:
        kinds += tuple(f"row_top_{kind}" for kind in kinds)
    if isinstance(truth, Element):
        if relation["subject"] not in truth.inputs or not set(kinds) & set(truth.kinds):
            return False
        named = [number, _number(match["end"])] if how == "between" else [number]
        return how in ("odd", "even") or any(_is_about(each, truth.value) for each in named)
    if isinstance(truth, Value) and relation["subject"] in truth.inputs:
        return any(_VALUES[what](kinds, number) for what in truth.holds)
    return False


def _number(text: str | None) -> float:
    try:
        return float((text or "nan").replace("Inf", "inf"))
    except ValueError:
        return math.nan


def _is_about(stated: float, true: float) -> bool:
    if true == 0.0 or math.isinf(stated):
        return abs(stated) < 1e-3 or math.isinf(stated)
    return stated * true > 0.0 and 1 / NEARLY <= stated / true <= NEARLY


_VALUES: dict[str, Callable[[tuple[str, ...], float], bool]] = {
    "large": lambda kinds, n: abs(n) >= 10 and any(k.endswith("above") for k in kinds),
    "negative": lambda kinds, n: n <= 0 and "below" in kinds,
    "small": lambda kinds, n: abs(n) < 1e-2 and any(k.endswith("below") for k in kinds),
    "zeros": lambda kinds, n: abs(n) < 1e-30 and bool({"equal", "magnitude_below"} & set(kinds)),
    "inf": lambda kinds, n: "infinite" in kinds,
    "nan": lambda kinds, n: False,
    "ties": lambda kinds, n: False,
    "constant": lambda kinds, n: False,
    "cancel": lambda kinds, n: False,
    "mid": lambda kinds, n: True,
}


def _places(truth: Place) -> tuple[str, ...]:
    """Write a true place as a claim says it."""
    flat = truth.where == "flat"
    index, along = ("flat index", "") if flat else ("index", f" along {truth.where}")
    numbers = truth.numbers
    if truth.where == "both":
        first, second = numbers
        return (
            f"elements from index {first} on along axis 0 and from index {second} on along axis 1",
        )
    if truth.kind == "from":
        return (f"elements from {index} {numbers[0]} on{along}",)
    if truth.kind == "range":
        return (f"elements from {index} {numbers[0]} to {numbers[1] - 1}{along}",)
    if truth.kind == "residue":
        return (f"elements whose {index}{along} is {numbers[1]} modulo {numbers[0]}",)
    if truth.kind == "tail":
        where = "in memory order" if flat else along.strip()
        return (f"elements in the last, partial tile of {numbers[0]} {where}",)
    return ()


def _same_place(truth: Dim, relation: dict[str, str], planted: Planted) -> bool:
    """Tell whether a claim names the first index beyond a dim's size up to which all is right."""
    found = re.match(r"elements from (flat )?index (\d+) (?:on|to \d+)", relation["formula"])
    if found is None:
        return False
    dims = json.loads(SCHEMAS[planted.op][2])
    axis = 0 if found[1] else int(relation["subject"])
    if found[1] and len(dims) > 1:
        return False
    size = int(found[2])
    return dims[axis] == truth.name and truth.fails(size + 1) and not truth.fails(size)


def _condition(truth: Truth, condition: dict[str, Any]) -> bool:
    kind, subject, value = condition["kind"], condition["subject"], condition["value"]
    if isinstance(truth, Dim):
        return subject == truth.name and _same_sizes(truth, kind, value)
    if isinstance(truth, Dims):
        pair = {subject, value if isinstance(value, str) else ""}
        return kind == truth.relation and pair == {truth.first, truth.second}
    if isinstance(truth, Layout):
        if kind == "layout":
            return subject == truth.name and not {"contiguous", "offset"} & set(value)
        return subject == truth.name and value == "scattered"
    if isinstance(truth, Element) and subject in truth.inputs:
        return _bounds(truth, kind, value)
    if isinstance(truth, Value) and (subject in truth.inputs or not subject):
        if kind == "strategy":
            named = set(value)
            return named <= set(truth.strategies) and set(truth.needed) <= named
        said = value if kind == "holds" else kind
        return any(said in HOLDS[what] for what in truth.holds)
    return False


def _bounds(truth: Element, kind: str, value: Any) -> bool:
    """Tell whether a condition on what an input holds names the true threshold."""
    if kind == "holds":
        return value in ("zero",) and "equal" in truth.kinds and truth.value == 0.0
    named = {
        "largest_above": "above",
        "lowest_below": "below",
        "magnitude_above": "magnitude_above",
        "row_least_top_below": "row_top_below",
    }.get(kind, "")
    return named in truth.kinds and _is_about(float(value), truth.value)


def _same_sizes(truth: Dim, kind: str, value: Any) -> bool:
    """Say whether a condition on a dim holds for the sizes that fail, and for them only."""
    tests = {
        "above": lambda n: n > value,
        "at_most": lambda n: n <= value,
        "multiple": lambda n: n % value == 0,
        "not_multiple": lambda n: n % value != 0,
        "power_of_two": lambda n: n & (n - 1) == 0,
        "not_power_of_two": lambda n: n & (n - 1) != 0,
    }
    if kind not in tests:
        return False
    sizes = range(1, LARGEST + 1)
    for expected in (True, False):
        chosen = [n for n in sizes if truth.fails(n) is expected]
        agreed = [n for n in chosen if bool(tests[kind](n)) is expected]
        if len(agreed) < AGREED * len(chosen):
            return False
    return True
