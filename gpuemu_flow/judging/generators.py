"""Make an input's values with a user's function, in a separate worker.

The function is called twice, because it must return equal values for equal arguments. It receives,
by keyword, each of the following arguments that it names: ``seed``, ``rng`` (a numpy Generator of
that seed), ``case_seed`` (the same number for all inputs of a case), the input's ``name``,
``shape``, ``dtype`` and ``strategy``, the ``shapes`` of all inputs by name, and ``dims`` (the sizes
of all dims by name).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import convert, to_builtins

from gpuemu_flow.cases.generated_values import MOST_BYTES, encode_values
from gpuemu_flow.numerics.dtypes import element_name
from gpuemu_flow.numerics.rng import SeededRng
from gpuemu_flow.runners.api import OpError, Program, RunError
from gpuemu_flow.runners.diagnose import explain
from gpuemu_flow.runners.imports import load_function
from gpuemu_flow.runners.jobs import Evaluator
from gpuemu_flow.runners.tensors import as_plain_array
from gpuemu_flow.types import Case, InputSpec, Json
from gpuemu_flow.value_rules import (
    GENERATE_DIFFERS_SLUG,
    GENERATE_FAILED_SLUG,
    GENERATE_RESULT_SLUG,
    GeneratedValues,
)

TARGET = "gpuemu_flow.judging.generators:generate_all"
ARGUMENTS = (
    "seed", "rng", "case_seed", "shape", "dtype", "name", "shapes", "dims", "strategy"
)  # fmt: skip
MOST_ANSWERED = 16 << 20
"""Maximum number of bytes in one answer; the rest is requested again."""

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
