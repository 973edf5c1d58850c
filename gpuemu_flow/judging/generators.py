"""Make an input's values with a user's function, in a separate worker.

The function is called twice, because it must return equal values for equal arguments. It receives,
by keyword, each of the following arguments that it names: ``seed``, ``rng`` (a numpy Generator of
that seed), ``case_seed`` (the same number for all inputs of a case), the input's ``name``,
``shape``, ``dtype`` and ``strategy``, the ``shapes`` of all inputs by name, and ``dims`` (the sizes
of all dims by name).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from msgspec import to_builtins

from gpuemu_flow.cases.generated_values import MOST_BYTES, encode_values
from gpuemu_flow.numerics.dtypes import element_name
from gpuemu_flow.numerics.rng import SeededRng
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.runners.api import OpError, Program, RunError
from gpuemu_flow.runners.diagnose import explain
from gpuemu_flow.runners.imports import load_function
from gpuemu_flow.runners.jobs import Evaluator
from gpuemu_flow.runners.tensors import as_plain_array
from gpuemu_flow.types import Json, Shape
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


@dataclass(frozen=True)
class GeneratorCall:
    """One input of one case whose values a user's function has to return.

    Attributes
    ----------
    name : str
        The input's name.
    position : int
        Index of the input among the op's inputs; it selects the random stream.
    shape, dtype, strategy
        The input's shape, dtype and strategy.
    seed : int
        The case's seed.
    shapes : mapping of str to shape
        Shapes of all inputs; the shape of an optional input that is None has only zeros.
    dims : mapping of str to int
    """

    name: str
    position: int
    shape: Shape
    dtype: str
    strategy: str
    seed: int
    shapes: Mapping[str, Shape]
    dims: Mapping[str, int]

    def to_json(self) -> dict[str, Json]:
        """Return the call as plain JSON; `from_json` is the inverse."""
        shapes = {name: list(shape) for name, shape in self.shapes.items()}
        return {**vars(self), "shape": list(self.shape), "shapes": shapes}

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> GeneratorCall:
        """Rebuild a call from the result of `to_json`."""
        shapes = {name: tuple(shape) for name, shape in data["shapes"].items()}
        return cls(**{**data, "shape": tuple(data["shape"]), "shapes": shapes})

    def arguments(self) -> dict[str, Any]:
        """Return arguments for one call, new ones each time, since the function may change them."""
        seed = SeededRng(self.seed).derive("data").derive(f"input_{self.position}").gen_u64()
        return {
            "seed": seed,
            "rng": np.random.Generator(np.random.PCG64(seed)),
            "case_seed": SeededRng(self.seed).derive("data").gen_u64(),
            "shape": tuple(self.shape),
            "dtype": self.dtype,
            "name": self.name,
            "shapes": dict(self.shapes),
            "dims": dict(self.dims),
            "strategy": self.strategy,
        }


def generate_all(payload: Json, evaluator: Evaluator) -> Json:
    """Make the calls listed in `payload`, in order, until the answers fill one message.

    Return the answers to the calls that were made; the others have to be requested again. Runs as a
    job of `jobs.run_job`.

    Raises
    ------
    BaseException
        The function cannot be loaded.
    """
    program = evaluator.program
    function = load_function(program)
    answers: list[Json] = []
    taken = 0
    for data in payload["calls"]:
        given = _answer(function, program, payload["label"], GeneratorCall.from_json(data))
        answers.append(to_builtins(given))
        taken += len(given.data)
        if taken > MOST_ANSWERED:
            break
    return answers


def _answer(
    function: Callable[..., Any], program: Program, label: str, call: GeneratorCall
) -> GeneratedValues:
    """Call the function twice; return the values, or an error if it failed or the values differ."""
    try:
        names = _names(function)
        first, second = (_called(function, call, names) for _ in range(2))
    except OpError as error:
        failed = error.error
        text = f"{call.name}: {label}: {failed.message}"
        return GeneratedValues(slug=failed.slug, message=text, hint=failed.hint)
    except BaseException as error:  # functions of the user's may raise anything
        failed = explain(error, program)
        text = f"{call.name}: {label}: {failed.message}"
        return GeneratedValues(
            "", GENERATE_FAILED_SLUG, text, failed.hint, failed.file, failed.line
        )
    if not (_fits(first, call) and first.nbytes <= MOST_BYTES):
        return _refused(label, call, first)
    if not _fits(second, call) or first.tobytes() != second.tobytes():
        text = f"{call.name}: {label} returned different values for equal arguments"
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
    given = call.arguments()
    returned = function(**{name: given[name] for name in names})
    try:
        return np.array(as_plain_array(returned, call.name))
    except OpError:
        kind = type(returned).__name__
        message = f"it returned a {kind}; an array of {call.dtype} {list(call.shape)} is asked for"
        raise _fault(GENERATE_RESULT_SLUG, message) from None


def _fits(array: np.ndarray, call: GeneratorCall) -> bool:
    return array.shape == call.shape and element_name(array.dtype) == call.dtype


def _refused(label: str, call: GeneratorCall, array: np.ndarray) -> GeneratedValues:
    asked = f"{call.dtype} {list(call.shape)}"
    if _fits(array, call):
        text = f"{call.name}: {label} returned {array.nbytes} bytes; {MOST_BYTES} are possible"
        hint = "smaller dims in the schema, or a kind of values in place of a function"
        return GeneratedValues(slug=GENERATE_RESULT_SLUG, message=text, hint=hint)
    text = f"{call.name}: {label} returned {array.dtype} {list(array.shape)}; {asked} is asked for"
    hint = "return an array of the `shape` and `dtype` that it is given"
    return GeneratedValues(slug=GENERATE_RESULT_SLUG, message=text, hint=hint)
