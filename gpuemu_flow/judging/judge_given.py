"""Judge outputs that were computed elsewhere: many cases in one message to the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.judging.input_errors import input_error
from gpuemu_flow.judging.judge_requests import Setup, forget_prepared, post
from gpuemu_flow.judging.verdicts import run_error_result, with_violations
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.runners.api import OpError, RunError
from gpuemu_flow.runners.attempt import MALFORMED, Attempt, WorkerClient
from gpuemu_flow.runners.tensors import as_plain_array, demand_bools
from gpuemu_flow.types import Case, CheckResult, Failure, FailureKind, Json

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class GivenCase:
    """A case whose inputs and outputs are given."""

    case: Case
    inputs: Arrays
    outputs: Arrays
    violations: Sequence[Failure] = ()

    def form(self) -> tuple[object, ...]:
        """Return a key that is equal for cases whose tensors can be stacked."""
        return tuple(
            [
                (kind, name, array.shape, array.dtype)
                for kind, arrays in (("inputs", self.inputs), ("outputs", self.outputs))
                for name, array in arrays.items()
            ]
        )

    @property
    def in_order(self) -> bool:
        """Tell whether all tensors are in C order, so that stacking keeps their layout."""
        arrays = (*self.inputs.values(), *self.outputs.values())
        return all(array.flags.c_contiguous for array in arrays)


class GivenBatch:
    """A group of given cases, some of which are judged together by one request."""

    def __init__(self, setup: Setup, given: Sequence[GivenCase]) -> None:
        self.given = given
        self.results: list[CheckResult | None] = [None] * len(given)
        self.refused: dict[int, RunError] = {}
        self.plain: dict[int, GivenCase] = {}
        for number, one in enumerate(given):
            error = input_error(one.case)
            if error is not None:
                self.results[number] = run_error_result(FailureKind.GENERATOR, error)
                continue
            try:
                self.plain[number] = plain = _as_plain(one)
                demand_bools(plain.outputs)
            except OpError as refused:
                self.refused[number] = refused.error
                self.plain.pop(number, None)
        self.together = [number for number, one in self.plain.items() if one.in_order]
        cases = [self.plain[number] for number in self.together]
        self.request = GivenRequest(setup, cases) if cases else None
        self.attempt: Attempt | None = None

    @property
    def is_answered(self) -> bool:
        """Tell whether the reference's worker has answered the request."""
        return self.attempt is not None and self.attempt.outcome.ok

    @property
    def has_all(self) -> bool:
        """Tell whether the worker's answer, which is not read yet, has a result for every case."""
        together = len(self.together) == len(self.given)
        request = self.request
        return request is not None and together and self.is_answered and request.has_all

    def read(self) -> dict[str, Json]:
        """Set `results` from the worker's answer, and return the answer's facts; see `Setup`.

        Reading takes a while; the worker can process the next request meanwhile.

        Raises Exception: One of `MALFORMED`; no result is set.
        """
        assert self.request is not None  # noqa: S101 - it was answered
        found = self.request.results()
        for number, result in zip(self.together, found, strict=True):
            if result is not None:
                self.results[number] = with_violations(result, self.given[number].violations)
        return self.request.facts


def _as_plain(one: GivenCase) -> GivenCase:
    """Return a case with its outputs as plain arrays in C order; raise OpError if impossible."""
    outputs = {
        name: np.asarray(as_plain_array(array, name), order="C")
        for name, array in one.outputs.items()
    }
    return replace(one, outputs=outputs)


class GivenRequest:
    """A request, sent in one message, to judge given outputs; see `runners.work.Work`."""

    def __init__(self, setup: Setup, given: Sequence[GivenCase]) -> None:
        self._found: list[tuple[list[int], list[Json]]] = []
        self.facts: dict[str, Json] = {}
        self._setup = setup
        self._given = given
        self._index = given[0].case.index
        forms: dict[tuple[object, ...], list[int]] = {}
        for number, one in enumerate(given):
            forms.setdefault(one.form(), []).append(number)
        self._groups = list(forms.values())
        self._arrays: dict[str, NDArray[Any]] = {}
        self._message = [self._group(numbers, self._arrays) for numbers in self._groups]

    def begin(self, worker_client: WorkerClient) -> Attempt | None:
        """Send all cases to the worker; see `Work.begin`."""
        forget_prepared(worker_client)
        message = {"method": "given", "index": self._index, "groups": self._message}
        return post(worker_client, message, self._setup, self._arrays, cases=len(self._given))

    def _group(self, numbers: Sequence[int], arrays: dict[str, NDArray[Any]]) -> dict[str, Json]:
        """Stack the tensors of cases with equal shapes, since each tensor in a message
        costs time.
        """
        some = [self._given[number] for number in numbers]

        def stacked(of: Sequence[Arrays]) -> dict[str, str]:
            places = {}
            for name in of[0]:
                place = places[name] = str(len(arrays))
                first = of[0][name]
                arrays[place] = (
                    first[np.newaxis] if len(of) == 1 else np.stack([one[name] for one in of])
                )
            return places

        return {
            "cases": [one.case.to_json() for one in some],
            "inputs": stacked([one.inputs for one in some]),
            "outputs": stacked([one.outputs for one in some]),
        }

    def finish(self, worker_client: WorkerClient) -> Attempt:
        """Wait for the worker's answer, and store it unread; see `Work.finish`."""
        attempt, answer = worker_client.collect(self._index)
        if attempt.outcome.ok:
            try:
                self._take(answer["result"])
            except MALFORMED:
                return worker_client.broken(self._index)
        return attempt

    def _take(self, answer: Mapping[str, Json]) -> None:
        self.facts = {key: answer["facts"][key] for key in self._setup.facts}
        self._found = [
            (numbers, [result for _, result in zip(numbers, found, strict=True)])
            for numbers, found in zip(self._groups, answer["groups"], strict=True)
        ]

    @property
    def has_all(self) -> bool:
        """Tell whether the answer that `finish` stored has a result for every case."""
        return all(result is not None for _, found in self._found for result in found)

    def results(self) -> list[CheckResult | None]:
        """Return the results in the answer that `finish` stored.

        Raises Exception: One of `MALFORMED`, if the answer does not consist of results.
        """
        results: list[CheckResult | None] = [None] * len(self._given)
        for numbers, found in self._found:
            for number, result in zip(numbers, found, strict=True):
                results[number] = None if result is None else CheckResult.from_json(result)
        return results
