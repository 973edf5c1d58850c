"""Remember the newest cases of a client, so that it can submit outputs by op and seed only."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from gpuemu_flow.client.errors import ClientError
from gpuemu_flow.client.results import TestCase
from gpuemu_flow.errors import Problem

REMEMBERED_CASES = 256


class IssuedCases:
    """The newest cases of a client, by op and seed.

    Thread-safe without a lock, which could remain held after a fork: each step is one operation of
    a dict.
    """

    def __init__(self) -> None:
        self._cases: OrderedDict[tuple[str, int], TestCase] = OrderedDict()

    def remember(self, op_name: str, cases: Sequence[TestCase]) -> None:
        """Store cases, and drop the oldest cases above the limit."""
        for case in cases:
            self._cases[op_name, case.seed] = case
            if len(self._cases) > REMEMBERED_CASES:
                self._cases.popitem(last=False)

    def inputs_of(self, op_name: str, seed: int) -> dict[str, Any]:
        """Return the inputs of a case.

        Raises
        ------
        ClientError
            ``client-unknown-case`` if the case was never stored, or has been dropped.
        """
        case = self._cases.get((op_name, seed))
        if case is None:
            raise ClientError(
                Problem(
                    "client-unknown-case",
                    f"this client was given no case of {op_name} with the seed {seed} lately",
                    "give the inputs too: submit_output(op, inputs, output, seed)",
                )
            )
        return case.inputs
