"""Values that a user's function returned for an input, stored in the case as text."""

from __future__ import annotations

import base64
import binascii
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from gpuemu_flow.model.errors import Problem, UsageError
from gpuemu_flow.model.types import DTYPES, GENERATE_FAILED_SLUG, Case, GeneratedValues, InputSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

MOST_BYTES = 4 << 20
"""Largest size of a case's generated inputs, which are part of messages and of cache keys."""
MOST_ANSWERED = 16 << 20
"""Maximum number of bytes in one answer; the rest is requested again."""


class GenerateError(UsageError):
    """Raised for an input without values, because its function failed or was not called."""


def encode_values(values: Array) -> GeneratedValues:
    import numpy as np  # noqa: PLC0415 - most who read cases make no values

    packed = zlib.compress(np.ascontiguousarray(values).tobytes(), 1)
    return GeneratedValues(base64.b64encode(packed).decode())


def decode_values(spec: InputSpec) -> Array:
    """Return the values that a function returned for an input. Raises GenerateError: There are no
    values, or they do not fit the input's shape and dtype."""
    given = spec.given
    if given is None:
        label = spec.rule.generate if spec.rule else ""
        text = f"{spec.name}: {label} was not called for this case"
        raise GenerateError(Problem(GENERATE_FAILED_SLUG, text))
    if given.slug:
        raise GenerateError(fault_of(given))
    count = math.prod(spec.shape) * DTYPES[spec.dtype].itemsize
    try:
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(base64.b64decode(given.data, validate=True), count + 1)
        whole = unpacker.eof
    except (binascii.Error, ValueError, zlib.error):
        data, whole = b"", False
    if len(data) != count or not whole:
        text = f"{spec.name}: its values are not those of {spec.dtype} {list(spec.shape)}"
        raise GenerateError(Problem(GENERATE_FAILED_SLUG, text, "make the case anew"))
    import numpy as np  # noqa: PLC0415

    from gpuemu_flow.numerics.dtypes import numpy_dtype  # noqa: PLC0415

    return np.frombuffer(bytearray(data), numpy_dtype(spec.dtype)).reshape(spec.shape)


def fault_of(given: GeneratedValues) -> Problem:
    """Return the problem that explains why a user's function returned no values."""
    return Problem(given.slug, given.message, given.hint, given.file, given.line)


def case_fault(case: Case) -> GeneratedValues | None:
    """Return the failure of a user's function for an input of the case; None if none failed."""
    for spec in case.inputs:
        if spec.is_generated and spec.given is not None and spec.given.slug:
            return spec.given
    return None


def is_made(case: Case) -> bool:
    return all(spec.has_values for spec in case.inputs)


def demand_made(case: Case) -> Case:
    """Return the case; raise GenerateError if an input has no values."""
    for spec in case.inputs:
        if not spec.has_values:
            decode_values(spec)
    return case


def unmade(case: Case) -> Case:
    """Return the case without the values and errors that the user's functions returned."""
    return replace(case, inputs=tuple(replace(spec, given=None) for spec in case.inputs))


def wanted_of(case: Case) -> tuple[InputSpec, ...]:
    """Return the inputs for which a user's function must still be called."""
    return tuple(spec for spec in case.inputs if spec.is_generated and spec.given is None)


def with_values(case: Case, found: Mapping[str, GeneratedValues]) -> Case:
    """Return the case with the given values of some inputs; `found` maps names to values."""
    inputs = tuple(
        replace(spec, given=found[spec.name]) if spec.name in found else spec
        for spec in case.inputs
    )
    return replace(case, inputs=inputs)


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
