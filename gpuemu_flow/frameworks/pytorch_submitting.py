"""The context of ``validate_pytorch``, which can submit gradients together with the outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from gpuemu_flow.errors import Problem, UsageError, did_you_mean
from gpuemu_flow.frameworks.base import Array, Inputs, named
from gpuemu_flow.frameworks.contexts import GradientContext, plain_context, validating
from gpuemu_flow.frameworks.pytorch_adapter import ADAPTER
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, dtype_name
from gpuemu_flow.numerics.gradients import cotangent, gradient_name

_plain = plain_context(ADAPTER)


@contextmanager
def context(
    client: Any, op_name: str, inputs: Inputs, options: Mapping[str, Any]
) -> Iterator[GradientContext]:
    """Yield the context of one call of `validate_pytorch`; `options` are its other arguments."""
    given = dict(options)
    gradients = given.pop("gradients", False)
    if gradients is False:
        with _plain(client, op_name, inputs, given) as made:
            yield made
        return
    if given.get("ref_fn") is not None:
        text = "gradients = ... is what a daemon is to judge, and there is none beside ref_fn"
        hint = "check_backward=True judges by the autograd of ref_fn"
        raise UsageError(Problem("validate-arguments", text, hint))
    leaves = _leaves(inputs, None if gradients is True else tuple(gradients))
    backward = bool(given.pop("check_backward", False))

    def submitted(context: GradientContext) -> dict[str, Array]:
        return _with_gradients(op_name, context.output, context.inputs, list(leaves))

    with validating(
        ADAPTER, client, op_name, {**named(inputs), **leaves}, backward, given, submitted
    ) as made:
        yield made


def _leaves(inputs: Inputs, by: Sequence[str] | None) -> dict[str, Any]:
    """Return float inputs as tensors that require gradients, by name.

    These are the inputs that `by` names, or all if it is None.
    """
    arrays = ADAPTER.arrays(inputs)
    floats = [name for name, array in arrays.items() if dtype_name(array.dtype) in FLOAT_LIMITS]
    for name in () if by is None else by:
        if name not in floats:
            text = f"gradients names {name!r}, which is no input of floats"
            raise UsageError(Problem("validate-arguments", text, did_you_mean(name, floats)))
    torch, found = ADAPTER.module, {}
    for name in floats if by is None else by:
        tensor = named(inputs)[name]
        if not isinstance(tensor, torch.Tensor):
            tensor = ADAPTER.from_numpy(arrays[name])
        wanted = tensor.requires_grad
        found[name] = tensor if wanted else tensor.detach().clone().requires_grad_(True)
    return found


def _with_gradients(
    op_name: str, output: Any, inputs: Mapping[str, Any], names: Sequence[str]
) -> dict[str, Array]:
    """Return the outputs by name, and their gradients for the inputs that `names` lists."""
    outputs = dict(output) if isinstance(output, Mapping) else {"output": output}
    torch = ADAPTER.module
    if not any(isinstance(y, torch.Tensor) and y.requires_grad for y in outputs.values()):
        text = f"the output of {op_name} depends on no input that requires a gradient"
        hint = "compute it from context.inputs, whose tensors require gradients"
        raise UsageError(Problem("gradient-missing", text, hint))
    arrays = ADAPTER.arrays(inputs)
    cotangents = [cotangent(name, tuple(y.shape), None, arrays) for name, y in outputs.items()]
    pulled = ADAPTER.pull(list(outputs.values()), [inputs[name] for name in names], cotangents)
    found = {name: ADAPTER.to_numpy(y) for name, y in outputs.items()}
    for name, gradient in zip(names, pulled, strict=True):
        found[gradient_name(name)] = gradient.astype(arrays[name].dtype)
    return found
