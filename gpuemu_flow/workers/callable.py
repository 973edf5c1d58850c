"""Run programs that are Python functions; their signature decides how they are called."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from gpuemu_flow.model.in_place import with_changed_inputs
from gpuemu_flow.model.types import Failure
from gpuemu_flow.numerics.contract import PARAMETERS, Mask, names_parameter
from gpuemu_flow.numerics.contract_views import (
    IN_PLACE,
    WITH_GRADIENTS,
    after_call,
    mask_of,
    variant_name,
)
from gpuemu_flow.numerics.gradients import gradient_name
from gpuemu_flow.workers.api import Gradients, OpError, Program, RunError
from gpuemu_flow.workers.arguments import (
    ArgumentRecord,
    argument_names,
    arguments,
    changed_arguments,
    take_apart,
)
from gpuemu_flow.workers.channel import Watch
from gpuemu_flow.workers.diagnose import shown_path
from gpuemu_flow.workers.imports import load_function
from gpuemu_flow.workers.tensors import as_plain_array, name_values

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
                file=shown_path(program.path, program.root),
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
                file=shown_path(program.path, program.root),
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
        arrays = {name: as_plain_array(value, name) for name, value in values.items()}
        taken = {id(value) for value in values.values()}
        left = {
            name: as_plain_array(given[name], name)
            for name in self._program.leaves
            if name in given and id(given[name]) not in taken
        }
        return {**arrays, **as_left(left, arrays)}

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


def as_left(
    left: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the content of inputs after a call, as outputs besides those that the op returned.

    An input of an output's name is a variant of this output, if the two differ.
    """
    return {
        variant_name(name, IN_PLACE) if name in outputs else after_call(name): array
        for name, array in left.items()
        if name not in outputs or outputs[name].tobytes() != array.tobytes()
    }


# Handle a call with gradients in any framework: prepare arguments, collect the results.


