"""Judge an output and its gradients: the contexts of ``validate_pytorch`` and its counterparts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from gpuemu_flow.client.api import Client
from gpuemu_flow.client.context import ValidationContext, failed, submission
from gpuemu_flow.client.errors import ClientError, NoOutputError
from gpuemu_flow.client.results import ValidationResult
from gpuemu_flow.frameworks.base import (
    Array,
    Arrays,
    FrameworkAdapter,
    Inputs,
    caller,
    named,
    outputs_of,
)
from gpuemu_flow.frameworks.local import checked_precision, compare, reference_of, with_changes
from gpuemu_flow.frameworks.local_shadow import STEPS, Versions
from gpuemu_flow.model.errors import Problem, UsageError
from gpuemu_flow.model.types import Verdict
from gpuemu_flow.numerics.contract import default_tolerance
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, dtype_name, widened
from gpuemu_flow.numerics.operand import INPUT

MakeContext = Callable[
    [Any, str, Inputs, Mapping[str, Any]], AbstractContextManager["GradientContext"]
]
Fill = Callable[["GradientContext", Callable[..., Any], Inputs, bool], None]
"""Runs an op on inputs and sets the context's output, and its gradients if they are wanted."""


class GradientContext(ValidationContext):
    """The context in which an output is set, to be judged with its gradients.

    Attributes
    ----------
    grad_inputs : dict of str to tensor
        Gradients by input; by default, the framework computes the gradients of the output's sum.
    gradient_results : dict of str to ValidationResult
        Set when the context has been left.
    tape : object or None
        TensorFlow's gradient tape, which recorded the body; None for other frameworks.
    """

    def __init__(self, inputs: Mapping[str, Any], kwargs: Mapping[str, Any]) -> None:
        super().__init__(inputs, kwargs)
        self.grad_inputs: dict[str, Any] = {}
        self.gradient_results: dict[str, Any] = {}
        self.tape: Any = None

    _MORE = ("grad_inputs", "grads", "gradient_results", "tape")

    def __getitem__(self, key: str) -> Any:
        if key in self._MORE:
            return getattr(self, "grad_inputs" if key == "grads" else key)
        return super().__getitem__(key)

    def __setitem__(self, key: str, value: Any) -> None:
        if key in self._MORE:
            setattr(self, "grad_inputs" if key == "grads" else key, value)
        else:
            super().__setitem__(key, value)


def dispatch(context: MakeContext, fill: Fill, args: tuple[Any, ...], kwargs: Any) -> Any:
    """Process the arguments of ``validate_pytorch`` and its counterparts.

    The arguments ``(client, op_name, inputs)`` and ``(op_name, inputs)`` give a context, in which
    the caller sets an output. With the arguments ``(op_fn, ref_fn, inputs)``, the function `op_fn`
    is run at once, and the result of judging its output is returned. All of these arguments except
    `op_fn` may also be passed by keyword.

    Parameters
    ----------
    context : callable
        Makes a context.
    fill : callable
        Runs `op_fn`, and sets the output in a context.
    args, kwargs : tuple, mapping
        The arguments.

    Raises
    ------
    UsageError
        ``validate-arguments``: the arguments have none of these forms.
    """
    options = dict(kwargs)
    given = list(args)
    if given and callable(given[0]) and not hasattr(given[0], "validate_op"):
        op_fn = given.pop(0)
        ref_fn = given.pop(0) if given else options.pop("ref_fn", None)
        inputs = given.pop(0) if given else options.pop("inputs", None)
        if callable(ref_fn) and inputs is not None and not given:
            op_name = getattr(op_fn, "__name__", "op")
            with context(None, op_name, inputs, {**options, "ref_fn": ref_fn}) as filled:
                fill(filled, op_fn, inputs, bool(options.get("check_backward")))
            assert filled.result is not None  # noqa: S101 - the context sets it
            return filled.result
        _refuse()
    client = options.pop("client", None)
    if given and not isinstance(given[0], str):
        client = given.pop(0)
    op_name = given.pop(0) if given else options.pop("op_name", None)
    inputs = given.pop(0) if given else options.pop("inputs", None)
    if given:  # the documented third position after the inputs
        options["check_backward"] = given.pop(0)
    if not isinstance(op_name, str) or inputs is None or given:
        _refuse()
    return context(client, op_name, inputs, options)


def _refuse() -> None:
    raise UsageError(
        Problem(
            "validate-arguments",
            "the arguments are (client, op_name, inputs), (op_name, inputs) or "
            "(op_fn, ref_fn, inputs)",
        )
    )


