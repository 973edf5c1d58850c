"""Holds a stated cause, as `run --format json` prints it, against a planted bug's truth."""

from __future__ import annotations

from typing import Any

from truths import Dim, Dims, Layout, Planted, Relation, Truth, Value

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
    if isinstance(truth, Value) and (subject in truth.inputs or not subject):
        if kind == "strategy":
            named = set(value)
            return named <= set(truth.strategies) and set(truth.needed) <= named
        said = value if kind == "holds" else kind
        return any(said in HOLDS[what] for what in truth.holds)
    return False


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