class GradientCall:
    """One call of a program with gradients: the wanted gradients, and later the results."""

    def __init__(self, program: Program, wanted: Gradients, inputs: Inputs) -> None:
        self.wanted = wanted
        self.inputs = inputs
        self._program = program
        self._random = random.getstate(), np.random.get_state()
        self._plain: dict[str, np.ndarray] = {}
        self._outputs: Mapping[str, Any] = {}
        self._gradients: Mapping[str, Any] = {}

    @property
    def hint(self) -> str:
        """Return a hint for an exception that the call raises."""
        names = ", ".join(map(gradient_name, self.wanted.inputs))
        return f"raised with inputs that require gradients, as `gradients` asks for {names}"

    def named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return a call's arguments by name, whether passed by name, in order or as a mapping."""
        if len(args) == 1 and isinstance(args[0], Mapping):
            return dict(args[0])
        names = argument_names(self._program) if self._program.groups else tuple(self.inputs)
        if args:
            return dict(zip(names, args, strict=True))
        return {name: kwargs[name] for name in names}

    @staticmethod
    def replaced(
        args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of a call, with new values in the same places.

        `args` and `kwargs` are the old arguments. `tensors` maps the names that `named` returned
        for them to the new values, in the same order.
        """
        if len(args) == 1 and isinstance(args[0], Mapping):
            return [tensors], dict(kwargs)
        if args:
            return list(tensors.values()), dict(kwargs)
        return [], {**kwargs, **tensors}

    def demand(self, *, arrives: bool) -> None:
        """Raise OpError if the gradients of a reference reach none of its inputs.

        `arrives` is True if any gradient reaches an input. Without this check, an op whose
        gradients are all 0 would pass. For an op, this does nothing: gradients that reach no input
        count as 0, and are compared.
        """
        if not arrives and not self.wanted.plain:
            names = ", ".join(map(repr, self.wanted.inputs))
            raise OpError(
                RunError(
                    "reference-no-gradient",
                    f"no gradient of the reference arrives at {names}: it is detached, or has no "
                    "float output",
                    "compute it with the framework's own functions, or leave out `gradients`",
                )
            )

    def demand_parameters(self, found: Collection[str]) -> None:
        """Raise OpError if a reference lacks a parameter whose gradient is requested.

        If an op lacks a parameter, the parameter's gradient counts as 0. OpError is raised for an
        op only if all requested gradients are those of parameters, and the op has no parameter.
        `found` holds the names of the parameters that the program has.
        """
        wanted = [name for name in self.wanted.inputs if names_parameter(name)]
        missing = [name for name in wanted if name != PARAMETERS and name not in found]
        if self.wanted.plain or PARAMETERS in wanted:
            missing = []
        if missing or (wanted and len(wanted) == len(self.wanted.inputs) and not found):
            names = ", ".join(map(repr, missing or wanted))
            raise OpError(
                RunError(
                    "gradient-no-parameter",
                    f"`gradients` asks for {names}, and the module has no such parameter that "
                    "requires gradients",
                    "name parameters as `named_parameters` does, behind `self.`",
                )
            )

    def draw_again(self) -> None:
        """Reset the global random generators to their state at the beginning of the call."""
        python, numpy = self._random
        random.setstate(python)
        np.random.set_state(numpy)

    def took(self, outputs: Mapping[str, Any], gradients: Mapping[str, Any]) -> None:
        """Store the outputs and gradients that the call returned."""
        self._outputs, self._gradients = outputs, gradients

    def keep(self, plain: Mapping[str, np.ndarray]) -> None:
        """Store a copy of `plain`, the outputs of an earlier call without gradients."""
        self._plain = {name: array.copy(order="K") for name, array in plain.items()}

    def outputs(self) -> dict[str, np.ndarray]:
        """Return the outputs and the gradients by name.

        If the program was also called without gradients, the outputs are those of that call. An
        output of the call with gradients is then added as a variant if it differs from the output
        of the same name, or if the program is not deterministic.
        """
        mine = {name: as_plain_array(value, name) for name, value in self._outputs.items()}
        found = {name: as_plain_array(value, name) for name, value in self._gradients.items()}
        if not self.wanted.plain:
            return {**mine, **found}
        others = {}
        for name, array in mine.items():
            own = self._plain.get(name)
            counting = self._counting(name, array, own)
            # If calls may differ, it is always added: repeated calls must have the same outputs.
            if not self._program.deterministic or own is None or _differs(counting, own):
                others[variant_name(name, WITH_GRADIENTS)] = counting
        return {**self._plain, **found, **others}

    def _counting(self, name: str, array: np.ndarray, own: np.ndarray | None) -> np.ndarray:
        """Return `array`, but with the values from `own` for elements that are not compared.

        `own` is the same output in the call without gradients.
        """
        mask = self.wanted.masks.get(name)
        if mask is None or own is None or own.shape != array.shape or own.dtype != array.dtype:
            return array
        test = Mask(**{**mask, "axes": tuple(mask["axes"])})
        return np.where(mask_of(test, self.inputs, array.shape), array, own)


def _differs(one: np.ndarray, other: np.ndarray) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return True
    return one.tobytes() != other.tobytes()


class GradientRunner(CallableRunner):
    """Calls a function of a framework that can differentiate it."""

    def __init__(self, program: Program, function: Callable[..., Any]) -> None:
        super().__init__(program, function)
        self._usual_hint = self.hint
        self._with_gradients: GradientCall | None = None

    def call(self, inputs: Inputs, watch: Watch) -> dict[str, np.ndarray]:
        """Return the outputs and the gradients by name; see `CallableRunner.call`."""
        wanted, self.hint = self._program.gradients, self._usual_hint
        call = None if wanted is None else GradientCall(self._program, wanted, inputs)
        self._with_gradients = call
        return super().call(inputs, watch)

    def _named(self, returned: Any, given: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return the outputs and the gradients by name.

        `returned` is the function's result. `given` holds the function's arguments by name, some of
        which may hold outputs after the call.
        """
        call = self._with_gradients
        return super()._named(returned, given) if call is None else call.outputs()

    def _plain(self, returned: Any, given: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return the outputs of a call without gradients, by name.

        The parameters are those of `_named`.
        """
        return super()._named(returned, given)
