"""Values of inputs that must follow a rule: drawn by the rule, or changed to follow it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.cases.kinds import KINDS, Setting
from gpuemu_flow.cases.values import draw
from gpuemu_flow.model.errors import Problem, UsageError
from gpuemu_flow.model.syntax import ExpressionError, compute
from gpuemu_flow.model.types import (
    DTYPES,
    SCALAR,
    STRATEGIES,
    Bound,
    InputSpec,
    Number,
    Shape,
    ValueRule,
)
from gpuemu_flow.numerics.dtypes import dtype_name, float_limits, numpy_dtype
from gpuemu_flow.numerics.rng import SeededRng

Array = NDArray[Any]

SHARE = 0.1
OFTEN = 0.5
TOUCHING = 0.25
ADVERSARIAL = ("special", "extremes", "sparse")


def setting_of(
    spec: InputSpec, rng: SeededRng, sizes: Mapping[str, int], shapes: Mapping[str, Shape]
) -> Setting:
    """Return the setting for drawing an input's values, with computed bounds.

    Raises UsageError: ``case-unsatisfiable``: no values follow the rule in this case.
    """
    rule = spec.rule or ValueRule()

    def number(bound: Bound | None, plain: Number | None = None) -> Any:
        if bound is None:
            return plain
        if not isinstance(bound, str):
            return bound
        try:
            return compute(bound, sizes, shapes)
        except ExpressionError as error:
            raise _unsatisfiable(f"{spec.name}: {error}") from None

    size = None
    if rule.kind == "indices" and rule.of:
        shape = shapes.get(rule.of, ())
        if not -len(shape) <= rule.axis < len(shape):
            raise _unsatisfiable(f"{spec.name}: {rule.of} has no axis {rule.axis}")
        size = shape[rule.axis]
    low, high = number(rule.low, spec.low), number(rule.high, spec.high)
    if low is not None and high is not None and low > high and math.prod(spec.shape):
        raise _unsatisfiable(f"{spec.name}: no value lies from {low} to {high}")
    return Setting(
        rng,
        spec.shape,
        spec.dtype,
        spec.strategy,
        rule,
        low,
        high,
        number(rule.to),
        number(rule.total),
        size,
    )


def _unsatisfiable(message: str) -> UsageError:
    hint = "`gpuemu-flow config check` finds most of these; fix the schema, or take other sizes"
    return UsageError(Problem("case-unsatisfiable", message, hint))


def draw_by_rule(
    setting: Setting, strategy: str, others: Mapping[str, Array], *, turn: int = 0
) -> Array:
    """Draw values that follow the rule, in the setting's shape and dtype."""
    rule, shape, dtype = setting.rule, setting.shape, numpy_dtype(setting.dtype)
    if math.prod(shape) == 0:
        return np.empty(shape, dtype)
    if rule.kind:
        drawn = KINDS[rule.kind].draw(setting)
        values = _in_dtype(drawn, setting.dtype).reshape(shape)
    elif rule.values and setting.low is None and setting.high is None:
        values = np.full(shape, rule.numbers[0], dtype)
    else:
        low, high = setting.low, setting.high
        known = strategy if strategy in STRATEGIES else STRATEGIES[0]
        where, kept = (setting.rng, shape, setting.dtype, low, high), rule.nonfinite
        values = draw(known, *where, nonfinite=kept, turn=turn)
    if rule.values and rule.kind != SCALAR:
        _mix_in(values, setting, strategy)
    if rule.other in others and others[rule.other].size:  # else it is left out, or not compared
        values = _related(values, setting, others[rule.other])
    return _with_columns(values, setting, touching=True)


def fit_to_rule(values: Array, setting: Setting, others: Mapping[str, Array]) -> Array | None:
    """Return values that follow the rule, near the given values; None if there are none."""
    rule = setting.rule
    if values.size == 0:
        return values
    fitted = values
    mixed = bool(rule.values) and rule.kind != SCALAR
    fixed = np.isin(values, np.array(rule.numbers)) if mixed else None
    if rule.kind:
        kept = KINDS[rule.kind].fit(values, setting)
        if kept is None:
            return None
        fitted = _in_dtype(kept, setting.dtype)
    elif not rule.values or setting.low is not None or setting.high is not None:
        fitted = _bounded(values, setting)
    elif fixed is not None:
        fitted = np.where(fixed, values, np.array(rule.numbers[0]).astype(values.dtype))
    if fixed is not None:
        fitted = np.where(fixed, values, fitted)
    if rule.other in others and others[rule.other].size:
        fitted = _related(fitted, setting, others[rule.other], fitting=True)
    fitted = _with_columns(np.array(fitted), setting)
    # ascontiguousarray makes 0-d arrays 1-d, hence the reshape.
    return np.ascontiguousarray(fitted, dtype=values.dtype).reshape(values.shape)


