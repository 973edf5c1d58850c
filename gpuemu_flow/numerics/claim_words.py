"""Put claims about wrong elements into words: ``only elements with x ≥ 100 are wrong``."""

from __future__ import annotations

import math

from gpuemu_flow.numerics.claims import Claim, is_close, is_known, is_zero
from gpuemu_flow.numerics.elements import ROW


def sentence_of(claim: Claim) -> str:
    """Return a claim as a whole sentence."""
    if claim.feature.of_place:
        return f"only {formula_of(claim)} are wrong"
    if claim.feature.level == ROW:
        return f"only rows of {claim.feature.subject} whose {formula_of(claim)} go wrong"
    return f"only elements with {formula_of(claim)} are wrong"


def formula_of(claim: Claim) -> str:
    """Describe the wrong elements of a claim: ``x ≥ 100``, ``elements from flat index 512 on``."""
    if claim.feature.of_place:
        where = _place(claim)
        return where if claim.also is None else f"{where} and {_place(claim.also, plain=True)}"
    name = claim.feature.subject
    subject = {
        "value": name,
        "magnitude": f"|{name}|",
        "top": "largest element is",
        "low": "least element is",
        "magnitude-row": "largest magnitude is",
    }[claim.feature.kind + ("-row" if _is_row_magnitude(claim) else "")]
    if claim.kind == "equal":
        return f"{subject} = {claim.low[0] + 0.0:.6g}"
    if claim.kind in ("odd", "even"):
        return f"{subject} {claim.kind}"
    return _stretch(subject, claim)


def _is_row_magnitude(claim: Claim) -> bool:
    return claim.feature.level == ROW and claim.feature.kind == "magnitude"


def _stretch(subject: str, claim: Claim) -> str:
    if claim.low and claim.high:
        low, high = _border(claim, claim.low), _border(claim, claim.high)
        return f"{subject} between {low} and {high}"
    ends = claim.low or claim.high
    right, wrong = ends
    if math.isinf(wrong):
        return f"{subject} = {'Inf' if wrong > 0 else '-Inf'}"
    sign = "≥" if claim.kind == "above" else "≤"
    # Either the side of zero itself is known, or only the signs of the values are.
    without = is_zero(right, wrong) or (is_known(claim, ends) and right == 0.0)
    if without and (right <= 0.0 < wrong or wrong < 0.0 <= right or right * wrong > 0.0):
        sign = ">" if claim.kind == "above" else "<"
        return f"{subject} {sign} 0"
    return f"{subject} {sign} {_border(claim, ends)}"


def _border(claim: Claim, ends: tuple[float, ...]) -> str:
    """Describe a border by the shortest number between the last right and the first wrong value.

    If these are far apart, say that the border lies between the two. `ends` is (right, wrong).
    """
    right, wrong = ends
    if is_known(claim, ends):
        return f"{wrong:.15g}"
    if not is_close(right, wrong):
        return f"a number between {min(ends):.4g} and {max(ends):.4g}"
    if is_zero(right, wrong):
        return "0"
    middle = (right + wrong) / 2
    low, high = min(ends), max(ends)
    for digits in range(1, 17):
        for tried in (middle, wrong, right):
            short = float(f"{tried:.{digits}g}")
            if low < short < high or short == wrong:
                return f"{short:.{digits}g}" if abs(short) >= 1e6 else f"{short:g}"
    return f"{wrong:.6g}"


def _place(claim: Claim, *, plain: bool = False) -> str:
    axis = claim.feature.subject
    flat = claim.feature.kind == "flat"
    along = "" if flat else f" along axis {axis}"
    index = "flat index" if flat else "index"
    head = "" if plain else "elements "
    if claim.kind == "equal":
        return f"{head}at {index} {claim.low[0]:g}{along}"
    if claim.kind == "residue":
        rest, modulus = claim.low
        return f"{head}whose {index}{along} is {rest:g} modulo {modulus:g}"
    if claim.kind == "tail":
        tile = f"the last, partial tile of {claim.low[0]:g}"
        return f"{head}in {tile} {'in memory order' if flat else along.strip()}"
    if claim.low and claim.high:
        last = _round(claim.high[1] + 1, claim.high[0]) - 1
        return f"{head}from {index} {_round(claim.low[0] + 1, claim.low[1])} to {last}{along}"
    if claim.low:
        return f"{head}from {index} {_round(claim.low[0] + 1, claim.low[1])} on{along}"
    return f"{head}up to {index} {_round(claim.high[1] + 1, claim.high[0]) - 1}{along}"


def _round(least: float, most: float) -> int:
    """Return the integer from `least` to `most` with the largest power of two as a factor."""
    for tile in (1 << power for power in range(20, 0, -1)):
        found = int(most) // tile * tile
        if found >= max(least, 1.0):
            return found
    return int(most)
