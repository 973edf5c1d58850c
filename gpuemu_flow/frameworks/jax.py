"""JAX: validation of outputs and gradients, checks of transformations, fuzzing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from gpuemu_flow.client.calls import as_array
from gpuemu_flow.frameworks.base import (
    PLAIN,
    Array,
    Arrays,
    CheckOutcome,
    FrameworkAdapter,
    Inputs,
    agree,
    caller,
    named,
    outcome_of,
    outputs_of,
    to_arrays,
    to_tensors,
)
from gpuemu_flow.frameworks.shared import (
    ATOL,
    EPS,
    MAX_ELEMENTS,
    RTOL,
    FuzzOutcome,
    GradientChecker,
    GradientContext,
    dispatch,
    fuzz_with_checks,
    plain_context,
)
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, dtype_name, numpy_dtype

# The adapter for JAX: arrays and gradients.


class JAXAdapter(FrameworkAdapter):
    """Adapter for JAX; it enables float64 for its own computations only."""

    name = package = extra = "jax"

    @contextmanager
    def wide(self) -> Iterator[None]:
        """Enable 64-bit types inside the context, for checks in float64."""
        jax = self.module
        before = bool(jax.config.jax_enable_x64)
        jax.config.update("jax_enable_x64", True)
        try:
            yield
        finally:
            jax.config.update("jax_enable_x64", before)

    def to_numpy(self, tensor: Any) -> Array:
        return as_array(tensor, "tensor")

    def from_numpy(self, array: Array, like: Any = None) -> Any:
        made = self.module.numpy.array(np.asarray(array))
        if like is None:
            return made
        return made.astype(numpy_dtype(like) if isinstance(like, str) else like.dtype)

    def get_dtype_name(self, tensor: Any) -> str:
        """Return the canonical name of a tensor's dtype; see `FrameworkAdapter.get_dtype_name`."""
        return str(tensor.dtype)

    def requires_grad(self, tensor: Any, requires: bool | None = None) -> Any:
        """Tell whether JAX can differentiate with respect to a tensor: its dtype must be float.

        If `requires` is given, return the tensor unchanged: JAX has no such setting.
        """
        if requires is not None:
            return tensor
        return dtype_name(np.asarray(tensor).dtype) in FLOAT_LIMITS

    def compute_gradient(
        self, function: Callable[..., Any], inputs: Inputs, argnums: Any = None
    ) -> Any:
        """Return the gradients of the sum of all elements of all outputs.

        Parameters
        ----------
        argnums : int or sequence of int, optional
            Positions of the inputs to differentiate with respect to; by default, those of all
            inputs with a float dtype.

        Returns
        -------
        mapping or list
            A mapping by input name if `inputs` is a mapping, else a list in the order of `argnums`.
        """
        jax = self.module
        values = named(inputs)
        names = [name for name, value in values.items() if self.requires_grad(value)]
        if argnums is not None:
            wanted = [argnums] if isinstance(argnums, int) else list(argnums)
            names = [list(values)[place] for place in wanted]
        run = caller(function, inputs)

        def total(chosen: Mapping[str, Any]) -> Any:
            return sum(jax.numpy.sum(o) for o in outputs_of(run({**values, **chosen})))

        found = jax.grad(total)({name: values[name] for name in names})
        return found if isinstance(inputs, Mapping) else [found[name] for name in names]

    def pullback(
        self, function: Callable[[Mapping[str, Any]], Any], arrays: Arrays, names: Sequence[str]
    ) -> tuple[list[Array], Callable[[list[Array]], dict[str, Array]]]:
        """Return outputs and a function that gives gradients; see `FrameworkAdapter.pullback`."""
        jax = self.module
        with self.wide():
            tensors = to_tensors(self, arrays)
            outputs, back = jax.vjp(
                lambda chosen: outputs_of(function({**tensors, **chosen})),
                {name: tensors[name] for name in names},
            )

        def pull(cotangents: list[Array]) -> dict[str, Array]:
            with self.wide():
                given = [
                    self.from_numpy(c).astype(o.dtype)
                    for o, c in zip(outputs, cotangents, strict=True)
                ]
                (found,) = back(given)
                return {name: self.to_numpy(found[name]) for name in names}

        return to_arrays(self, outputs), pull

    def evaluate(self, function: Callable[[Mapping[str, Any]], Any], arrays: Arrays) -> list[Array]:
        """Return the outputs of a function as arrays; see `FrameworkAdapter.evaluate`."""
        with self.wide():
            return super().evaluate(function, arrays)


