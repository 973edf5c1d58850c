"""``validate_op`` as a context manager: compute inside it; the output is judged at its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from numpy.typing import NDArray

from gpuemu_flow.client import calls
from gpuemu_flow.client.api import Client
from gpuemu_flow.client.arrays import as_array, elements_changed
from gpuemu_flow.client.calls import Call
from gpuemu_flow.client.errors import ClientError, NoOutputError, ValidationError
from gpuemu_flow.client.identity import about_me, code_of_caller
from gpuemu_flow.client.results import ValidationResult
from gpuemu_flow.errors import Problem
from gpuemu_flow.types import Json

SHOWN_FAILURES = 3
_UNCHANGING = (bool, int, float, complex, str, bytes)
_KEYS = ("inputs", "kwargs", "output", "result")


class KeptInputs:
    """Copies of tensors, made before an op runs that may change them in place."""

    def __init__(self, inputs: Mapping[str, Any]) -> None:
        self._kept: dict[str, tuple[Any, NDArray[Any]]] = {}
        for name, tensor in inputs.items():
            if isinstance(tensor, _UNCHANGING):
                continue
            # What is no tensor is refused when the output is judged.
            with suppress(ClientError):
                copy = as_array(tensor, str(name), known=str).copy(order="K")
                self._kept[name] = tensor, copy

    def compare(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
        """Return the inputs as the op was given them, and how many elements of each it changed.

        Inputs of which there is no copy are returned as they are.
        """
        given: dict[str, Any] = {}
        before: dict[str, NDArray[Any]] = {}
        after: dict[str, NDArray[Any]] = {}
        for name, tensor in inputs.items():
            known, copy = self._kept.get(name, (None, None))
            if copy is None or tensor is not known:
                given[name] = tensor
                continue
            given[name] = before[name] = copy
            after[name] = as_array(tensor, str(name), known=str)
        return given, elements_changed(before, after)


class ValidationContext:
    """Context of a validation; set the output as ``context.output`` or ``context["output"]``.

    Attributes
    ----------
    inputs : dict of str to tensor
        The reference is run on copies of these tensors, made when the context was entered, so that
        it sees what the op saw if the body changes a tensor in place. Inputs that the body puts
        here are taken as they are when the context is left.
    kwargs : dict
        For the reference; ``atol``, ``rtol`` and ``precision`` say how to judge.
    output : tensor, or mapping of name to tensor
        The output; None until the body sets it.
    result : ValidationResult or None
        Set when the context has been left.
    """

    def __init__(self, inputs: Mapping[str, Any], kwargs: Mapping[str, Json]) -> None:
        self.inputs = dict(inputs)
        self.kwargs = dict(kwargs)
        self.output: Any = None
        self.result: ValidationResult | None = None
        self.kept = KeptInputs(self.inputs)

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
    """Judge the output that the body sets: ``validate_op("softmax", inputs={"x": x})``.

    Parameters
    ----------
    client_or_op : Client or str
        A client and then the op's name; or the name alone, for the workspace of the current folder.
    inputs : mapping of name to tensor
        The body may change them in place if the op's `mutates` names them; any other change is a
        failure, ``InputModified``. More may be put into the context's `inputs`.
    raise_on_failure : bool
        False: look at the context's `result` yourself.
    **kwargs
        As in `Client.validate_op`: for the reference, or ``atol``, ``rtol``, ``precision``,
        ``seed``, ``dtype``.

    Raises
    ------
    ValidationError
        The output did not pass.
    NoOutputError
        ``client-no-output``: the body set no output.
    ClientError
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
    """Make the call that judges an output of the body of a context."""
    inputs, modified = context.kept.compare(context.inputs)
    kwargs = dict(context.kwargs)
    return calls.validate(
        op_name,
        inputs,
        output,
        kwargs,
        seed=kwargs.pop("seed", None),
        dtype=kwargs.pop("dtype", None),
        client={**about_me(), **code_of_caller()},
        modified=modified,
    )


def failed(result: ValidationResult) -> ValidationError:
    """Return the exception for a result that did not pass; its text names the first reasons."""
    reasons = [failure.message for failure in result.failures[:SHOWN_FAILURES]]
    left = len(result.failures) - len(reasons)
    if left > 0:
        reasons.append(f"and {left} more")
    text = "; ".join(reasons) or result.verdict
    return ValidationError(f"{result.op_name} (seed {result.seed}): {text}", result)