def plain_context(adapter: FrameworkAdapter) -> MakeContext:
    """Return a function that opens `validating`, for frameworks without further options."""

    @contextmanager
    def context(
        client: Any, op_name: str, inputs: Inputs, options: Mapping[str, Any]
    ) -> Iterator[GradientContext]:
        given = dict(options)
        backward = bool(given.pop("check_backward", False))
        with validating(adapter, client, op_name, inputs, backward, given) as made:
            yield made

    return context


@contextmanager
def validating(
    adapter: FrameworkAdapter,
    client: Any,
    op_name: str,
    inputs: Inputs,
    backward: bool,
    options: Mapping[str, Any],
    submitted: Callable[[GradientContext], Any] | None = None,
) -> Iterator[GradientContext]:
    """Yield a context whose output is judged when the ``with`` body has ended.

    If `options` has a reference ``ref_fn``, the output is compared with the outputs of this
    reference. Otherwise, a daemon judges the output. The daemon gets the output as it is, or the
    result of ``submitted(context)`` if `submitted` is given.
    """
    kwargs = dict(options)
    ref_fn = kwargs.pop("ref_fn", None)
    raise_on_failure = bool(kwargs.pop("raise_on_failure", True))
    precision = INPUT  # frameworks compute so on a CPU; a daemon has a configuration to go by
    if ref_fn is not None or kwargs.get("precision") is None:
        precision = checked_precision(kwargs.pop("precision", None)) or INPUT
    context = GradientContext(named(inputs), kwargs)
    with _judge(client, ref_fn) as judge:
        yield context
        if context.output is None:
            raise NoOutputError(
                Problem("client-no-output", f"no output of {op_name} was set", "call set_output")
            )
        if ref_fn is None:
            output = context.output if submitted is None else submitted(context)
            context.result = judge._do(submission(op_name, context, output))
        else:
            given, changed = context.copies.compare(named(inputs))
            arrays = adapter.arrays(given)
            reference = caller(ref_fn, inputs)
            expected = adapter.evaluate(reference, _widened(arrays))
            result = compare(
                _in_order(context.output),
                _in_order(expected),
                inputs=arrays,
                op_name=op_name,
                atol=kwargs.get("atol"),
                rtol=kwargs.get("rtol"),
                reference=reference_of(
                    ref_fn,
                    lambda f, given: _in_order(adapter.evaluate(caller(f, inputs), given)),
                ),
                precision=precision,
            )
            context.result = with_changes(result, changed)
        if raise_on_failure and not context.result.passed:
            raise failed(context.result)
        if backward:
            _judge_gradients(adapter, judge, op_name, inputs, ref_fn, context, kwargs, precision)
    if raise_on_failure:
        for result in context.gradient_results.values():
            if not result.passed:
                raise failed(result)


def _judge(client: Any, ref_fn: Any) -> AbstractContextManager[Any]:
    """Return a context that yields the client: the given one or, without one, a new client.

    With a `ref_fn`, no client is needed, and none is made.
    """
    if client is not None or ref_fn is not None:
        return nullcontext(client)
    return Client()


def _in_order(outputs: Any) -> Any:
    listed = outputs_of(outputs)
    return listed[0] if len(listed) == 1 else listed


def _widened(arrays: Arrays) -> dict[str, Any]:
    return {
        n: a.astype(np.float64) if dtype_name(a.dtype) in FLOAT_LIMITS else a
        for n, a in arrays.items()
    }


def _judge_gradients(
    adapter: FrameworkAdapter,
    client: Any,
    op_name: str,
    inputs: Inputs,
    ref_fn: Callable[..., Any] | None,
    context: GradientContext,
    kwargs: Mapping[str, Any],
    precision: str,
) -> None:
    gradients = context.grad_inputs or _own_gradients(adapter, context)
    if not gradients:
        raise UsageError(
            Problem(
                "gradient-missing",
                f"the output of {op_name} depends on no input that requires a gradient",
                "make inputs that require one, and compute the output from context.inputs",
            )
        )
    context.grad_inputs = gradients
    if ref_fn is None:
        for name, gradient in gradients.items():
            context.gradient_results[name] = _by_gradient_op(
                client, f"{op_name}_grad_{name}", context.inputs, gradient, kwargs
            )
        return
    context.gradient_results = compare_gradients(
        adapter,
        ref_fn,
        inputs,
        {name: adapter.to_numpy(gradient) for name, gradient in gradients.items()},
        arrays=adapter.arrays(context.copies.compare(context.inputs)[0]),
        cotangents=lambda outputs: [
            np.full(output.shape, float(n == 0)) for n, output in enumerate(outputs)
        ],
        op_name=op_name,
        atol=kwargs.get("atol"),
        rtol=kwargs.get("rtol"),
        precision=precision,
    )


