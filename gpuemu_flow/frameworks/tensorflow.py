"""TensorFlow: validation of outputs and gradients, Keras layers, tf.function, XLA, and fuzzing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from gpuemu_flow.client.calls import as_array
from gpuemu_flow.client.results import ClientError
from gpuemu_flow.frameworks.base import (
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
    RTOL,
    FuzzOutcome,
    GradientChecker,
    GradientContext,
    dispatch,
    fuzz_with_checks,
    validating,
)
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, dtype_name, numpy_dtype


class _Tape:
    """A gradient tape that is already recording; entering it in a ``with`` again is allowed."""

    def __init__(self, tape: Any) -> None:
        self._tape = tape

    def __enter__(self) -> _Tape:
        return self

    def __exit__(self, *_: object) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)


class TensorFlowAdapter(FrameworkAdapter):
    """Adapter for TensorFlow."""

    name = package = extra = "tensorflow"

    def to_numpy(self, tensor: Any) -> Array:
        return as_array(tensor.numpy() if hasattr(tensor, "numpy") else tensor, "tensor")

    def from_numpy(self, array: Array, like: Any = None) -> Any:
        tf = self.module
        made = tf.constant(np.asarray(array))
        if like is None:
            return made
        return tf.cast(made, numpy_dtype(like).name if isinstance(like, str) else like.dtype)

    def get_dtype_name(self, tensor: Any) -> str:
        return str(tensor.dtype.name)

    def requires_grad(self, tensor: Any, requires: bool | None = None) -> Any:
        """Tell whether a tensor is a variable; with `requires`, return a converted tensor instead.

        If `requires` is True, the result is a variable, which tapes watch by default. If it is
        False, the result is a plain tensor. See `FrameworkAdapter.requires_grad`.
        """
        tf = self.module
        if requires is None:
            return isinstance(tensor, tf.Variable)
        return tf.Variable(tensor) if requires else tf.convert_to_tensor(tensor)

    def compute_gradient(self, tape: Any, output: Any, inputs: Inputs) -> Any:
        """Return the gradients of an output with respect to the inputs, from a tape.

        The result is a mapping by name if `inputs` is a mapping, else a list.
        """
        values = named(inputs)
        found = tape.gradient(output, list(values.values()))
        return dict(zip(values, found, strict=True)) if isinstance(inputs, Mapping) else found

    def pullback(
        self, function: Callable[[Mapping[str, Any]], Any], arrays: Arrays, names: Sequence[str]
    ) -> tuple[list[Array], Callable[[list[Array]], dict[str, Array]]]:
        """Return outputs and a function that gives gradients; see `FrameworkAdapter.pullback`."""
        tf = self.module
        tensors = to_tensors(self, arrays)
        with tf.GradientTape(persistent=True) as tape:
            for name in names:
                tape.watch(tensors[name])
            outputs = outputs_of(function(tensors))

        def pull(cotangents: list[Array]) -> dict[str, Array]:
            given = [
                tf.cast(tf.constant(c), o.dtype) for o, c in zip(outputs, cotangents, strict=True)
            ]
            found = tape.gradient(
                outputs, [tensors[name] for name in names], output_gradients=given
            )
            return {
                name: np.zeros(arrays[name].shape) if gradient is None else self.to_numpy(gradient)
                for name, gradient in zip(names, found, strict=True)
            }

        return to_arrays(self, outputs), pull


ADAPTER = TensorFlowAdapter()


def _tensors(inputs: Inputs) -> dict[str, Any]:
    tf = ADAPTER.module
    return {name: tf.convert_to_tensor(value) for name, value in named(inputs).items()}


def _compiled(
    what: str, op: Callable[..., Any], inputs: Inputs, atol: float, rtol: float, **options: Any
) -> CheckOutcome:
    tf = ADAPTER.module
    tensors = _tensors(inputs)
    run = caller(op, inputs)

    def check() -> CheckOutcome:
        expected = to_arrays(ADAPTER, run(tensors))
        compiled = tf.function(lambda **chosen: outputs_of(run(chosen)), **options)
        compiled(**tensors)
        return agree(to_arrays(ADAPTER, compiled(**tensors)), expected, atol, rtol, what)

    return outcome_of(what, check)


def check_tf_function_safe(
    op: Callable[..., Any], inputs: Inputs, rtol: float = 1e-6, atol: float = 1e-6
) -> CheckOutcome:
    """Check that an op gives the same outputs inside `tf.function`."""
    return _compiled("tf.function", op, inputs, atol, rtol)


def check_xla_compatible(
    op: Callable[..., Any], inputs: Inputs, rtol: float = 1e-5, atol: float = 1e-5
) -> CheckOutcome:
    """Check that an op compiled by XLA gives the same outputs."""
    return _compiled("xla", op, inputs, atol, rtol, jit_compile=True)


def validate_custom_gradient(
    func: Callable[..., Any],
    gradient_func: Callable[..., Any] | None,
    inputs: Inputs,
    eps: float = 1e-4,
    atol: float = 1e-4,
    rtol: float = RTOL,
) -> CheckOutcome:
    """Compare a function's custom gradient with central differences.

    Parameters
    ----------
    gradient_func : callable, optional
        ``gradient_func(upstream, **inputs)``: its results must agree with the tape's, too.

    Returns
    -------
    CheckOutcome
        With ``details``: ``gradient_ok``.
    """
    found = GradientChecker(ADAPTER, eps, atol, rtol).check(func, inputs)
    if found.passed and gradient_func is not None:
        arrays = ADAPTER.arrays(inputs)
        names = [n for n, a in arrays.items() if dtype_name(a.dtype) in FLOAT_LIMITS]
        outputs, pull = ADAPTER.pullback(caller(func, inputs), arrays, names)
        ones = [np.ones(output.shape, output.dtype) for output in outputs]
        given = [ADAPTER.from_numpy(a) for a in (*ones, *arrays.values())]
        own = to_arrays(ADAPTER, gradient_func(*given))
        tape = pull(ones)
        found = agree(own, [tape[name] for name in names], atol, rtol, "gradient_func")
    return CheckOutcome(found.passed, found.message, found.max_diff, {"gradient_ok": found.passed})


@contextmanager
def _context(
    client: Any, op_name: str, inputs: Inputs, options: Mapping[str, Any]
) -> Iterator[GradientContext]:
    options = dict(options)
    backward = bool(options.pop("check_gradient", options.pop("check_backward", False)))
    tf = ADAPTER.module
    with (
        tf.GradientTape(persistent=True) as tape,
        validating(ADAPTER, client, op_name, inputs, backward, options) as context,
    ):
        context.inputs = _tensors(inputs)
        for value in context.inputs.values():
            if value.dtype.is_floating:
                tape.watch(value)
        context.tape = _Tape(tape)
        yield context


def validate_tensorflow(*args: Any, **kwargs: Any) -> Any:
    """Validate the output of an op; the arguments are those of `pytorch.validate_pytorch`.

    ``check_gradient=True`` judges the gradients, too. They come from ``context.tape``, which
    recorded the operations of the body on ``context.inputs``.
    """
    return dispatch(_context, _fill, args, kwargs)


def _fill(context: GradientContext, op_fn: Callable[..., Any], inputs: Inputs, _: bool) -> None:
    context.set_output(caller(op_fn, inputs)(context.inputs))


def check_keras_layer(
    layer: Any,
    input_shape: Any,
    client: Any = None,
    op_name: str = "",
    atol: float | None = None,
    rtol: float | None = None,
    *,
    seed: int = 0,
    check_training_mode: bool = False,
    **kwargs: Any,
) -> CheckOutcome:
    """Check a Keras layer on one input; with a `client`, compare it with the daemon's reference.

    Parameters
    ----------
    input_shape : sequence of int, or tensor
        The shape of a normal random input, drawn from `seed`; or the input itself.
    check_training_mode : bool
        True to call the layer in training mode as well; both modes must give finite values.

    Returns
    -------
    CheckOutcome
        Without a client, the check passes if the outputs are finite and, for a layer that takes
        float64, if its gradients for the input agree with central differences.
    """
    tf = ADAPTER.module
    if hasattr(input_shape, "dtype"):
        array = ADAPTER.to_numpy(input_shape)
    else:
        array = np.random.default_rng(seed).standard_normal(tuple(input_shape)).astype("float32")
    modes: list[dict[str, Any]] = [{}]
    if "training" in inspect.signature(layer.call).parameters:
        modes = [{"training": False}, {"training": True}][: 1 + check_training_mode]
    for mode in modes:
        if not all(
            np.isfinite(o).all() for o in to_arrays(ADAPTER, layer(tf.constant(array), **mode))
        ):
            return CheckOutcome(False, f"the outputs with {mode} are not finite")
    if client is None:
        return _layer_gradients(layer, array)
    limits = {n: v for n, v in (("atol", atol), ("rtol", rtol)) if v is not None}
    x = tf.Variable(array)
    with tf.GradientTape() as tape:
        output = layer(x)
    result = client.validate_op(op_name, {"x": x}, output, **limits, **kwargs)
    if not result.passed:
        return CheckOutcome(False, result.failures[0].message, result.max_diff)
    gradient = tape.gradient(output, x)
    try:
        backward = client.validate_op(f"{op_name}_grad", {"x": x}, gradient, **limits, **kwargs)
    except ClientError as error:
        if error.code != "OpNotFound":
            raise
        return CheckOutcome(True, "the output agrees; the workspace has no op for the gradient")
    message = "" if backward.passed else backward.failures[0].message
    return CheckOutcome(backward.passed, message or "output and gradient agree", result.max_diff)


def _layer_gradients(layer: Any, array: Array) -> CheckOutcome:
    checker = GradientChecker(ADAPTER, 1e-2, 1e-3, 1e-2, max_elements=64)
    return checker.check(lambda x: layer(ADAPTER.module.cast(x, "float32")), [array])


def fuzz_tensorflow_op(
    client: Any,
    op_name: str,
    run_op: Callable[..., Any] | None = None,
    iterations: int = 100,
    seed: int | None = None,
    fail_fast: bool = False,
    check_gradient: bool = False,
    check_xla: bool = False,
    atol: float | None = None,
    rtol: float | None = None,
    *,
    op_fn: Callable[..., Any] | None = None,
    ref_fn: Callable[..., Any] | None = None,
    max_elements: int = 16,
    **options: Any,
) -> FuzzOutcome:
    """Fuzz an op of TensorFlow tensors; the arguments are those of `jax.fuzz_jax_op`."""

    def gradient(op: Callable[..., Any], arrays: Mapping[str, Any]) -> CheckOutcome:
        checker = GradientChecker(ADAPTER, max_elements=max_elements)
        return checker.check(op, to_tensors(ADAPTER, arrays))

    asked: dict[str, tuple[bool, Callable[..., CheckOutcome]]] = {
        "gradient": (check_gradient, gradient),
        "xla": (check_xla, check_xla_compatible),
    }
    outcome = fuzz_with_checks(
        ADAPTER, client, op_name, run_op or op_fn,
        {name: check for name, (wanted, check) in asked.items() if wanted},
        iterations=iterations, seed=seed, fail_fast=fail_fast, atol=atol, rtol=rtol,
        ref_fn=ref_fn, **options,
    )  # fmt: skip
    return FuzzOutcome({"gradient_failures": [], "xla_failures": [], **outcome})
