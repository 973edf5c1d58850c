"""Build PyTorch modules that serve as programs, once for each dtype, with weights from a seed.

If op and reference are both modules, weights with the same name and shape get the same values in
both, in whatever order the modules create them. For this, each random weight is replaced by values
drawn from the seed and the weight's name and shape. Constant weights, such as a norm's weights of 1
and biases of 0, are replaced, too, since otherwise an op that ignores them would pass. All drawn
values are exact in float16 and bfloat16, so that op and reference have the same weights in any
dtype.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from gpuemu_flow.numerics.rng import SeededRng
from gpuemu_flow.runners.api import OpError, RunError
from gpuemu_flow.runners.float_dtype import float_of_call

_STEPS = 255
"""Largest integer factor of a weight; the other factor is a power of two."""
_RUNNING = ("running_mean", "running_var")
_OF_WEIGHTS = ("float64", "float32", "float16", "bfloat16")
_NARROW = 2
"""Minimum size of an element in bytes for computing in a dtype; narrower dtypes are only for
inputs."""


class ModuleCall(Protocol):
    """A function that calls a module with the inputs of its ``forward``."""

    learning: bool
    """True if parameters require gradients in the next calls."""
    parameters: dict[str, Any]
    """Parameters of the latest call that required gradients, by name."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module; the arguments are those of its ``forward``."""


def module_caller(torch: Any, made_by: Callable[..., Any], described: str) -> ModuleCall:
    """Return the function that calls a module with the inputs of its ``forward``.

    Raises OpError: ``op-signature``: the class does not make a module.
    """
    told = json.loads(described)
    caller = _Caller(
        torch, made_by, told["init"], int(told["seed"] or 0), shared=bool(told["shared"])
    )
    forward = caller.module(torch.float32).forward

    def call(*args: Any, **kwargs: Any) -> Any:
        dtype = _float_of(torch, (*args, *kwargs.values()))
        module = caller.module(dtype)
        # Parameters are the op's own arguments only if the reference has the same ones.
        learning = found.learning and told["shared"]
        found.parameters = caller.require_gradients(dtype) if learning else {}
        return module(*args, **kwargs)

    call.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    call.__code__ = call.__code__.replace(
        co_firstlineno=getattr(getattr(forward, "__code__", None), "co_firstlineno", 0)
    )
    found: Any = call
    found.learning, found.parameters = False, {}
    made: ModuleCall = found
    return made


class _Caller:
    """Makes modules of one `torch.nn.Module` class: one for each dtype of the calls."""

    def __init__(
        self, torch: Any, made_by: Callable[..., Any], init: Any, seed: int, *, shared: bool
    ) -> None:
        self._torch = torch
        self._made_by = made_by
        self._init = init
        self._seed = seed
        self._shared = shared
        self._known: dict[Any, tuple[Any, dict[str, Any]]] = {}
        self._frozen: frozenset[str] = frozenset()

    def module(self, dtype: Any) -> Any:
        """Return the module for a dtype, with its weights reset to their initial values."""
        if dtype not in self._known:
            module = self._construct(self._seed)
            if self._shared:
                self._draw(module, self._construct(self._seed + 1))
            self._frozen = frozenset(
                name for name, weight in module.named_parameters() if not weight.requires_grad
            )
            module = module.to(dtype).eval()
            state = {name: value.clone() for name, value in module.state_dict().items()}
            self._known[dtype] = module, state
        module, state = self._known[dtype]
        module.requires_grad_(False)
        for name, value in module.state_dict().items():
            if name in state:
                value.copy_(state[name])
        return module

    def require_gradients(self, dtype: Any) -> dict[str, Any]:
        """Make the parameters of the module for a dtype require gradients; return them by name.

        Parameters that the module itself froze stay frozen.
        """
        module, _ = self._known[dtype]
        found = {
            name: weight
            for name, weight in module.named_parameters()
            if name not in self._frozen and (weight.is_floating_point() or weight.is_complex())
        }
        for weight in found.values():
            weight.requires_grad_(True)
        return found

    def _construct(self, seed: int) -> Any:
        self._torch.default_generator.manual_seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)
        named = isinstance(self._init, Mapping)
        made = self._made_by(**self._init) if named else self._made_by(*self._init)
        if not isinstance(made, self._torch.nn.Module):
            name = getattr(self._made_by, "__name__", "the class")
            text = f"{name} makes a {type(made).__name__}, which is no torch.nn.Module"
            raise OpError(RunError("op-signature", text, "name a class of modules, or a function"))
        return made

    def _draw(self, module: Any, other: Any) -> None:
        """Replace the random and the constant weights of a module by weights drawn from the seed.

        `other` is the same module made with another seed. Weights that differ between the two
        modules are the random ones.
        """
        again = dict(_weights(other))
        with self._torch.no_grad():
            for name, weight in _weights(module):
                second = again.get(name)
                if second is None or not weight.is_floating_point() or not weight.numel():
                    continue
                mine = weight.detach().double().numpy()
                if not np.array_equal(mine, second.detach().double().numpy(), equal_nan=True):
                    drawn = _spread(weight.shape) * self._units(name, weight)
                elif float(mine.min()) == float(mine.max()):
                    drawn = _varied(float(mine.min()), self._units(name, weight))
                else:
                    continue
                weight.copy_(self._torch.from_numpy(drawn).bfloat16())

    def _units(self, name: str, weight: Any) -> np.ndarray:
        """Draw an array in the shape of a weight: multiples of 1/256 between -1 and 1.

        The values 0, -1 and 1 do not occur.
        """
        shape = tuple(weight.shape)
        digest = hashlib.sha256(f"{self._seed} {name} {shape}".encode()).digest()
        rng = SeededRng(int.from_bytes(digest[:8], "little"))
        steps = rng.ranges(weight.numel(), -_STEPS, _STEPS + 1)
        steps[steps == 0] = 1  # where |w| or relu(w) bends, several gradients are right
        return (steps / (_STEPS + 1)).reshape(shape)


def _weights(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield each parameter and each running statistic of a norm, with its name.

    A parameter that is shared under several names is yielded once.
    """
    yield from module.named_parameters()
    for name, buffer in module.named_buffers():
        if name.rpartition(".")[2] in _RUNNING:
            yield name, buffer


def _spread(shape: tuple[int, ...]) -> float:
    """Return the power of two that is nearest to 1 / sqrt(number of inputs of a weight)."""
    inputs = math.prod(shape[1:]) if len(shape) > 1 else math.prod(shape)
    return 2.0 ** -round(math.log2(max(inputs, 1)) / 2)


def _varied(value: float, units: np.ndarray) -> np.ndarray:
    if not math.isfinite(value):
        return np.full(units.shape, value)
    return units / 2 if value == 0 else value * (1 + units / 2)


def _float_of(torch: Any, given: tuple[Any, ...]) -> Any:
    """Return the dtype that a module's weights need for a call with the arguments `given`.

    This is the dtype of the first float tensor or, without a float tensor, the dtype of the case.
    If that dtype is unsuitable for weights, for example float8, the result is float32.
    """
    for value in given:
        if isinstance(value, Mapping):
            return _float_of(torch, tuple(value.values()))
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value.dtype if value.element_size() >= _NARROW else torch.float32
    own = float_of_call()
    return getattr(torch, own) if own in _OF_WEIGHTS else torch.float32
