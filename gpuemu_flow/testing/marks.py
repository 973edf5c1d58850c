"""Read and check the arguments of ``@pytest.mark.gpuemu``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from gpuemu_flow.errors import Problem, UsageError, did_you_mean
from gpuemu_flow.types import DTYPES, canonical_dtype

FIXTURE = "gpuemu_case"
MARK = "gpuemu"
PER = ("case", "op")
MAX_CASES = 100_000
MAX_SEED = (1 << 64) - 1
_KNOWN = ("op", "cases", "dtypes", "strategies", "layouts", "seed", "per")


@dataclass(frozen=True)
class MarkArguments:
    """The arguments of a mark.

    Attributes
    ----------
    op : str
    cases : int or None
        Cases per dtype; None for the configured number.
    dtypes, strategies, layouts : tuple of str
        Empty for the configured dtypes, strategies and layouts.
    seed : int or None
    per_op : bool
        True for one test that runs all cases of a dtype.
    """

    op: str
    cases: int | None = None
    dtypes: tuple[str, ...] = ()
    strategies: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()
    seed: int | None = None
    per_op: bool = False


def read_mark(mark: pytest.Mark) -> MarkArguments:
    """Return a mark's arguments.

    Raises
    ------
    UsageError
        ``pytest-bad-mark``, ``unknown-dtype``.
    """
    given = dict(mark.kwargs)
    if len(mark.args) > 1:
        raise bad_mark("it takes the op's name and keyword arguments")
    if mark.args:
        given.setdefault("op", mark.args[0])
    for name in given:
        if name not in _KNOWN:
            raise bad_mark(f"it has no argument {name!r}", did_you_mean(name, _KNOWN))
    op = given.get("op")
    if not isinstance(op, str) or not op:
        raise bad_mark("it names no op", '@pytest.mark.gpuemu("softmax")')
    per = given.get("per", "case")
    if per not in PER:
        raise bad_mark(f"per={per!r}", 'per="case" or per="op"')
    cases, seed = given.get("cases"), given.get("seed")
    return MarkArguments(
        op,
        None if cases is None else read_number("cases", cases, low=1, high=MAX_CASES),
        tuple(read_dtype(name) for name in _names("dtypes", given)),
        _names("strategies", given),
        _names("layouts", given),
        None if seed is None else read_number("seed", seed),
        per == "op",
    )


def bad_mark(message: str, hint: str = "") -> UsageError:
    """Return the error for a mark that cannot be read."""
    return UsageError(Problem("pytest-bad-mark", f"the gpuemu mark: {message}", hint))


def read_number(name: str, value: Any, *, low: int = 0, high: int = MAX_SEED) -> int:
    """Return `value`, from a mark or the command line, as an integer from `low` to `high`.

    Raises UsageError ``pytest-bad-number`` for any other value.
    """
    text = str(value)
    if isinstance(value, bool) or not text.isdecimal() or not low <= int(text) <= high:
        text = f"{name} must be an integer from {low} to {high}, not {value!r}"
        raise UsageError(Problem("pytest-bad-number", text))
    return int(text)


def _names(name: str, given: dict[str, Any]) -> tuple[str, ...]:
    value = given.get(name) or ()
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, Sequence) or not all(isinstance(item, str) for item in value):
        raise bad_mark(f"{name} must be a list of names")
    return tuple(value)


def read_dtype(name: str) -> str:
    """Return a canonical dtype name, or raise UsageError ``unknown-dtype``."""
    found = canonical_dtype(name)
    if found is None:
        hint = did_you_mean(name.lower(), tuple(DTYPES))
        raise UsageError(Problem("unknown-dtype", f"there is no dtype {name!r}", hint))
    return found
