"""Look up the cases of an op by number, in the order in which ``run`` and ``fuzz`` use them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import field

from gpuemu_flow.cases.plan import iterate_cases
from gpuemu_flow.config.model_ops import OpConfig
from gpuemu_flow.errors import Problem, UsageError
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import Case

MAX_SEQUENCES = 32
"""Maximum number of remembered sequences; others are planned again."""
MAX_INDEX = 200_000


@dataclass(frozen=True)
class CaseSequence:
    """The settings that, with the op's schema, decide the cases of one op and dtype."""

    dtype: str
    seed: int
    strategies: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()


@dataclass
class _Planned:
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
