"""PyTorch: tensors on any device, autograd checks, validation of backward passes, fuzzing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gpuemu_flow.errors import Problem, UsageError
from gpuemu_flow.frameworks.backward import compare_gradients, why
from gpuemu_flow.frameworks.base import (
    CheckOutcome,
    Inputs,
    agree,
    caller,
    named,
)
from gpuemu_flow.frameworks.contexts import GradientContext, dispatch
from gpuemu_flow.frameworks.fuzz import FuzzOutcome, fuzz_with_checks
from gpuemu_flow.frameworks.gradients import ATOL, EPS, MAX_ELEMENTS, RTOL, GradientChecker
from gpuemu_flow.frameworks.local_auto import checked_precision
from gpuemu_flow.frameworks.pytorch_adapter import ADAPTER, PyTorchAdapter
from gpuemu_flow.frameworks.pytorch_submitting import context as _context
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, dtype_name
from gpuemu_flow.numerics.gradients import cotangent, gradient_name
from gpuemu_flow.numerics.operand import INPUT

__all__ = [
    "PyTorchAdapter",
    "check_autograd",
    "check_backward",
    "fuzz_pytorch_op",
    "validate_custom_autograd_function",
    "validate_pytorch",
    "with_gradients",
]


def check_autograd(
    op: Callable[..., Any],
    inputs: Inputs,
    eps: float = EPS,
    atol: float = ATOL,
    rtol: float = RTOL,
    check_inputs: Sequence[str] | None = None,
    *,
    max_elements: int = MAX_ELEMENTS,
) -> CheckOutcome:
    """Compare an op's autograd with central differences, in float64; see `GradientChecker`."""
    checker = GradientChecker(ADAPTER, eps, atol, rtol, max_elements=max_elements)
    return checker.check(op, inputs, check_inputs)


def validate_custom_autograd_function(
    func_class: Any,
    inputs: Inputs,
    eps: float = EPS,
    atol: float = ATOL,
    rtol: float = RTOL,
    *,
    reference: Callable[..., Any] | None = None,
) -> CheckOutcome:
    """Check a ``torch.autograd.Function``: its forward pass, and its gradients in float64.

    Parameters
    ----------
    reference : callable, optional
        A function of the same inputs; ``forward`` must agree with its result, within the same
        tolerance.

    Returns
    -------
    CheckOutcome
        With ``details``: ``forward_ok`` and ``backward_ok``.
    """
    in_order = list(named(inputs).values())
    arrays = ADAPTER.arrays(in_order)
    details: dict[str, Any] = {"forward_ok": True, "backward_ok": False}
    try:
        run = caller(func_class.apply, in_order)
        outputs = ADAPTER.evaluate(run, arrays)
        if reference is not None:
            expected = ADAPTER.evaluate(caller(reference, in_order), arrays)
            forward = agree(outputs, expected, atol, rtol, "forward")
            details["forward_ok"] = forward.passed
            if not forward.passed:
                return CheckOutcome(False, forward.message, forward.max_diff, details)
    except Exception as error:
        details["forward_ok"] = False
        return CheckOutcome(False, f"forward: {type(error).__name__}: {error}", details=details)
    try:
        backward = check_autograd(func_class.apply, in_order, eps, atol, rtol)
    except Exception as error:
        return CheckOutcome(False, f"backward: {type(error).__name__}: {error}", details=details)
    details["backward_ok"] = backward.passed
    return CheckOutcome(backward.passed, backward.message, backward.max_diff, details)


def check_backward(
    op: Callable[..., Any],
    inputs: Inputs,
    reference: Callable[..., Any],
    atol: float | None = None,
    rtol: float | None = None,
    *,
    precision: str = INPUT,
) -> CheckOutcome:
    """Compare an op's gradients, in its own dtype, with those of a reference in float64.

    Parameters
    ----------
    op, reference : callable
        Functions of this framework's tensors.
    atol, rtol : float, optional
        Used instead of the tolerance measured on the reference.
    precision : str
        Which values a correct op may round: ``tensor-core``, ``float32`` or ``input``; see
        ``docs/oracle.md``.
    """
    arrays = ADAPTER.arrays(inputs)
    floats = [n for n, a in arrays.items() if dtype_name(a.dtype) in FLOAT_LIMITS]
    outputs, pull = ADAPTER.pullback(caller(op, inputs), arrays, floats)
    rng = np.random.default_rng(1)
    cotangents = [rng.uniform(0.5, 1.5, output.shape) for output in outputs]
    # Rounded first, so that op and reference get the very same cotangents.
    cotangents = [
        c.astype(o.dtype).astype(np.float64) for c, o in zip(cotangents, outputs, strict=True)
    ]
    found = compare_gradients(
        ADAPTER, reference, inputs, pull(cotangents), arrays=arrays,
        cotangents=lambda _: cotangents, op_name=getattr(op, "__name__", "op"),
        atol=atol, rtol=rtol, precision=checked_precision(precision) or INPUT,
    )  # fmt: skip
    worst = max((result.max_diff for result in found.values()), default=0.0)
    for name, result in found.items():
        if not result.passed:
            return CheckOutcome(False, f"gradient by {name}: {why(result)}", worst)
    return CheckOutcome(bool(found), f"gradients by {', '.join(floats)} agree", worst)


