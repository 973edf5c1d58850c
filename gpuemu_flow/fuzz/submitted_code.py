"""Submissions that still hold: newer code retires what older code gave."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuemu_flow.store.results import StoredResult


@dataclass
class _Run:
    """Submissions of one process by one state of one code: its digest, first and last time."""

    code: str
    first: int
    last: int


def of_current_code(stored: Iterable[StoredResult]) -> list[StoredResult]:
    """Return results that no newer state of the same code has retired, oldest first.

    A state of the code is retired when another state of it began to submit after it had ended.
    States that submit at the same time, as two checkouts with one origin do, both count. So does
    what says nothing of its code, until it is forgotten by hand.
    """
    ordered = sorted(stored, key=lambda one: one.key)
    runs: dict[tuple[str, str], dict[tuple[object, str], _Run]] = defaultdict(dict)
    for one in ordered:
        code = str(one.client.get("code", ""))
        if one.origin and code:
            known = runs[one.op, one.origin]
            name = (one.client.get("id"), code)
            run = known.setdefault(name, _Run(code, one.time_ns, one.time_ns))
            run.last = one.time_ns
    live = {key: _live(list(found.values())) for key, found in runs.items()}
    return [
        one
        for one in ordered
        if not (one.origin and one.client.get("code"))
        or one.client["code"] in live[one.op, one.origin]
    ]


def newest_of_each(stored: Iterable[StoredResult]) -> list[StoredResult]:
    """Of each op, dtype, case and code, the newest result.

    The same case by other code is another result: one that passes must not hide one that fails.
    """
    found = {(one.op, one.dtype, one.seed, one.origin): one for one in stored}
    return list(found.values())


def _live(runs: Sequence[_Run]) -> set[str]:
    return {
        run.code
        for run in runs
        if not any(other.code != run.code and other.first > run.last for other in runs)
    }
