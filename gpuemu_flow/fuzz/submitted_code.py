"""Select submitted results that still count: newer code makes results of older code obsolete."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.store.result_records import StoredResult
from gpuemu_flow.types import BAD


@dataclass
class _Run:
    """The submissions that one process made with one state of its code.

    `code` is the digest of that state. `first` and `last` are the times, in ns, of the first and
    the last of these submissions.
    """

    code: str
    first: int
    last: int


def of_current_code(stored: Iterable[StoredResult]) -> list[StoredResult]:
    """Return the results whose code is not obsolete, oldest first.

    Each submission identifies the state of the code that its process ran. A state is obsolete if,
    after the last submission of the state, some process began to submit another state. Two
    processes that submit alternately, such as from two checkouts, therefore make neither state
    obsolete. Only states of the same op and origin are compared.

    Submissions that do not identify their code count until the user removes them by ``clean``.
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
    """Return the newest result for each op, dtype, case and origin; `stored` has the oldest first.

    The origin names the code that computed the output. A pass of one origin must not hide a failure
    of another, so both results are returned.

    If a client made the inputs of a case, up to two results are returned for the case: the newest
    failure, and the newest result that is no failure. An op that fails and later passes on the same
    inputs is not correct, so the pass must not hide the failure.
    """
    return list({_case(one): one for one in stored}.values())


def newest_judged_by(stored: Iterable[StoredResult], now: str) -> list[StoredResult]:
    """Return the newest results that were judged by `now`, chosen as in `newest_of_each`.

    A result that was judged differently, for example with another tolerance, is outdated and left
    out. An older result of the same case then takes its place. There is one exception: an outdated
    result that does not identify its code may come from other code than the older result does. In
    this case, the older result is left out, too, unless it is a failure.

    Parameters
    ----------
    stored : iterable of StoredResult
        Oldest first.
    now : str
        Digest of everything that decides a verdict at present.
    """
    found: dict[_Case, StoredResult] = {}
    for one in stored:
        case = _case(one)
        if one.judged_by == now:
            found[case] = one
        elif not (one.origin and one.client.get("code")):
            case = case._replace(failed=False)
            known = found.get(case)
            if known is not None and known.judged.verdict not in BAD:
                del found[case]
    return list(found.values())


class _Case(NamedTuple):
    """The key of a result; of the results with equal keys, only the newest counts."""

    op: str
    dtype: str
    seed: int
    origin: str
    failed: bool


def _case(one: StoredResult) -> _Case:
    failed = one.source == "validate" and one.judged.verdict in BAD
    return _Case(one.op, one.dtype, one.seed, one.origin, failed)


def _live(runs: Sequence[_Run]) -> set[str]:
    return {
        run.code
        for run in runs
        if not any(other.code != run.code and other.first > run.last for other in runs)
    }
