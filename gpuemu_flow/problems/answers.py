"""Parse and check the answers of a problem's own code, which may be hostile."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from gpuemu_flow.problems.model import Argument, ProblemFacts, ReferenceOutput
from gpuemu_flow.problems.probing import ProbeError
from gpuemu_flow.types import DTYPES, Json

MOST_ARGUMENTS = 64
MOST_AXES = 8
MOST_NESTED = 20
LONGEST = 1 << 16
KINDS = ("", "one_hot", "probabilities", "symmetric")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


def described(answer: Mapping[str, Json]) -> ProblemFacts:
    """Check a probe's answer, and return the facts in it.

    Raises
    ------
    ProbeError
        The answer does not have the form that our probes give.
    """
    try:
        return ProblemFacts(
            init=tuple(_plain(one) for one in _list(answer["init"])),
            arguments=tuple(_argument(one) for one in _list(answer["arguments"])),
            globals={_name(key): _plain(value) for key, value in answer["globals"].items()},
            outputs=tuple(_output(one) for one in _list(answer.get("outputs", []))),
            free=frozenset(str(one) for one in _list(answer.get("free", []))),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ProbeError("its code gave no answer that can be read") from error


def _list(value: Json) -> list[Json]:
    if not isinstance(value, list) or len(value) > MOST_ARGUMENTS:
        raise ValueError("no short list")
    return value


def _name(value: Json) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError("no name")
    return value


def _argument(one: Mapping[str, Json]) -> Argument:
    if "name" not in one:
        return Argument(value=_plain(one["value"]))
    shape = tuple(one["shape"])
    if len(shape) > MOST_AXES or not all(type(n) is int and 0 <= n < 1 << 40 for n in shape):
        raise ValueError("no shape")
    if one["dtype"] not in DTYPES or one.get("kind", "") not in KINDS:
        raise ValueError("no dtype or kind")
    part = one.get("part", "")
    if part not in ("", "upper", "lower"):
        raise ValueError("no part")
    return Argument(
        name=_name(one["name"]),
        shape=shape,
        dtype=one["dtype"],
        floating=one.get("float") is True,
        low=_number(one.get("low")),
        high=_number(one.get("high")),
        kind=one.get("kind", ""),
        part=part,
    )


def _number(value: Json) -> float | None:
    if value is None or type(value) is int:
        return value
    if type(value) is not float:
        raise ValueError("no number")
    return value if math.isfinite(value) else None


def _output(one: Mapping[str, Json]) -> ReferenceOutput:
    rank = one["rank"]
    if type(rank) is not int or not 0 <= rank <= MOST_AXES:
        raise ValueError("no rank")
    return ReferenceOutput(rank, one.get("float") is True, one.get("finite") is True)


def _plain(value: Json, depth: int = 0) -> Json:
    """Check that a value is plain JSON of expected types, and return it."""
    if depth > MOST_NESTED:
        raise ValueError("nested too deep")
    if isinstance(value, str) and len(value) > LONGEST:
        raise ValueError("too long")
    if isinstance(value, list):
        return [_plain(one, depth + 1) for one in _list(value)]
    if isinstance(value, dict):
        if set(value) != {"tuple"}:
            raise ValueError("no tuple")
        return {"tuple": [_plain(one, depth + 1) for one in _list(value["tuple"])]}
    return value
