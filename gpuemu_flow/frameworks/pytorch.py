"""PyTorch: tensors on any device, autograd checks, validation of backward passes, fuzzing."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from msgspec import Struct, field

from gpuemu_flow.client.calls import as_array
from gpuemu_flow.client.context import InputCopies, failed
from gpuemu_flow.client.results import ValidationResult
from gpuemu_flow.frameworks.base import (
    Array,
    Arrays,
    CheckOutcome,
    FrameworkAdapter,
    Inputs,
    agree,
    caller,
    named,
    outputs_of,
    require,
    to_arrays,
    to_tensors,
)
from gpuemu_flow.frameworks.local import (
    PLAIN,
    SHADOW,
    Versions,
    checked_precision,
    compare,
    reference_of,
    with_changes,
)
from gpuemu_flow.frameworks.shared import (
    ATOL,
    EPS,
    MAX_ELEMENTS,
    RTOL,
    FuzzOutcome,
    GradientChecker,
    GradientContext,
    compare_gradients,
    dispatch,
    fuzz_with_checks,
    plain_context,
    validating,
    why,
)
from gpuemu_flow.model.errors import Problem, UsageError, did_you_mean
from gpuemu_flow.model.types import DTYPES
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, ML_DTYPES_NAMES, dtype_name, numpy_dtype
from gpuemu_flow.numerics.gradients import cotangent, gradient_name
from gpuemu_flow.numerics.operand import INPUT

# The adapter for PyTorch: tensors and gradients.


class PyTorchAdapter(FrameworkAdapter):
    """Adapter for PyTorch."""

    mutable = True
    name = "pytorch"
    package = extra = "torch"

    def to_numpy(self, tensor: Any) -> Array:
        return as_array(tensor, "tensor")

    def from_numpy(self, array: Array, like: Any = None) -> Any:
        torch = self.module
        # A copy of its own, since torch warns of memory that cannot be written to.
        copied = np.array(array, order="K")
        name = dtype_name(copied.dtype)
        if name in ML_DTYPES_NAMES:
            words = copied.view(np.uint8 if DTYPES[name].itemsize == 1 else np.int16)
            tensor = torch.from_numpy(words).view(getattr(torch, name))
        else:
            tensor = torch.from_numpy(copied)
        if isinstance(like, str):
            return tensor.to(getattr(torch, numpy_dtype(like).name))
        return tensor if like is None else tensor.to(device=like.device, dtype=like.dtype)

    def get_dtype_name(self, tensor: Any) -> str:
        return str(getattr(tensor, "dtype", type(tensor).__name__)).removeprefix("torch.")

    def requires_grad(self, tensor: Any, requires: bool | None = None) -> Any:
        """Tell or set whether a tensor requires gradients; see `FrameworkAdapter.requires_grad`."""
        if requires is not None:
            return tensor.requires_grad_(requires)
        return bool(tensor.requires_grad)

    def compute_gradient(
        self, output: Any, inputs: Any, grad_output: Any = None, output_index: int = 0
    ) -> Any:
        """Return an output's gradients for the inputs that require gradients.

        The result is a dict by input name if `inputs` is a mapping, else a list. A gradient is None
        if the output does not depend on the input. If the output requires no gradient, the result
        is empty.

        Parameters
        ----------
        output : tensor or callable
            The output; or a function, which is called with `inputs` to get its outputs.
        inputs : tensor, sequence or mapping
        grad_output : tensor, optional
            The output's cotangent; ones by default. If `output` is a function, an int in this place
            is taken as `output_index`.
        output_index : int
            Number of the output to use if `output` is a function.
        """
        torch = self.module
        if callable(output) and not isinstance(output, torch.Tensor):
            if isinstance(grad_output, int):
                output_index, grad_output = grad_output, None
            output = outputs_of(caller(output, inputs)(named(inputs)))[output_index]
        wanted = {n: t for n, t in named(inputs).items() if getattr(t, "requires_grad", False)}
        cotangent = torch.ones_like(output) if grad_output is None else grad_output
        gradients: Sequence[Any] = ()
        if wanted and output.requires_grad:
            gradients = torch.autograd.grad(
                output, list(wanted.values()), cotangent, retain_graph=True, allow_unused=True
            )
        if not isinstance(inputs, Mapping):
            return list(gradients)
        return dict(zip(wanted, gradients, strict=bool(gradients)))

    def pullback(
        self, function: Callable[[Mapping[str, Any]], Any], arrays: Arrays, names: Sequence[str]
    ) -> tuple[list[Array], Callable[[list[Array]], dict[str, Array]]]:
        """Return outputs and a function that gives gradients; see `FrameworkAdapter.pullback`."""
        tensors = to_tensors(self, arrays)
        leaves = [tensors[name].requires_grad_(True) for name in names]
        outputs = outputs_of(function(tensors))

        def pull(cotangents: list[Array]) -> dict[str, Array]:
            found = self.pull(outputs, leaves, cotangents)
            return dict(zip(names, found, strict=True))

        return to_arrays(self, outputs), pull

    def pull(
        self, outputs: Sequence[Any], inputs: Sequence[Any], cotangents: Sequence[Array]
    ) -> list[Array]:
        """Return the gradient with respect to each input.

        It is the gradient of the sum of all outputs, each multiplied by its cotangent. For an input
        on which no output depends, it is 0.
        """
        torch = self.module
        differentiable = [
            (output, self.from_numpy(cotangent, output))
            for output, cotangent in zip(outputs, cotangents, strict=True)
            if output.requires_grad
        ]
        found: Sequence[Any] = [None] * len(inputs)
        if differentiable:
            found = torch.autograd.grad(
                [output for output, _ in differentiable],
                list(inputs),
                [cotangent for _, cotangent in differentiable],
                retain_graph=True,
                allow_unused=True,
            )
        return [
            np.zeros(tuple(tensor.shape)) if gradient is None else self.to_numpy(gradient)
            for tensor, gradient in zip(inputs, found, strict=True)
        ]


ADAPTER = PyTorchAdapter()


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
    return dispatch(context, _fill, args, kwargs)


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
        tensors = to_tensors(ADAPTER, arrays)
        return check_autograd(op, tensors, max_elements=max_elements)

    return check


def _on_device(op: Callable[..., Any], device: str) -> Callable[..., Any]:
    def run(inputs: Mapping[str, Any]) -> Any:
        return caller(op, inputs)({name: tensor.to(device) for name, tensor in inputs.items()})

    return run


# The context of ``validate_pytorch``, which can submit gradients together with the outputs.


_plain = plain_context(ADAPTER)


@contextmanager
def context(
    client: Any, op_name: str, inputs: Inputs, options: Mapping[str, Any]
) -> Iterator[GradientContext]:
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


class ModelContext(Struct):
    """The results for a model's layers.

    Attributes
    ----------
    results : list of (str, ValidationResult)
        The layer's name and the result, for each call of a layer, in the order of the calls.
    """

    results: list[tuple[str, ValidationResult]] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Tell whether at least one layer was called and all calls passed."""
        return bool(self.results) and all(result.passed for _, result in self.results)

    @property
    def failures(self) -> list[tuple[str, ValidationResult]]:
        """Return the layer's name and the result of each call that did not pass."""
        return [(name, result) for name, result in self.results if not result.passed]


