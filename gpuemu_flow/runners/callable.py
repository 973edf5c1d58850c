"""Run programs that are Python functions; their signature decides how they are called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gpuemu_flow.in_place import with_changed_inputs
from gpuemu_flow.runners.api import OpError, Program, RunError
from gpuemu_flow.runners.argument_changes import ArgumentRecord
from gpuemu_flow.runners.arguments import arguments
from gpuemu_flow.runners.grouping import argument_names, changed_arguments, take_apart
from gpuemu_flow.runners.imports import load_function
from gpuemu_flow.runners.tensors import as_plain_array, name_values
from gpuemu_flow.runners.watch import Watch
from gpuemu_flow.types import Failure

Inputs = Mapping[str, np.ndarray]
_KEYWORDS, _MAPPING, _POSITIONS = "f(**inputs)", "f(inputs)", "f(*inputs)"
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def call_style(function: Callable[..., Any], program: Program) -> str:
    """Choose how to pass the inputs: by name, as one mapping, or in order.

    Raises OpError: ``op-signature``: the function can take the inputs in none of these ways.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # built into C without a signature, as numpy's ufuncs are
        return _POSITIONS
    kinds = {p.kind for p in parameters}
    required = [p for p in parameters if p.default is p.empty and p.kind in _BY_NAME]
    needed = [p.name for p in required if p.name not in program.kwargs]
    if any(p.kind is p.POSITIONAL_ONLY for p in parameters) or (
        inspect.Parameter.VAR_POSITIONAL in kinds and not needed
    ):
        return _POSITIONS
    takes_any = inspect.Parameter.VAR_KEYWORD in kinds
    names = {p.name for p in parameters if p.kind in _BY_NAME}
    taken = argument_names(program)
    unknown = [name for name in needed if name not in taken]
    missing = [name for name in taken if name not in names]
    if len(needed) == 1 and unknown:
        style = _MAPPING
    elif not unknown and (takes_any or not missing):
        style = _KEYWORDS
    else:
        raise OpError(
            RunError(
                "op-signature",
                f"{program.function}({', '.join(names_in_order(parameters))}) does not take the "
                f"inputs {', '.join(taken)}",
                "name its parameters as in `input_names`, or take one mapping of inputs",
                file=program.path,
                line=_first_line(function),
            )
        )
    refused = [] if takes_any else [name for name in program.kwargs if name not in names]
    if refused:
        raise OpError(
            RunError(
                "op-signature",
                f"{program.function} takes no keyword {', '.join(refused)}",
                "remove it from `kwargs`, or add the parameter",
                file=program.path,
                line=_first_line(function),
            )
        )
    return style


def names_in_order(parameters: list[inspect.Parameter]) -> list[str]:
    """Return the names of parameters in order, with ``*`` and ``**`` as in a signature."""
    marks: dict[Any, str] = {
        inspect.Parameter.VAR_POSITIONAL: "*",
        inspect.Parameter.VAR_KEYWORD: "**",
    }
    return [marks.get(p.kind, "") + p.name for p in parameters]


def _first_line(function: Callable[..., Any]) -> int:
    code = getattr(function, "__code__", None)
    return int(getattr(code, "co_firstlineno", 0))


class CallableRunner:
    """Calls one function in this process; arrays are passed without a copy, in any layout."""

    def __init__(self, program: Program, function: Callable[..., Any] | None = None) -> None:
        self._program = program
        self._function = function or load_function(program)
        self._style = call_style(self._function, program)
        self.hint = self._mapping_hint()
        self._changed: list[Failure] = []

    def _mapping_hint(self) -> str:
        names = argument_names(self._program)
        if self._style != _MAPPING or len(names) != 1:
            return ""
        return (
            f"no parameter is named {names[0]!r}, so the function got one mapping of inputs; "
            "rename its parameter to get the tensor, or set `input_names`"
        )

    def call(self, inputs: Inputs, watch: Watch) -> dict[str, np.ndarray]:
        """Call the function, and return its outputs by name.

        Raises OpError: The returned value cannot be converted to the outputs. Raises BaseException:
        Whatever the function raises.
        """
        function, kwargs = self._function, dict(self._program.kwargs)
        given = arguments(self._program, inputs)
        args: list[Any] = []
        if self._style == _KEYWORDS:
            kwargs = dict(**given, **kwargs)
        else:
            args = [given] if self._style == _MAPPING else list(given.values())
        record = ArgumentRecord(self._program, args, kwargs)
        with watch:
            returned = function(*args, **kwargs)
        self._changed = record.failures()
        take_apart(self._program, given, inputs)
        return self._named(returned, given)

    def _named(self, returned: Any, given: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return the outputs as arrays by name; see `_values`."""
        values = self._values(returned, given)
        return {name: as_plain_array(value, name) for name, value in values.items()}

    def _values(self, returned: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs by name, including the inputs that hold outputs after the call."""
        names = self._program.output_names
        changed = changed_arguments(self._program)
        return name_values(with_changed_inputs(returned, given, names, changed), names)

    def violations(self) -> Sequence[Failure]:
        """Return the changes that the call made to its arguments, such as to a tensor's shape.

        Changed elements of tensors are not included: `InputBuffers` finds these.
        """
        return self._changed