def _own_gradients(adapter: FrameworkAdapter, context: GradientContext) -> dict[str, Any]:
    output = outputs_of(context.output)[0]
    by_tape = (context.tape,) if context.tape is not None else ()
    found = adapter.compute_gradient(*by_tape, output, context.inputs)
    return {name: gradient for name, gradient in found.items() if gradient is not None}


def _by_gradient_op(
    client: Any, op: str, inputs: Mapping[str, Any], gradient: Any, kwargs: Mapping[str, Any]
) -> Any:
    try:
        return client.validate_op(op, inputs, gradient, **kwargs)
    except ClientError as error:
        if error.code != "OpNotFound":
            raise
        raise ClientError(
            Problem(
                "gradient-op-missing",
                f"the workspace has no op {op!r} whose reference gives this gradient",
                "add the op, or give ref_fn, whose autograd is the reference then",
            ),
            error.code,
        ) from None


# Compare gradients with those of a reference, in any framework.


GRADIENT_FACTOR = 10.0
"""Factor on the documented tolerances, for gradients whose tolerance cannot be measured: they sum
over many terms."""


def compare_gradients(
    adapter: FrameworkAdapter,
    ref_fn: Callable[..., Any],
    inputs: Inputs,
    gradients: Mapping[str, Array],
    *,
    arrays: Arrays,
    cotangents: Callable[[Sequence[Array]], list[Array]],
    op_name: str,
    atol: float | None,
    rtol: float | None,
    precision: str,
) -> dict[str, ValidationResult]:
    """Judge gradients by the error that the reference's own rounding causes.

    In a narrow dtype, frameworks round each step of a backward pass. The effect on the result is
    measured if the reference's source can be rewritten. If it cannot be rewritten, or if the
    measured tolerance gives no verdict, the documented table of tolerances is used.

    Parameters
    ----------
    gradients : mapping of str to ndarray
        The gradient for each input, by the input's name.
    arrays : mapping of str to ndarray
        The inputs.
    cotangents : callable
        Returns the cotangents for given outputs.
    """
    versions = Versions(ref_fn)
    names = list(gradients)

    def pulled(function: Callable[..., Any], given: Arrays) -> dict[str, Array]:
        outputs, pull = adapter.pullback(caller(function, inputs), given, names)
        return pull(cotangents(outputs))

    expected = pulled(ref_fn, widened(arrays))
    results = {}
    for name, gradient in gradients.items():
        dtype = dtype_name(gradient.dtype) or ""

        def one(function: Callable[..., Any], given: Arrays, name: str = name) -> Array:
            return pulled(function, given)[name]

        def judged(atol: float | None, rtol: float | None) -> ValidationResult:
            return compare(
                gradient,  # noqa: B023 - called in this turn of the loop
                expected[name],  # noqa: B023
                inputs=arrays,
                op_name=f"{op_name}, gradient by {name}",  # noqa: B023
                atol=atol,
                rtol=rtol,
                reference=reference_of(versions, one),
                precision=precision,
            )

        allowed = default_tolerance(dtype)
        table = allowed.atol * GRADIENT_FACTOR, allowed.rtol * GRADIENT_FACTOR
        given = atol is not None or rtol is not None
        if not given and _is_narrow(dtype) and not versions.rewritten(STEPS):
            results[name] = judged(*table)
            continue
        results[name] = judged(atol, rtol)
        if not given and results[name].verdict == Verdict.INCONCLUSIVE.value:
            # The gradient of a sum of softmax, for example, is 0 except for roundings. It has no
            # scale to measure by, so that only the table's absolute tolerance applies.
            results[name] = judged(*table)
    return results


def why(result: ValidationResult) -> str:
    """Return, in a few words, why a result did not pass."""
    if result.failures:
        return result.failures[0].message
    return f"{result.verdict}: {'; '.join(result.notes)}"


def _is_narrow(dtype: str) -> bool:
    fmt = FLOAT_LIMITS.get(dtype)
    return fmt is not None and fmt.eps > FLOAT_LIMITS["float32"].eps