@contextmanager
def validate_model(
    model: Any,
    *,
    device: str = "cpu",
    dtype: str | None = None,
    reference_dtype: str = "float64",
    atol: float | None = None,
    rtol: float | None = None,
    raise_on_failure: bool = True,
) -> Iterator[ModelContext]:
    """Compare the layers of a model with copies of them, call by call.

    The body of the ``with`` statement runs the model.

    A layer is a module without submodules. Its copy gets the layer's actual inputs, as they are
    before the call and converted to `reference_dtype`, so that errors of earlier layers do not
    count again. A layer that draws random numbers (dropout in training mode) cannot agree with its
    copy: call ``model.eval()`` first.

    Parameters
    ----------
    model : torch.nn.Module
    device : str
        Device that the copies run on.
    dtype : str, optional
        Dtype to which the model is converted while the body runs.
    reference_dtype : str
        Dtype in which the copies compute.
    atol, rtol : float, optional
        Replace the tolerance. By default it is measured on the copy if all outputs of the call are
        float32 or float64; otherwise it is the documented tolerance of the output's dtype.
    raise_on_failure : bool

    Raises
    ------
    ValidationError
        After the body, for the first call that did not pass.
    UsageError
        ``validate-arguments``: `model` is not a module. ``validate-nothing-ran``: no layer was
        called.
    """
    torch = require("torch", "torch")
    if not isinstance(model, torch.nn.Module):
        message = f"a torch.nn.Module is expected, not {type(model).__name__}"
        raise UsageError(Problem("validate-arguments", message))
    context = ModelContext()
    # A model without submodules is a single layer.
    layers = {n or type(m).__name__: m for n, m in model.named_modules() if not any(m.children())}
    wide = getattr(torch, reference_dtype)
    before = {n: t.dtype for n, t in _floating(model)}
    if dtype is not None:
        model.to(getattr(torch, dtype))

    entered: dict[str, InputCopies] = {}

    def keep(name: str) -> Callable[..., None]:
        def copy_inputs(_: Any, args: Any, kwargs: Any) -> None:
            entered[name] = InputCopies(_tensors(args, kwargs))

        return copy_inputs

    def hook(name: str, twin: _LayerCopy) -> Callable[..., None]:
        def judge(_: Any, args: Any, kwargs: Any, output: Any) -> None:
            given, changed = entered.pop(name).compare(_tensors(args, kwargs))
            tensors = {key: ADAPTER.to_numpy(value) for key, value in given.items()}

            def call(version: Any, arrays: Mapping[str, Any]) -> list[Any]:
                found: list[Any] = version.outputs(args, kwargs, arrays)
                return found

            ours = [o for o in outputs_of(output) if isinstance(o, torch.Tensor)]
            # The values that a layer rounds to a narrow dtype do not follow from its reference.
            measured = all(o.dtype in (torch.float32, torch.float64) for o in ours)
            result = compare(
                ours,
                twin.outputs(args, kwargs, tensors, keep=True),
                inputs=tensors,
                op_name=name,
                atol=atol,
                rtol=rtol,
                reference=reference_of(_Versions(twin), call) if measured else None,
            )
            context.results.append((name, with_changes(result, changed)))

        return judge

    handles = []
    try:
        for name, layer in layers.items():
            twin = _LayerCopy(copy.deepcopy(layer).to(device=device, dtype=wide), device, wide)
            handles.append(layer.register_forward_pre_hook(keep(name), with_kwargs=True))
            handles.append(layer.register_forward_hook(hook(name, twin), with_kwargs=True))
        yield context
    finally:
        for handle in handles:
            handle.remove()
        if dtype is not None:
            for name, tensor in _floating(model):
                tensor.data = tensor.data.to(before[name])
    if not context.results:
        raise UsageError(
            Problem("validate-nothing-ran", "no layer of the model was called", "call the model")
        )
    if raise_on_failure and context.failures:
        raise failed(context.failures[0][1])


