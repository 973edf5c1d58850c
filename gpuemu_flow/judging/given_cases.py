"""Convert the cases of one message to short JSON: most cases differ only by their seeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from operator import attrgetter

from gpuemu_flow.types import Case, Json

_all_but_seed = attrgetter(*(field.name for field in fields(Case) if field.name != "seed"))


def cases_to_json(cases: Sequence[Case]) -> list[Json]:
    """Return each case as JSON, or only its seed if it otherwise equals the first case."""
    first, *others = cases
    rest = _all_but_seed(first)
    found: list[Json] = [first.to_json()]
    found += [one.seed if _all_but_seed(one) == rest else one.to_json() for one in others]
    return found


def cases_from_json(data: Sequence[Json]) -> Iterator[Case]:
    """Yield the cases from the result of `cases_to_json`."""
    first = Case.from_json(data[0])
    alike = vars(first)
    yield first
    for each in data[1:]:
        yield Case(**{**alike, "seed": each}) if type(each) is int else Case.from_json(each)
