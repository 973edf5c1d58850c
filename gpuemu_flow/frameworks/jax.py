"""JAX: validation of outputs and gradients, checks of transformations, fuzzing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpuemu_flow.frameworks.base import (
    CheckOutcome,
    Inputs,
    caller,
)
from gpuemu_flow.frameworks.contexts import GradientContext, dispatch, plain_context
from gpuemu_flow.frameworks.fuzz import FuzzOutcome, fuzz_with_checks
from gpuemu_flow.frameworks.jax_adapter import ADAPTER, JAXAdapter
from gpuemu_flow.frameworks.jax_checks import (
    check_grad_safe,
    check_gradients,
    check_jit_safe,
    check_pmap_compatible,
    check_vmap_compatible,
    tensors_of,
    validate_jax_primitive,
)

__all__ = [
    "JAXAdapter",
    "check_grad_safe",
    "check_gradients",
    "check_jit_safe",
    "check_pmap_compatible",
    "check_vmap_compatible",
    "fuzz_jax_op",
    "validate_jax",
    "validate_jax_primitive",
]


_context = plain_context(ADAPTER)


def validate_jax(*args: Any, **kwargs: Any) -> Any:
    """Validate the output of an op; the arguments are those of `pytorch.validate_pytorch`.

    Python scalars among the inputs (``"axis": -1``) are sent as 0-d tensors. With
    ``check_backward=True`` the gradients put into ``context["grad_inputs"]`` are judged, too.
    """
    return dispatch(_context, _fill, args, kwargs)


def _fill(
    context: GradientContext, op_fn: Callable[..., Any], inputs: Inputs, backward: bool
) -> None:
    tensors = tensors_of(inputs)
    context.set_output(caller(op_fn, inputs)(tensors))
    if backward:
        in_form: Inputs = tensors if isinstance(inputs, Mapping) else list(tensors.values())
        found = ADAPTER.compute_gradient(op_fn, in_form)
        context.grad_inputs = (
            dict(found) if isinstance(found, Mapping) else dict(zip(tensors, found, strict=False))
        )


def fuzz_jax_op(
    client: Any,
    op_name: str,
    run_op: Callable[..., Any] | None = None,
    iterations: int = 100,
    seed: int | None = None,
    fail_fast: bool = False,
    check_vmap: bool = False,
    check_jit: bool = False,
    atol: float | None = None,
    rtol: float | None = None,
    *,
    op_fn: Callable[..., Any] | None = None,
    ref_fn: Callable[..., Any] | None = None,
    check_grad: bool = False,
    max_elements: int = 16,
    **options: Any,
) -> FuzzOutcome:
    """Fuzz an op of JAX arrays; check also that it can be mapped, compiled and differentiated.

    Parameters
    ----------
    client : Client or None
        None to judge outputs by `ref_fn`, without a daemon.
    run_op, op_fn : callable
        The op: a function of arrays by name, or of one dict of arrays.
    ref_fn : callable, optional
        A function of numpy arrays, in float64.
    **options
        The options of `pytorch.fuzz_pytorch_op`.
    """

    def checked(check: Callable[..., CheckOutcome], **more: Any) -> Callable[..., CheckOutcome]:
        def run(op: Callable[..., Any], arrays: Mapping[str, Any]) -> CheckOutcome:
            loose = any(a.dtype.itemsize < 4 for a in arrays.values())
            wider = {"rtol": 2e-2, "atol": 2e-2} if loose and not more else {}
            return check(op, {n: ADAPTER.from_numpy(a) for n, a in arrays.items()}, **wider, **more)

        return run

    asked = {
        "vmap": (check_vmap, checked(check_vmap_compatible)),
        "jit": (check_jit, checked(check_jit_safe)),
        "grad": (check_grad, checked(check_gradients, max_elements=max_elements)),
    }
    outcome = fuzz_with_checks(
        ADAPTER, client, op_name, run_op or op_fn,
        {name: check for name, (wanted, check) in asked.items() if wanted},
        iterations=iterations, seed=seed, fail_fast=fail_fast, atol=atol, rtol=rtol,
        ref_fn=ref_fn, **options,
    )  # fmt: skip
    return FuzzOutcome({"vmap_failures": [], "jit_failures": [], **outcome})