JaxAdapter = JAXAdapter
"""The documented name."""


ADAPTER = JAXAdapter()


__all__ = [
    "JAXAdapter",
    "JaxAdapter",
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
            return check(op, to_tensors(ADAPTER, arrays), **wider, **more)

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


# JAX: check that ops can be compiled, mapped, spread over devices and differentiated.


def tensors_of(inputs: Inputs) -> dict[str, Any]:
    """Return the inputs as JAX arrays; leave Python scalars as they are."""
    jnp = ADAPTER.module.numpy
    return {
        name: value if isinstance(value, PLAIN) else jnp.asarray(value)
        for name, value in named(inputs).items()
    }


def check_jit_safe(
    op: Callable[..., Any], inputs: Inputs, rtol: float = 1e-6, atol: float = 1e-6
) -> CheckOutcome:
    """Check that a compiled op gives the same outputs as the uncompiled one."""
    jax = ADAPTER.module
    tensors = tensors_of(inputs)
    static = {name: v for name, v in tensors.items() if isinstance(v, PLAIN)}
    traced = {name: v for name, v in tensors.items() if name not in static}
    run = caller(op, inputs)

    def check() -> CheckOutcome:
        expected = to_arrays(ADAPTER, run(tensors))
        order = list(tensors)
        compiled = jax.jit(
            lambda chosen: outputs_of(run({n: {**static, **chosen}[n] for n in order}))
        )
        return agree(to_arrays(ADAPTER, compiled(traced)), expected, atol, rtol, "jit")

    return outcome_of("jit", check)


def check_vmap_compatible(
    op: Callable[..., Any],
    inputs: Inputs,
    batch_axis: int = 0,
    rtol: float = 1e-5,
    atol: float = 1e-5,
) -> CheckOutcome:
    """Check that `jax.vmap` over an axis of all inputs agrees with a call for each index."""
    jax = ADAPTER.module
    tensors = tensors_of(inputs)
    mapped = {n: v for n, v in tensors.items() if getattr(v, "ndim", 0) > batch_axis}
    fixed = {n: v for n, v in tensors.items() if n not in mapped}
    sizes = {v.shape[batch_axis] for v in mapped.values()}
    if len(sizes) != 1:
        return CheckOutcome(False, f"vmap: the inputs have batches of sizes {sorted(sizes)}")
    (size,) = sizes
    if size < 2:
        return CheckOutcome(True, "vmap: a batch of fewer than two shows nothing")
    order = list(tensors)
    run = caller(op, inputs)

    def one(chosen: Mapping[str, Any]) -> list[Any]:
        return outputs_of(run({n: {**fixed, **chosen}[n] for n in order}))

    def check() -> CheckOutcome:
        axes = dict.fromkeys(mapped, batch_axis)
        together = to_arrays(ADAPTER, jax.vmap(one, in_axes=(axes,))(mapped))
        single = [
            to_arrays(
                ADAPTER, one({n: jax.numpy.take(v, i, axis=batch_axis) for n, v in mapped.items()})
            )
            for i in range(size)
        ]
        expected = [np.stack(outputs) for outputs in zip(*single, strict=True)]
        return agree(together, expected, atol, rtol, "vmap")

    return outcome_of("vmap", check)


def check_pmap_compatible(
    op: Callable[..., Any],
    inputs: Inputs,
    axis_name: str = "batch",
    rtol: float = 1e-5,
    atol: float = 1e-5,
    *,
    num_devices: int | None = None,
) -> CheckOutcome:
    """Check that `jax.pmap` of an op runs, and that each device agrees with a plain call.

    All existing devices take part, or `num_devices` of them. The CPU counts as one device unless
    ``--xla_force_host_platform_device_count`` sets another number.
    """
    jax = ADAPTER.module
    tensors = tensors_of(inputs)
    run = caller(op, inputs)
    count = min(num_devices or jax.local_device_count(), jax.local_device_count())

    def check() -> CheckOutcome:
        expected = to_arrays(ADAPTER, run(tensors))
        copies = {n: jax.numpy.stack([jax.numpy.asarray(v)] * count) for n, v in tensors.items()}
        spread = jax.pmap(
            lambda chosen: outputs_of(run(chosen)), axis_name=axis_name,
            devices=jax.local_devices()[:count],
        )  # fmt: skip
        outputs = to_arrays(ADAPTER, spread(copies))
        for device in range(count):
            found = agree([o[device] for o in outputs], expected, atol, rtol, "pmap")
            if not found.passed:
                return found
        return CheckOutcome(True, f"pmap: {count} devices agree", found.max_diff)

    return outcome_of("pmap", check)


def check_grad_safe(
    op: Callable[..., Any],
    inputs: Inputs,
    argnums: Any = 0,
    *,
    eps: float | None = None,
    atol: float = ATOL,
    rtol: float = RTOL,
) -> CheckOutcome:
    """Check that the gradients are finite and, if `eps` is given, near central differences."""
    places = [argnums] if isinstance(argnums, int) else list(argnums)

    def check() -> CheckOutcome:
        names = [list(named(inputs))[place] for place in places]
        tensors = tensors_of(inputs)
        by_name = inputs if isinstance(inputs, Mapping) else None
        given: Inputs = tensors if by_name is not None else list(tensors.values())
        found = ADAPTER.compute_gradient(op, given, places)
        gradients = found.values() if isinstance(found, Mapping) else found
        for name, gradient in zip(names, gradients, strict=True):
            if not bool(ADAPTER.module.numpy.isfinite(gradient).all()):
                return CheckOutcome(False, f"grad: the gradient by {name!r} is not finite")
        if eps is None:
            return CheckOutcome(True, f"grad: {len(names)} gradients are finite")
        return GradientChecker(ADAPTER, eps, atol, rtol).check(op, inputs, names)

    return outcome_of("grad", check)


def check_gradients(
    op: Callable[..., Any],
    inputs: Inputs,
    eps: float = EPS,
    atol: float = ATOL,
    rtol: float = RTOL,
    check_inputs: Sequence[str] | None = None,
    *,
    max_elements: int = MAX_ELEMENTS,
) -> CheckOutcome:
    """Compare an op's gradients with central differences, in float64; see `GradientChecker`."""
    checker = GradientChecker(ADAPTER, eps, atol, rtol, max_elements=max_elements)
    return outcome_of("grad", lambda: checker.check(op, inputs, check_inputs))


def validate_jax_primitive(
    primitive_name: str,
    impl: Callable[..., Any],
    inputs: Inputs,
    expected_output: Any,
    check_jvp: bool = True,
    check_vmap: bool = True,
    rtol: float = 1e-5,
    atol: float = 1e-5,
) -> CheckOutcome:
    """Check an implementation's output, and that it can be differentiated and mapped.

    Returns
    -------
    CheckOutcome
        Its ``details`` are ``forward_ok``, ``jvp_ok`` and ``vmap_ok``, with a reason for each that
        is false.
    """
    jax = ADAPTER.module
    tensors = tensors_of(inputs)
    run = caller(impl, inputs)
    details: dict[str, Any] = {"forward_ok": True, "jvp_ok": True, "vmap_ok": True}
    found = [
        outcome_of(
            "forward",
            lambda: agree(
                to_arrays(ADAPTER, run(tensors)),
                to_arrays(ADAPTER, expected_output),
                atol,
                rtol,
                "forward",
            ),
        )
    ]
    details["forward_ok"] = found[0].passed

    def forward_mode() -> CheckOutcome:
        floats = {n: v for n, v in tensors.items() if ADAPTER.requires_grad(v)}
        ones = {n: jax.numpy.ones_like(v) for n, v in floats.items()}
        _, tangents = jax.jvp(lambda c: outputs_of(run({**tensors, **c})), (floats,), (ones,))
        finite = all(bool(jax.numpy.isfinite(t).all()) for t in tangents)
        return CheckOutcome(finite, "jvp: finite" if finite else "jvp: tangents are not finite")

    if check_jvp:
        found.append(outcome_of("jvp", forward_mode))
        details["jvp_ok"] = found[-1].passed
    if check_vmap:
        found.append(check_vmap_compatible(impl, inputs, rtol=rtol, atol=atol))
        details["vmap_ok"] = found[-1].passed
    bad = [outcome.message for outcome in found if not outcome.passed]
    message = "; ".join(bad) or f"{primitive_name}: {len(found)} checks passed"
    return CheckOutcome(not bad, message, found[0].max_diff, details)
