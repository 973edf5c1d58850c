"""The interface of framework adapters, the outcome of a check, and functions that call ops."""

from __future__ import annotations

import base64
import importlib
import importlib.util
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
from msgspec import field
from numpy.typing import NDArray

from gpuemu_flow.client.calls import check_tolerances
from gpuemu_flow.client.results import Record
from gpuemu_flow.model.errors import Problem, UsageError
from gpuemu_flow.model.types import Json
from gpuemu_flow.numerics.dtypes import to_float64
from gpuemu_flow.wire.tensors import decode_tensor, encode_tensor

Array = NDArray[Any]
Arrays = Mapping[str, Array]
Inputs = Mapping[str, Any] | Sequence[Any]

PLAIN = (bool, int, float, str)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def require(package: str, extra: str) -> Any:
    """Import and return an installed package.

    Raises
    ------
    UsageError
        ``framework-missing``.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UsageError(
            Problem(
                "framework-missing",
                f"{package} cannot be imported: {error}",
                f"pip install 'gpuemu-flow[{extra}]'",
            )
        ) from None


class CheckOutcome(Record, frozen=True, eq=False):
    """The outcome of a check; it is true if the check passed, and is also a mapping.

    Attributes
    ----------
    passed : bool
    message : str
        Reason for a failure; for a pass, a description of the check.
    max_diff : float
        Largest absolute difference seen.
    details : dict
    seed : int
        The case's seed, in fuzzing.
    """

    passed: bool = True
    message: str = ""
    max_diff: float = 0.0
    details: dict[str, Json] = field(default_factory=dict)
    seed: int = 0

    def __bool__(self) -> bool:
        return self.passed


def named(inputs: Inputs) -> dict[str, Any]:
    """Return the inputs by name; the members of a sequence are named ``0``, ``1`` and so on."""
    if isinstance(inputs, Mapping):
        return dict(inputs)
    return {str(position): value for position, value in enumerate(inputs)}


def caller(function: Callable[..., Any], inputs: Inputs) -> Callable[[Mapping[str, Any]], Any]:
    """Wrap a function of any signature as a function of one mapping of tensors.

    The first of these rules that applies decides how the mapping's tensors are passed to
    `function`:

    - in order, if `inputs` is a sequence;
    - in order, if the signature is unknown, or has ``*args`` and no named parameter;
    - by name, if the function has parameters of all names in `inputs`, or ``**kwargs``;
    - as one mapping, if the function's only required parameter has a name that is not in `inputs`;
    - in order, in all other cases.

    Python numbers and strings are always passed as they are in `inputs`, even if the mapping of a
    call has other values for them.
    """
    given = named(inputs)
    plain = {name for name, value in given.items() if isinstance(value, PLAIN)}
    hand_over = _hand_over(function, inputs)

    def call(values: Mapping[str, Any]) -> Any:
        return hand_over({name: given[name] if name in plain else values[name] for name in given})

    return call


def _hand_over(function: Callable[..., Any], inputs: Inputs) -> Callable[[dict[str, Any]], Any]:
    def in_order(values: dict[str, Any]) -> Any:
        return function(*values.values())

    if not isinstance(inputs, Mapping):
        return in_order
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return in_order
    names = {p.name for p in parameters if p.kind in _BY_NAME}
    if not names and any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return in_order
    if any(p.kind is p.VAR_KEYWORD for p in parameters) or names >= set(inputs):
        # By position where that is equivalent: TensorFlow's custom gradients ignore keywords.
        first = takewhile(
            lambda p: p.kind is p.POSITIONAL_OR_KEYWORD and p.name in inputs, parameters
        )
        leading = [p.name for p in first]
        return lambda values: function(
            *(values[name] for name in leading),
            **{name: value for name, value in values.items() if name not in leading},
        )
    required = [p for p in parameters if p.default is p.empty and p.kind in _BY_NAME]
    if len(required) == 1 and required[0].name not in inputs:
        return function
    return in_order


def outputs_of(returned: Any) -> list[Any]:
    """Return the tensors that an op returned (one, a sequence or a mapping) as a list."""
    if isinstance(returned, Mapping):
        return list(returned.values())
    return list(returned) if isinstance(returned, (tuple, list)) else [returned]


class FrameworkAdapter(ABC):
    """The tensors and gradients of one framework.

    Attributes
    ----------
    name, package, extra : str
        Names of the framework, of the package to import, and of the extra of gpuemu-flow that
        installs the package.
    mutable : bool
        True if an op can change the tensors that `from_numpy` makes.
    """

    mutable = False
    name = "unknown"
    package = ""
    extra = ""

    @property
    def module(self) -> Any:
        """Return the framework's module; raise UsageError ``framework-missing`` without it."""
        return require(self.package, self.extra)

    def is_available(self) -> bool:
        """Tell whether the framework is installed."""
        return importlib.util.find_spec(self.package) is not None

    def get_framework_name(self) -> str:
        """Return the name of the framework, such as ``pytorch``."""
        return self.name

    @abstractmethod
    def to_numpy(self, tensor: Any) -> Array:
        """Return a tensor's values as an array on the CPU, outside of any gradient graph.

        A bfloat16 tensor becomes an array of the dtype of ml_dtypes.
        """

    @abstractmethod
    def from_numpy(self, array: Array, like: Any = None) -> Any:
        """Copy an array to a tensor, with the dtype of `like` if it is given.

        `like` is a tensor or the name of a dtype. In PyTorch, the new tensor is also on the device
        of the tensor `like`.
        """

    @abstractmethod
    def get_dtype_name(self, tensor: Any) -> str:
        """Return the canonical name of a tensor's dtype, such as ``bfloat16``."""

    @abstractmethod
    def requires_grad(self, tensor: Any, requires: bool | None = None) -> Any:
        """Read or set whether a tensor requires gradients.

        If `requires` is None, return the present setting. Otherwise, return the tensor with the
        setting `requires`.
        """

    @abstractmethod
    def compute_gradient(self, *args: Any, **kwargs: Any) -> Any:
        """Compute gradients by the framework's own means; the adapters define the parameters."""

    @abstractmethod
    def pullback(
        self, function: Callable[[Mapping[str, Any]], Any], arrays: Arrays, names: Sequence[str]
    ) -> tuple[list[Array], Callable[[list[Array]], dict[str, Array]]]:
        """Return a function's outputs, and a function that turns their cotangents into gradients.

        Parameters
        ----------
        function : callable
            A function of one mapping of this framework's tensors.
        arrays : mapping of str to ndarray
            Values and dtypes of the inputs.
        names : sequence of str
            Inputs to differentiate with respect to.
        """

    def to_tensor_data(self, tensor: Any) -> dict[str, Json]:
        """Return a tensor as the protocol's messages contain it, with the data as base64 text."""
        array = np.ascontiguousarray(self.to_numpy(tensor))
        sent = encode_tensor(array)
        return {**sent, "data": base64.b64encode(array.tobytes()).decode("ascii")}

    def from_tensor_data(self, data: Mapping[str, Json], like: Any = None) -> Any:
        """Return the tensor that `to_tensor_data` encoded; raise WireError for anything else."""
        array = decode_tensor(dict(data), "tensor")
        return self.from_numpy(np.array(array), like)

    def evaluate(self, function: Callable[[Mapping[str, Any]], Any], arrays: Arrays) -> list[Array]:
        """Call a function on tensors made from arrays; return its outputs as arrays."""
        return to_arrays(self, function(to_tensors(self, arrays)))

    def arrays(self, inputs: Inputs) -> dict[str, Array]:
        """Convert the tensors among the inputs to arrays, by name; leave out other inputs."""
        return {
            name: self.to_numpy(value)
            for name, value in named(inputs).items()
            if not isinstance(value, PLAIN)
        }


