"""Call the user's functions that make inputs, and put the returned values into the cases.

The functions run in separate sandboxed workers, neither in this process nor in an op's worker. The
returned values, or the error, become part of the case, so that all its evaluations have the same
inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Event

import msgspec
from msgspec import to_builtins
from msgspec.structs import replace

from gpuemu_flow.cases.generated_values import (
    case_fault,
    decode_values,
    unmade,
    wanted_of,
    with_values,
)
from gpuemu_flow.errors import UsageError
from gpuemu_flow.judging.generators import MOST_ANSWERED, TARGET, GeneratorCall
from gpuemu_flow.observed import Observation
from gpuemu_flow.runners.api import MOST_TIMEOUTS, Program, RunError
from gpuemu_flow.runners.attempt import JobFailedError
from gpuemu_flow.runners.pool import OnObserved, Pool
from gpuemu_flow.types import Case, InputSpec, Json
from gpuemu_flow.value_rules import GENERATE_FAILED_SLUG, NOT_CALLED_SLUG, GeneratedValues

Generators = Mapping[str, Program]
"""Programs by the text that names them in the schema."""

SLOW = "reference-timeout"
LOADING = 10.0
"""Seconds for the start of a process and the imports of a function, added to the time limit."""
_TRANSIENT = (SLOW, "op-crashed", "op-out-of-memory", "op-broke-runner")
MOST_CALLS = 64


def with_generated(
    pool: Pool,
    generators: Generators,
    cases: Sequence[Case],
    *,
    cancel: Event | None = None,
    on_observed: OnObserved | None = None,
) -> list[Case]:
    """Return the cases, completed by the values of inputs that the user's functions make.

    If a function fails, crashes or hangs, its input gets the error in place of values.

    Raises CancelledRunError.
    """
    found: list[dict[str, GeneratedValues]] = [{} for _ in cases]
    wanted: dict[str, list[tuple[int, InputSpec]]] = {}
    for number, case in enumerate(cases):
        for spec in wanted_of(case):
            label = spec.rule.generate if spec.rule else ""
            wanted.setdefault(label, []).append((number, spec))
    for label, places in wanted.items():
        if label not in generators:
            continue  # the case itself reports that it was not called
        asker = _GeneratorCaller(pool, generators[label], label, cancel, on_observed)
        calls = [(unmade(cases[number]), spec) for number, spec in places]
        for (number, spec), given in zip(places, asker.ask_all(calls), strict=True):
            found[number][spec.name] = _checked(spec, given)
    return [with_values(case, given) for case, given in zip(cases, found, strict=True)]


def fit_together(cases: Sequence[Case]) -> bool:
    """Tell whether the cases can be sent together in one message.

    They can if no function of the user failed to make an input, and if the values that these
    functions made are small enough in total.
    """
    given = [spec.given for case in cases for spec in case.inputs if spec.given is not None]
    return not any(map(case_fault, cases)) and sum(len(g.data) for g in given) <= MOST_ANSWERED


def usable(samples: Sequence[Case]) -> list[Case]:
    """Return the samples whose inputs could all be made; if there are none, return all samples."""
    return [case for case in samples if case_fault(case) is None] or list(samples)


def _checked(spec: InputSpec, given: GeneratedValues) -> GeneratedValues:
    """Return the values that the user's process sent, or an error if they cannot be read."""
    if given.slug:
        return given
    try:
        decode_values(replace(spec, given=given))
    except UsageError as error:
        return GeneratedValues(slug=GENERATE_FAILED_SLUG, message=error.problems[0].message)
    return given


class _GeneratorCaller:
    """Calls one of the user's functions for many inputs.

    If a worker is lost, only one of the inputs is left without values. If the function exceeds its
    time limit for `MOST_TIMEOUTS` inputs in a row, it is not called for the remaining inputs.
    """

    def __init__(
        self,
        pool: Pool,
        program: Program,
        label: str,
        cancel: Event | None,
        on_observed: OnObserved | None,
    ) -> None:
        self._pool = pool
        self._program = program
        self._label = label
        self._cancel = cancel
        self._seen = Observation()
        self._tell = on_observed

    def ask_all(self, calls: Sequence[GeneratorCall]) -> list[GeneratedValues]:
        """Return the values for each call, in the order of the calls."""
        answers: list[GeneratedValues] = []
        slow = 0
        alone = False
        while len(answers) < len(calls):
            rest = calls[len(answers) :]
            call = rest[0]
            if slow >= MOST_TIMEOUTS:
                text = f"not called: {MOST_TIMEOUTS} cases in a row had no result in time"
                error = RunError(SLOW, text)
                answers += [self._failed(each, error, NOT_CALLED_SLUG) for each in rest]
                break
            try:
                answers += self._ask(rest[: 1 if alone else MOST_CALLS])
                slow = 0
            except JobFailedError as failed:
                if failed.error.slug not in _TRANSIENT:  # it cannot be loaded
                    answers += [self._failed(each, failed.error) for each in rest]
                elif alone or len(rest) == 1:
                    slow = slow + 1 if failed.error.slug == SLOW else 0
                    answers.append(self._failed(call, failed.error))
                elif failed.error.slug == SLOW:
                    slow += 1
                alone = True
        return answers

    def _ask(self, calls: Sequence[GeneratorCall]) -> list[GeneratedValues]:
        payload = {"label": self._label, "calls": to_builtins(calls)}
        answer = self._pool.call(
            self._program,
            TARGET,
            payload,
            seconds=self._program.timeout + LOADING,
            cancel=self._cancel,
            on_observed=self._tell,
        )
        found = _read(answer)
        if not 0 < len(found) <= len(calls):
            raise JobFailedError(RunError("op-broke-runner", "its worker gave no usable answer"))
        return found

    def _failed(
        self, call: GeneratorCall, error: RunError, slug: str = GENERATE_FAILED_SLUG
    ) -> GeneratedValues:
        text = f"{call[1].name}: {self._label}: {error.message}"
        return GeneratedValues("", slug, text, error.hint, error.file, error.line)


def _read(answer: Json) -> list[GeneratedValues]:
    """Parse a worker's answers; return an empty list if they are malformed."""
    try:
        return msgspec.convert(answer, list[GeneratedValues])
    except msgspec.ValidationError:
        return []