def with_gradients(
    op: Callable[..., Any],
    inputs: Inputs,
    by: Sequence[str] | None = None,
    outputs: Sequence[str] = ("output",),
) -> dict[str, Any]:
    """Return outputs and gradients by name, to submit for an op that has ``gradients``.

    The gradients are those of the outputs times fixed cotangents, as in the daemon. Do not use this
    function if an output is not compared element by element, or if its setting ``only`` restricts
    the comparison to some elements: for such outputs, the daemon uses other cotangents.

    Parameters
    ----------
    op : callable
        A function of this framework's tensors.
    by : sequence of str, optional
        The inputs that ``gradients`` names; by default all inputs with a float dtype.
    outputs : sequence of str
        Names of the outputs in ``gpuemu.toml``, in their order.

    Raises
    ------
    UsageError
        ``gradient-outputs``: the op returns another number of outputs than there are names.
    """
    arrays = ADAPTER.arrays(inputs)
    names = [n for n, a in arrays.items() if dtype_name(a.dtype) in FLOAT_LIMITS]
    names = [name for name in names if by is None or name in by]
    returned, pull = ADAPTER.pullback(caller(op, inputs), arrays, names)
    if len(returned) != len(outputs):
        text = f"the op returns {len(returned)} outputs, and `outputs` names {len(outputs)}"
        hint = "name each, in the order of the op's outputs in gpuemu.toml"
        raise UsageError(Problem("gradient-outputs", text, hint))
    named_outputs = dict(zip(outputs, returned, strict=True))
    pulled = pull([cotangent(name, y.shape, None, arrays) for name, y in named_outputs.items()])
    found = {gradient_name(name): pulled[name].astype(arrays[name].dtype) for name in names}
    return {**named_outputs, **found}


def validate_pytorch(*args: Any, **kwargs: Any) -> Any:
    """Validate the output of an op and, on request, its backward pass.

    ``with validate_pytorch(client, op_name, inputs, check_backward=False) as context`` judges the
    value that its body assigns to ``context["output"]`` against the daemon's reference. Without a
    client, it makes one for the workspace of the current folder. With `ref_fn`, no daemon is
    needed. ``validate_pytorch(op_fn, ref_fn, inputs)`` runs both functions and judges at once.

    Parameters
    ----------
    client : Client, optional
    op_name : str
    inputs : mapping of name to tensor
    check_backward : bool
        True to judge also the gradient for each input that requires gradients. Each gradient is
        compared with autograd of `ref_fn` in float64 or, without `ref_fn`, judged by the
        workspace's op ``<op>_grad_<input>``.
    gradients : bool or sequence of str
        For an op that has ``gradients`` in ``gpuemu.toml``: submit the gradients for all float
        inputs (True), or for the named inputs, with the output. The body computes the output from
        ``context.inputs``, whose tensors require gradients. Several outputs are assigned as a
        mapping. As in `with_gradients`, all outputs have to be compared element by element.
    ref_fn : callable, optional
        A function of tensors, for outputs and gradients.
    atol, rtol : float, optional
        Used instead of the configured tolerance, or of the tolerance measured on `ref_fn`.
    precision : str, optional
        Which values a correct op may round: ``tensor-core``, ``float32`` or ``input``; see
        ``docs/oracle.md``. The default is the configured precision; with `ref_fn` it is ``input``,
        because frameworks compute in this way on a CPU.
    raise_on_failure : bool
        Default true.

    Raises
    ------
    ValidationError
        The output or a gradient did not pass, or has no verdict.
    UsageError
        ``gradient-missing``: the output does not depend on ``context.inputs``.
    """
    return dispatch(_context, _fill, args, kwargs)


def _fill(context: GradientContext, op_fn: Callable[..., Any], inputs: Inputs, _: bool) -> None:
    context.set_output(caller(op_fn, inputs)(named(inputs)))


def fuzz_pytorch_op(
    client: Any,
    op_name: str,
    run_op: Callable[..., Any] | None = None,
    iterations: int = 100,
    seed: int | None = None,
    fail_fast: bool = False,
    check_backward: bool = False,
    atol: float | None = None,
    rtol: float | None = None,
    *,
    op_fn: Callable[..., Any] | None = None,
    ref_fn: Callable[..., Any] | None = None,
    device: str | None = None,
    max_elements: int = 16,
    **options: Any,
) -> FuzzOutcome:
    """Fuzz an op of torch tensors.

    Parameters
    ----------
    client : Client or None
        None to judge outputs by `ref_fn`, without a daemon.
    run_op, op_fn : callable
        Two names for the op; one of them is given. It is a function of one dict of tensors, or of
        tensors by name.
    check_backward : bool
        True to check autograd against central differences in each case, for up to `max_elements`
        elements of each input.
    ref_fn : callable, optional
        A function of numpy arrays, in float64.
    device : str, optional
        Device of the tensors; the CPU by default.
    **options
        ``dtypes``, ``op_schema``; without a client ``names``, ``batch_sizes``, ``seq_lengths``,
        ``hidden_dims``.
    """
    checks = {"backward": _backward_check(max_elements)} if check_backward else {}
    op = run_op or op_fn
    moved = op if device is None or op is None else _on_device(op, device)
    outcome = fuzz_with_checks(
        ADAPTER, client, op_name, moved, checks, iterations=iterations, seed=seed,
        fail_fast=fail_fast, atol=atol, rtol=rtol, ref_fn=ref_fn, **options,
    )  # fmt: skip
    return outcome if checks else FuzzOutcome({**outcome, "backward_failures": []})


def _backward_check(max_elements: int) -> Callable[..., CheckOutcome]:
    def check(op: Callable[..., Any], arrays: Mapping[str, Any]) -> CheckOutcome:
        if not any(dtype_name(a.dtype) in FLOAT_LIMITS for a in arrays.values()):
            return CheckOutcome()
        tensors = {name: ADAPTER.from_numpy(array) for name, array in arrays.items()}
        return check_autograd(op, tensors, max_elements=max_elements)

    return check


def _on_device(op: Callable[..., Any], device: str) -> Callable[..., Any]:
    def run(inputs: Mapping[str, Any]) -> Any:
        return caller(op, inputs)({name: tensor.to(device) for name, tensor in inputs.items()})

    return run