def _in_dtype(values: Array, dtype: str) -> Array:
    """Convert exact values to the dtype; clip integers to the range of an integer dtype."""
    target = numpy_dtype(dtype)
    if values.dtype == target:
        return np.ascontiguousarray(values)
    if DTYPES[dtype].kind == "float" and values.dtype.kind == "b":
        values = values.astype(np.float32)
    if DTYPES[dtype].kind in ("int", "uint"):
        info = np.iinfo(target)
        if values.dtype.kind in "iu":
            values = np.clip(values, info.min, min(int(info.max), (1 << 63) - 1))
    return np.ascontiguousarray(values.astype(target))


def _bounded(values: Array, setting: Setting) -> Array:
    low, high = setting.low, setting.high
    if DTYPES[setting.dtype].kind == "bool" or (low is None and high is None):
        return values
    if setting.floating:
        wide = values.astype(np.float64)
        outside = np.clip(wide, low, high)
        kept = wide == outside
        if setting.rule.nonfinite:
            kept |= ~np.isfinite(wide)
        return np.where(kept, values, outside.astype(values.dtype))
    info = np.iinfo(values.dtype)
    first = int(info.min) if low is None else max(math.ceil(low), int(info.min))
    last = int(info.max) if high is None else min(math.floor(high), int(info.max))
    return np.clip(values, first, last).astype(values.dtype)


def _mix_in(values: Array, setting: Setting, strategy: str) -> None:
    """Overwrite a share of the elements, in place, with the values that the rule lists.

    If the rule has no kind and the setting has no bounds, the listed values replace all elements.
    """
    rule, flat = setting.rule, values.reshape(-1)
    rng = setting.rng.derive("values")
    palette = np.array(rule.numbers).astype(values.dtype)
    alone = not rule.kind and setting.low is None and setting.high is None
    if alone:
        chosen = rng.ranges(flat.size, 0, palette.size)
        flat[:] = palette[chosen]
    share = SHARE if rule.share is None else rule.share
    if strategy in ADVERSARIAL and not alone:
        share = max(share, OFTEN)
    picked = np.ones(flat.size, bool) if alone else rng.derive("places").f64(flat.size) < share
    if not alone and share > 0 and flat.size > 1 and picked.all():
        picked[rng.derive("other").gen_range(0, flat.size)] = False
    if not alone and share > 0 and flat.size > 1 and not picked.any():
        picked[rng.derive("one").gen_range(0, flat.size)] = True
    where = np.flatnonzero(picked)
    if not alone:
        flat[where] = palette[rng.derive("which").ranges(where.size, 0, palette.size)]
    # Each of the listed values occurs once, as far as there is room.
    some = where[: palette.size]
    flat[some] = palette[: some.size]


def _neighbours(values: Array, setting: Setting) -> Array:
    """Return the next larger value of each element or, at the upper bound, the next smaller one."""
    if setting.floating:
        top = float_limits(setting.dtype).max
        high = np.array(top if setting.high is None else min(setting.high, top))
        ends = [np.array(end).astype(values.dtype) for end in (-np.inf, np.inf)]
        at_top = values >= high.astype(values.dtype)
        beside: Array = np.where(
            at_top, np.nextafter(values, ends[0]), np.nextafter(values, ends[1])
        )
        return beside
    last = int(np.iinfo(values.dtype).max)
    last = last if setting.high is None else min(math.floor(setting.high), last)
    one = np.ones((), values.dtype)
    moved: Array = np.where(values >= last, values - one, values + one)
    return moved


