"""Convert results to short JSON for messages between processes; most results have only figures."""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter

from gpuemu_flow.types import CheckResult, ErrorStats, Json, Verdict

_FIGURES = tuple(field.name for field in fields(ErrorStats))
_REMARKS = {field.name for field in fields(CheckResult)} - {"verdict", "stats"}
_read_figures = attrgetter(*_FIGURES)
_read_remarks = attrgetter(*sorted(_REMARKS))
_INDEX = _FIGURES.index("worst_index")
_TYPES = {int, float, tuple, type(None)}


def result_to_json(result: CheckResult) -> Json:
    """Convert a result without failures or other remarks to a list: its verdict and its figures.

    Any other result is converted by `CheckResult.to_json`, and so is a result with a figure that
    JSON cannot express, such as NaN.
    """
    figures = _read_figures(result.stats)
    for figure in figures:
        if type(figure) is float and figure - figure != 0.0:
            return result.to_json()
    return result.to_json() if any(_read_remarks(result)) else [result.verdict.value, *figures]


def result_from_json(data: Json) -> CheckResult:
    """Rebuild a result from the JSON that `result_to_json` returned.

    Raises
    ------
    Exception
        KeyError, TypeError or ValueError for data of another form.
    """
    if not isinstance(data, list):
        return CheckResult.from_json(data)
    verdict, *figures = data
    if len(figures) != len(_FIGURES):
        raise ValueError("another number of figures")
    if figures[_INDEX] is not None:
        figures[_INDEX] = tuple(figures[_INDEX])
    if not _TYPES.issuperset(map(type, figures)):
        raise ValueError("a figure that is no number")
    return CheckResult(Verdict(verdict), (), ErrorStats(*figures))