BaseAdapter = FrameworkAdapter
"""The documented name."""


def to_tensors(adapter: FrameworkAdapter, arrays: Arrays) -> dict[str, Any]:
    """Copy arrays to tensors of a framework."""
    return {name: adapter.from_numpy(array) for name, array in arrays.items()}


def to_arrays(adapter: FrameworkAdapter, returned: Any) -> list[Array]:
    """Convert what an op returned (one tensor, a sequence or a mapping) to arrays."""
    return [adapter.to_numpy(output) for output in outputs_of(returned)]


def outcome_of(what: str, check: Callable[[], CheckOutcome]) -> CheckOutcome:
    try:
        return check()
    except Exception as error:
        return CheckOutcome(False, f"{what}: {type(error).__name__}: {error}", float("inf"))


def close(actual: Array, expected: Array, atol: float, rtol: float) -> tuple[bool, float]:
    """Tell whether all errors are within ``atol + rtol * |expected|``, and return the largest.

    NaN equals NaN. If the shapes differ, the largest error is infinite.
    """
    a, e = to_float64(np.asarray(actual)), to_float64(np.asarray(expected))
    if a.shape != e.shape:
        return False, float("inf")
    with np.errstate(invalid="ignore"):
        same = np.isclose(a, e, rtol=rtol, atol=atol, equal_nan=True)
        difference = np.where((a == e) | (np.isnan(a) & np.isnan(e)), 0.0, np.abs(a - e))
    worst = float(np.nan_to_num(difference, nan=np.inf, posinf=np.inf).max(initial=0.0))
    return bool(same.all()), worst


def agree(
    actual: Sequence[Array], expected: Sequence[Array], atol: float, rtol: float, what: str
) -> CheckOutcome:
    """Compare all outputs of an op by `close`; `what` begins the outcome's message."""
    check_tolerances(atol, rtol)
    if len(actual) != len(expected):
        return CheckOutcome(False, f"{what}: {len(actual)} outputs instead of {len(expected)}")
    worst = 0.0
    for number, (a, e) in enumerate(zip(actual, expected, strict=True)):
        if a.shape != e.shape:
            shapes = f"shape {list(a.shape)} instead of {list(e.shape)}"
            return CheckOutcome(False, f"{what}: output {number} has {shapes}", float("inf"))
        same, difference = close(a, e, atol, rtol)
        worst = max(worst, difference)
        if not same:
            message = f"{what}: output {number} differs by up to {difference:.3g}"
            return CheckOutcome(False, message, difference)
    if not any(array.size for array in actual):
        return CheckOutcome(False, f"{what}: no verdict: the outputs hold no element")
    return CheckOutcome(True, f"{what}: {len(actual)} outputs agree", worst)
