"""The cases of a fuzz run, which depend on the seed but not on the number of threads."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice

from msgspec import Struct, field
from msgspec.structs import replace

from gpuemu_flow.cases.op_schema import OpSchema, with_shapes
from gpuemu_flow.cases.plan import iterate_cases, plan_cases
from gpuemu_flow.config.model_ops import OpConfig
from gpuemu_flow.fuzz.subjects import OpSubject
from gpuemu_flow.model.errors import Problem, UsageError
from gpuemu_flow.model.types import Case, Shape


class CaseSource:
    """Takes cases from the streams in rotation, numbers them, and hands them out to threads.

    The time limit counts from the beginning, but for `start_up` seconds in which nothing is judged.
    """

    def __init__(
        self,
        streams: Sequence[Iterator[Case]],
        *,
        iterations: int | None,
        time_limit: float | None,
        start_up: float = 0.0,
    ) -> None:
        self._lock = threading.Lock()
        numbered = ((n, which, case) for n, (which, case) in enumerate(_in_turns(streams)))
        self._cases = numbered if iterations is None else islice(numbered, iterations)
        self._limit = time_limit
        self._deadline = None if time_limit is None else time.monotonic() + time_limit + start_up
        self._stopped = False

    def next(self) -> tuple[int, int, Case] | None:
        """Return the next case as (number, index of its stream, case); None if none is left."""
        with self._lock:
            late = self._deadline is not None and time.monotonic() >= self._deadline
            if self._stopped or late:
                return None
            return next(self._cases, None)

    def started(self) -> None:
        """Count the time limit from now on, if it did not count yet: a case has been judged."""
        with self._lock:
            if self._limit is not None and self._deadline is not None:
                self._deadline = min(self._deadline, time.monotonic() + self._limit)
                self._limit = None

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


# Look up the cases of an op by number, in the order in which ``run`` and ``fuzz`` use them.


MAX_SEQUENCES = 32
"""Maximum number of remembered sequences; others are planned again."""
MAX_INDEX = 200_000


class CaseSequence(Struct, frozen=True):
    """The settings that, with the op's schema, decide the cases of one op and dtype."""

    dtype: str
    seed: int
    strategies: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()


class _Planned(Struct):
    """The cases of a sequence that have been planned so far, and an iterator for more."""

    more: Iterator[Case]
    cases: list[Case] = field(default_factory=list)


class PlannedCases:
    """Finds cases by op, sequence and number. Thread-safe."""

    def __init__(self) -> None:
        self._planned: OrderedDict[tuple[str, str, CaseSequence], _Planned] = OrderedDict()
        self._lock = threading.Lock()

    def case(self, op: OpConfig, sequence: CaseSequence, index: int) -> Case:
        """Return the case at `index` in a sequence of an op's cases.

        Raises UsageError: ``unknown-dtype``, ``unknown-strategy``, ``unknown-layout``, ``case-out-
        of-range``.
        """
        if not 0 <= index <= MAX_INDEX:
            text = f"there is no case {index} of {op.name}; they go up to {MAX_INDEX}"
            raise UsageError(Problem("case-out-of-range", text))
        own = repr((op.schema, op.strategies, op.layouts))
        with self._lock:
            planned = self._planned.get((op.name, own, sequence))
            if planned is None:
                planned = self._planned[op.name, own, sequence] = _Planned(
                    iterate_cases(
                        op.schema,
                        seed=sequence.seed,
                        dtype=sequence.dtype,
                        strategies=sequence.strategies or op.strategies,
                        layouts=sequence.layouts or op.layouts,
                    )
                )
                while len(self._planned) > MAX_SEQUENCES:
                    self._planned.popitem(last=False)
            else:
                self._planned.move_to_end((op.name, own, sequence))
            while len(planned.cases) <= index:
                planned.cases.append(next(planned.more))
            return planned.cases[index]