def _tensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors among a call's arguments, keyed by position or name."""
    torch = require("torch", "torch")
    given: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
    return {str(key): value for key, value in given.items() if isinstance(value, torch.Tensor)}


def _floating(model: Any) -> list[tuple[str, Any]]:
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return [(name, tensor) for name, tensor in tensors if tensor.dtype.is_floating_point]


class _LayerCopy(Struct, frozen=True):
    """A copy of a layer, converted to another dtype."""

    layer: Any
    device: str
    dtype: Any

    def outputs(
        self, args: Any, kwargs: Any, arrays: Mapping[str, Any], *, keep: bool = False
    ) -> list[Any]:
        torch = require("torch", "torch")
        layer, device = self.layer, self.device

        def own(key: Any, value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            made = ADAPTER.from_numpy(arrays[str(key)]).to(device)
            return made.to(self.dtype) if made.dtype.is_floating_point else made

        given = tuple(own(place, value) for place, value in enumerate(args))
        by_name = {name: own(name, value) for name, value in kwargs.items()}
        with torch.no_grad():
            if keep:
                returned = layer(*given, **by_name)
            else:
                buffers = {name: b.clone() for name, b in layer.named_buffers()}
                returned = torch.func.functional_call(layer, buffers, given, by_name)
        return [o for o in outputs_of(returned) if isinstance(o, torch.Tensor)]


class _Versions(Versions):
    """A layer's float64 copy and, for PyTorch's own layers, a float32 copy.

    A user's own layer gets no float32 copy. If the layer has an error that validation should find,
    its copy would make the same error, and so widen the tolerance. Versions that round intermediate
    results, which the base class describes, do not exist for a layer, since the operations within
    it cannot be rewritten.
    """

    def __init__(self, twin: Any) -> None:
        super().__init__(twin)

    def version(self, name: str) -> Any:
        if name not in self._made:
            twin: Any = self._made[PLAIN]
            if name != SHADOW or not type(twin.layer).__module__.startswith("torch."):
                raise NotImplementedError("a layer has no source to round in")
            narrow: Any = _LayerCopy(copy.deepcopy(twin.layer).float(), twin.device, _float32())
            self._made[name] = narrow
        return self._made[name]


def _float32() -> Any:
    return require("torch", "torch").float32
