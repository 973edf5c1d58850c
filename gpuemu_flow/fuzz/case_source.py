"""The cases of a fuzz run, which depend on the seed but not on the number of threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from gpuemu_flow.cases.op_schema import OpSchema, with_shapes
from gpuemu_flow.cases.plan import iterate_cases, plan_cases
from gpuemu_flow.errors import Problem, UsageError
from gpuemu_flow.fuzz.subjects import OpSubject
from gpuemu_flow.types import Case, Shape


class CaseSource:
    """Takes cases from the streams in rotation, numbers them, and hands them out to threads."""

    def __init__(
        self,
        streams: Sequence[Iterator[Case]],
        *,
        iterations: int | None,
        time_limit: float | None,
    ) -> None:
        self._lock = threading.Lock()
        numbered = ((n, which, case) for n, (which, case) in enumerate(_in_turns(streams)))
        self._cases = numbered if iterations is None else islice(numbered, iterations)
        self._deadline = None if time_limit is None else time.monotonic() + time_limit
        self._stopped = False

    def next(self) -> tuple[int, int, Case] | None:
        """Return the next case as (number, index of its stream, case); None if none is left."""
        with self._lock:
            late = self._deadline is not None and time.monotonic() >= self._deadline
            if self._stopped or late:
                return None
            return next(self._cases, None)

    @property
    def stopped(self) -> bool:
        """Tell whether `stop` was called."""
        return self._stopped

    def stop(self) -> None:
        """Stop handing out cases."""
        with self._lock:
            self._stopped = True


def _in_turns(streams: Sequence[Iterator[Case]]) -> Iterator[tuple[int, Case]]:
    while True:
        for which, stream in enumerate(streams):
            yield which, next(stream)


def case_stream(
    subject: OpSubject,
    *,
    seed: int,
    shapes: Sequence[Shape] = (),
    strategies: Sequence[str] = (),
    layouts: Sequence[str] = (),
) -> Iterator[Case]:
    """Yield cases of one op and dtype without end; if several shapes are given, use them in turn.

    Raises UsageError: ``bad-shape``, ``unknown-strategy``, ``unknown-layout``: raised immediately,
    not at the first case.
    """
    schemas: list[OpSchema] = [subject.schema]
    if shapes:
        try:
            schemas = with_shapes(subject.schema, shapes)
        except ValueError as error:
            raise UsageError(Problem("bad-shape", str(error))) from None

    def stream(schema: OpSchema) -> Iterator[Case]:
        what = (strategies or subject.strategies, layouts or subject.layouts)
        dtype = subject.subject.dtype
        plan_cases(schema, seed=seed, dtype=dtype, count=1, strategies=what[0], layouts=what[1])
        return iterate_cases(schema, seed=seed, dtype=dtype, strategies=what[0], layouts=what[1])

    return _indexed([stream(schema) for schema in schemas])


def _indexed(streams: Sequence[Iterator[Case]]) -> Iterator[Case]:
    """Yield cases from the streams in rotation, numbered consecutively."""
    for index, (_, case) in enumerate(_in_turns(streams)):
        yield case if case.index == index else replace(case, index=index)