def _related(values: Array, setting: Setting, other: Array, *, fitting: bool = False) -> Array:
    """Return the values, changed where they violate the rule's relation to another input.

    `other` holds the values of that input. `fitting` is True to change nothing else, and False for
    newly drawn values. If it is False, and the relation is ``<``, ``<=``, ``>`` or ``>=``, some
    elements are also set to the value nearest to `other` that the relation allows.
    """
    sign = setting.rule.relation
    if sign == "cumsum":
        flat = other.reshape(-1).astype(np.int64)
        sums = np.concatenate([[0], np.cumsum(flat)])[: values.size]
        return _in_dtype(sums.reshape(values.shape), setting.dtype)
    if sign == "==":
        return other.astype(values.dtype)
    with np.errstate(all="ignore"):
        if sign == "!=":
            return np.where(values == other, _neighbours(values, setting), values)
        wanted = other.astype(values.dtype)
        if sign in ("<", ">") and not setting.floating:
            step = np.ones((), values.dtype)
            wanted = wanted - step if sign == "<" else wanted + step
        elif sign in ("<", ">"):
            end = -np.inf if sign == "<" else np.inf
            wanted = np.nextafter(wanted, np.array(end).astype(values.dtype))
        below = np.minimum if sign in ("<", "<=") else np.maximum
        related: Array = below(values, wanted)
        if not fitting:
            touching = setting.rng.derive("touching").f64(values.size) < TOUCHING
            related = np.where(touching.reshape(values.shape), wanted, related)
            if setting.low is not None or setting.high is not None:
                related = _bounded(related, setting)
    return related.astype(values.dtype)


def _with_columns(values: Array, setting: Setting, *, touching: bool = False) -> Array:
    """Exchange, in place, elements of a row whose relation to each other does not hold.

    If `touching`, some elements that may be equal are made equal.
    """
    columns = setting.rule.columns
    for turn, (left, sign, right) in enumerate(columns * len(columns)):
        low, high = (left, right) if sign in ("<", "<=") else (right, left)
        below, above = values[..., low].copy(), values[..., high].copy()
        wrong = below > above
        below, above = np.where(wrong, above, below), np.where(wrong, below, above)
        if touching and turn < len(columns) and sign in ("<=", ">="):
            rng = setting.rng.derive(f"touching/{turn}")
            equal = (rng.f64(below.size) < TOUCHING).reshape(below.shape)
            above = np.where(equal, below, above)
        if sign in ("<", ">"):
            equal, moved = below == above, _neighbours(above, setting)
            above = np.where(equal & (moved > above), moved, above)
            below = np.where(equal & (moved < below), moved, below)
        values[..., low], values[..., high] = below, above
    return values


def _beyond(rule: ValueRule, shape: Shape, lengths: Array, *table: Array) -> NDArray[np.bool_]:
    """Mark the elements of an input that are unused."""
    unused = rule.unused
    if unused is None:
        return np.zeros(shape, bool)
    ranks = range(len(shape))
    places = np.arange(shape[unused.along])
    if table:
        (pages,) = table
        used = np.zeros((shape[0], places.size), bool)
        begins = np.arange(pages.shape[-1]) * places.size
        held = begins[:, None] + places < lengths[..., None, None]
        inside = (pages >= 0) & (pages < shape[0])
        np.logical_or.at(used, pages[inside].astype(np.intp), held[inside])
        return np.broadcast_to(
            ~used.reshape([n if a in (0, unused.along) else 1 for a, n in enumerate(shape)]), shape
        )
    order = sorted(range(len(unused.axes)), key=unused.axes.__getitem__)
    spread = lengths.transpose(order).reshape([shape[a] if a in unused.axes else 1 for a in ranks])
    along = [-1 if a == unused.along else 1 for a in ranks]
    return np.broadcast_to(places.reshape(along) >= spread, shape)


def poisoned(values: Array, rule: ValueRule, others: Sequence[Array], rng: SeededRng) -> Array:
    """Return the values with NaN, or with Inf of both signs, in the elements that are unused.

    `others` are the values of the inputs that say which these are.
    """
    limits = float_limits(dtype_name(values.dtype) or "")
    infinity = np.inf if limits.has_inf else limits.max
    signed = np.where(np.arange(values.size).reshape(values.shape) % 2, infinity, -infinity)
    nan = rng.derive("unused").gen_range(0, 2) == 0
    filling = np.full(values.shape, np.nan) if nan else signed
    beyond = _beyond(rule, values.shape, *others)
    return np.where(beyond, filling.astype(values.dtype), values)


def without_poison(values: Array, rule: ValueRule, others: Sequence[Array]) -> Array:
    """Return the values with 0 for NaN and Inf in elements that are used, as other lengths left."""
    kept = np.isfinite(values.astype(np.float64)) | _beyond(rule, values.shape, *others)
    return np.where(kept, values, np.zeros((), values.dtype))
