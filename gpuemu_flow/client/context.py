"""``validate_op`` as a context manager, which judges an output when the ``with`` body ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from numpy.typing import NDArray

from gpuemu_flow.client import calls
from gpuemu_flow.client.api import Client
from gpuemu_flow.client.calls import Call, as_array, elements_changed
from gpuemu_flow.client.results import (
    ClientError,
    NoOutputError,
    ValidationError,
    ValidationResult,
    about_me,
)
from gpuemu_flow.model.errors import Problem
from gpuemu_flow.model.types import Json

SHOWN_FAILURES = 3
_UNCHANGING = (bool, int, float, complex, str, bytes)
_KEYS = ("inputs", "kwargs", "output", "result")


class InputCopies:
    """Copies of tensors, made before running an op that may change the tensors in place."""

    def __init__(self, inputs: Mapping[str, Any]) -> None:
        self._copies: dict[str, tuple[Any, NDArray[Any]]] = {}
        for name, tensor in inputs.items():
            if isinstance(tensor, _UNCHANGING):
                continue
            # What is no tensor is refused when the output is judged.
            with suppress(ClientError):
                copy = as_array(tensor, str(name), known=str).copy(order="K")
                self._copies[name] = tensor, copy

    def compare(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
        """Return the inputs' original values, and the number of changed elements by input name.

        An input without a copy is returned as it is now. The second mapping contains only inputs
        that changed.
        """
        given: dict[str, Any] = {}
        before: dict[str, NDArray[Any]] = {}
        after: dict[str, NDArray[Any]] = {}
        for name, tensor in inputs.items():
            known, copy = self._copies.get(name, (None, None))
            if copy is None or tensor is not known:
                given[name] = tensor
                continue
            given[name] = before[name] = copy
            after[name] = as_array(tensor, str(name), known=str)
        return given, elements_changed(before, after)


class ValidationContext:
    """Context of a validation; set the output as ``context.output`` or ``context["output"]``."""

    def __init__(self, inputs: Mapping[str, Any], kwargs: Mapping[str, Json]) -> None:
        self.inputs = dict(inputs)
        self.kwargs = dict(kwargs)
        self.output: Any = None
        self.result: ValidationResult | None = None
        self.copies = InputCopies(self.inputs)

    def set_output(self, output: Any) -> None:
        """Set the op's output."""
        self.output = output

    def __getitem__(self, key: str) -> Any:
        if key not in _KEYS:
            raise KeyError(key)
        return getattr(self, key)

    def __setitem__(self, key: str, value: Any) -> None:
        if key not in _KEYS:
            raise KeyError(f"{key!r}; a context has {', '.join(_KEYS)}")
        setattr(self, key, value)


@contextmanager
def validate_op(
    client_or_op: Client | str,
    op_name: str | None = None,
    /,
    inputs: Mapping[str, Any] | None = None,
    raise_on_failure: bool = True,
    **kwargs: Any,
) -> Iterator[ValidationContext]:
    """Judge the output that a ``with`` body sets: ``with validate_op("softmax", inputs=...)``.

    Raises ValidationError: The output did not pass. Raises NoOutputError: ``client-no-output``: the
    body set no output. Raises ClientError.
    """
    if isinstance(client_or_op, str):
        owner: Any = Client()
        name = client_or_op
        if op_name is not None:
            raise TypeError("validate_op takes a client and an op's name, or the name alone")
    else:
        owner = nullcontext(client_or_op)
        if op_name is None:
            raise TypeError("validate_op needs the op's name after the client")
        name = op_name
    context = ValidationContext(inputs or {}, kwargs)
    with owner as client:
        yield context
        if context.output is None:
            raise NoOutputError(
                Problem("client-no-output", f"no output of {name} was set", "call set_output")
            )
        context.result = client._do(submission(name, context, context.output))
    if raise_on_failure and not context.result.passed:
        raise failed(context.result)


def submission(op_name: str, context: ValidationContext, output: Any) -> Call[ValidationResult]:
    """Make the call that submits a context's output."""
    inputs, modified = context.copies.compare(context.inputs)
    kwargs = dict(context.kwargs)
    return calls.validate(
        op_name,
        inputs,
        output,
        kwargs,
        seed=kwargs.pop("seed", None),
        dtype=kwargs.pop("dtype", None),
        client=about_me(),
        modified=modified,
    )


def failed(result: ValidationResult) -> ValidationError:
    """Return the exception for a result that did not pass; its text lists the first reasons."""
    reasons = [failure.message for failure in result.failures[:SHOWN_FAILURES]]
    left = len(result.failures) - len(reasons)
    if left > 0:
        reasons.append(f"and {left} more")
    text = "; ".join(reasons) or result.verdict
    return ValidationError(f"{result.op_name} (seed {result.seed}): {text}", result)
