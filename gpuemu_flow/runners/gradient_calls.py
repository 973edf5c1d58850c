"""Handle a call with gradients in any framework: prepare arguments, collect the results."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from gpuemu_flow.numerics.contract import PARAMETERS, Mask, names_parameter
from gpuemu_flow.numerics.contract_views import WITH_GRADIENTS, mask_of, variant_name
from gpuemu_flow.numerics.gradients import gradient_name
from gpuemu_flow.runners.api import Gradients, OpError, Program, RunError
from gpuemu_flow.runners.callable import CallableRunner
from gpuemu_flow.runners.grouping import argument_names
from gpuemu_flow.runners.tensors import as_plain_array
from gpuemu_flow.runners.watch import Watch

Inputs = Mapping[str, np.ndarray]


class GradientCall:
    """One call of a program with gradients: the wanted gradients, and later the results.

    Parameters
    ----------
    program : Program
    wanted : Gradients
    inputs : mapping of str to ndarray

    Attributes
    ----------
    wanted : Gradients
    inputs : mapping of str to ndarray
    """

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
    """Calls a function of a framework that can differentiate it.

    Attributes
    ----------
    hint : str
        Text that may explain an exception of the latest call.
    """

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
