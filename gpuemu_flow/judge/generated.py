"""Call the user's functions that make inputs, and put the returned values into the cases.

The functions run in separate sandboxed workers, neither in this process nor in an op's worker. The
returned values, or the error, become part of the case, so that all its evaluations have the same
inputs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from threading import Event
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec import to_builtins
from msgspec.structs import replace

from gpuemu_flow.cases.generated_values import (
    MOST_ANSWERED,
    MOST_BYTES,
    decode_values,
    encode_values,
    unmade,
    wanted_of,
    with_values,
)
from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.errors import UsageError
from gpuemu_flow.model.types import (
    GENERATE_DIFFERS_SLUG,
    GENERATE_FAILED_SLUG,
    GENERATE_RESULT_SLUG,
    NOT_CALLED_SLUG,
    SCALAR,
    Case,
    GeneratedValues,
    InputSpec,
    Json,
    Observation,
)
from gpuemu_flow.numerics.dtypes import element_name
from gpuemu_flow.numerics.rng import SeededRng
from gpuemu_flow.workers.api import MOST_TIMEOUTS, OpError, Program, RunError
from gpuemu_flow.workers.attempt import JobFailedError
from gpuemu_flow.workers.diagnose import explain
from gpuemu_flow.workers.imports import load_function
from gpuemu_flow.workers.pool import OnObserved, Pool
from gpuemu_flow.workers.tensors import as_plain_array

if TYPE_CHECKING:
    from gpuemu_flow.workers.jobs import Evaluator

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
        return convert(answer, list[GeneratedValues])
    except msgspec.ValidationError:
        return []


# Make an input's values with a user's function, in a separate worker.


TARGET = "gpuemu_flow.judge.generated:generate_all"
ARGUMENTS = (
    "seed", "rng", "case_seed", "shape", "dtype", "name", "shapes", "dims", "strategy"
)  # fmt: skip

_SIGNATURE = f"arguments that a generator may name: {', '.join(ARGUMENTS)}"


GeneratorCall = tuple[Case, InputSpec]
"""A case and one of its inputs, whose values a user's function has to return."""


def _arguments(call: GeneratorCall) -> dict[str, Any]:
    """Return arguments for one call, new ones each time, since the function may change them."""
    case, spec = call
    data = SeededRng(case.seed).derive("data")
    seed = data.derive(f"input_{spec.position}").gen_u64()
    return {
        "seed": seed,
        "rng": np.random.Generator(np.random.PCG64(seed)),
        "case_seed": data.gen_u64(),
        "shape": spec.shape,
        "dtype": spec.dtype,
        "name": spec.name,
        "shapes": {each.name: each.shape for each in case.inputs},
        "dims": dict(case.dims),
        "strategy": spec.strategy,
    }


def generate_all(payload: Json, evaluator: Evaluator) -> Json:
    """Make the calls listed in `payload`, in order, until the answers fill one message.

    Return the answers to the calls that were made; the others have to be requested again. Runs as a
    job of `jobs.run_job`.

    Raises BaseException: The function cannot be loaded.
    """
    program = evaluator.program
    function = load_function(program)
    answers: list[Json] = []
    taken = 0
    for call in convert(payload["calls"], list[GeneratorCall]):
        given = _answer(function, program, payload["label"], call)
        answers.append(to_builtins(given))
        taken += len(given.data)
        if taken > MOST_ANSWERED:
            break
    return answers


def _answer(
    function: Callable[..., Any], program: Program, label: str, call: GeneratorCall
) -> GeneratedValues:
    """Call the function twice; return the values, or an error if it failed or the values differ."""
    name = call[1].name
    try:
        names = _names(function)
        first, second = (_called(function, call, names) for _ in range(2))
    except OpError as error:
        failed = error.error
        text = f"{name}: {label}: {failed.message}"
        return GeneratedValues(slug=failed.slug, message=text, hint=failed.hint)
    except BaseException as error:  # functions of the user's may raise anything
        failed = explain(error, program)
        text = f"{name}: {label}: {failed.message}"
        return GeneratedValues(
            "", GENERATE_FAILED_SLUG, text, failed.hint, failed.file, failed.line
        )
    if not (_fits(first, call[1]) and first.nbytes <= MOST_BYTES):
        return _refused(label, call[1], first)
    if not _fits(second, call[1]) or first.tobytes() != second.tobytes():
        text = f"{name}: {label} returned different values for equal arguments"
        hint = "draw from `rng` or `seed` alone, and keep nothing between calls"
        return GeneratedValues(slug=GENERATE_DIFFERS_SLUG, message=text, hint=hint)
    return encode_values(first)


def _names(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the arguments to pass to a function; raise OpError if it needs others."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of a function that is not written in Python
        return ARGUMENTS
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return ARGUMENTS
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    for each in parameters:
        known = each.name in ARGUMENTS and each.kind in plain
        if not known and each.default is each.empty and each.kind is not each.VAR_POSITIONAL:
            raise _fault(
                GENERATE_FAILED_SLUG, f"it has the argument {each.name!r}, which nobody gives"
            )
    return tuple(each.name for each in parameters if each.name in ARGUMENTS and each.kind in plain)


def _fault(slug: str, message: str) -> OpError:
    return OpError(RunError(slug, message, _SIGNATURE))


def _called(
    function: Callable[..., Any], call: GeneratorCall, names: tuple[str, ...]
) -> np.ndarray:
    """Call the function, and return a copy of its result; raise OpError if that is no array."""
    given, spec = _arguments(call), call[1]
    returned = function(**{name: given[name] for name in names})
    if spec.rule and spec.rule.kind == SCALAR and isinstance(returned, (int, float)):
        returned = np.array(returned, spec.dtype)
    try:
        return np.array(as_plain_array(returned, spec.name))
    except OpError:
        kind = type(returned).__name__
        message = f"it returned a {kind}; an array of {spec.dtype} {list(spec.shape)} is asked for"
        raise _fault(GENERATE_RESULT_SLUG, message) from None


def _fits(array: np.ndarray, spec: InputSpec) -> bool:
    return array.shape == spec.shape and element_name(array.dtype) == spec.dtype


def _refused(label: str, spec: InputSpec, array: np.ndarray) -> GeneratedValues:
    asked = f"{spec.dtype} {list(spec.shape)}"
    if _fits(array, spec):
        text = f"{spec.name}: {label} returned {array.nbytes} bytes; {MOST_BYTES} are possible"
        hint = "smaller dims in the schema, or a kind of values in place of a function"
        return GeneratedValues(slug=GENERATE_RESULT_SLUG, message=text, hint=hint)
    text = f"{spec.name}: {label} returned {array.dtype} {list(array.shape)}; {asked} is asked for"
    hint = "return an array of the `shape` and `dtype` that it is given"
    return GeneratedValues(slug=GENERATE_RESULT_SLUG, message=text, hint=hint)
