"""What the adapters of the frameworks share: contexts, gradient checks, fuzzing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from gpuemu_flow.client.api import Client
from gpuemu_flow.client.calls import check_tolerances
from gpuemu_flow.client.context import ValidationContext, failed, submission
from gpuemu_flow.client.results import ClientError, NoOutputError, ValidationResult
from gpuemu_flow.frameworks.base import (
    Array,
    Arrays,
    CheckOutcome,
    FrameworkAdapter,
    Inputs,
    caller,
    named,
    outputs_of,
    to_tensors,
)
from gpuemu_flow.frameworks.local import (
    STEPS,
    Versions,
    checked_precision,
    compare,
    outputs_by_name,
    reference_of,
    with_changes,
)
from gpuemu_flow.frameworks.seeded import DTYPES, FuzzConfig, SeededFuzzer, fuzz_locally
from gpuemu_flow.model.errors import Problem, UsageError
from gpuemu_flow.model.types import Verdict
from gpuemu_flow.numerics.contract import default_tolerance
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, dtype_name, numpy_dtype, to_float64, widened
from gpuemu_flow.numerics.operand import INPUT
from gpuemu_flow.numerics.rng import SeededRng, derive_seed, generate_seed

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
    """Yield a context whose output is judged when the ``with`` body has ended. If `options` has a
    reference ``ref_fn``, the output is compared with the outputs of this reference. Otherwise, a
    daemon judges the output. The daemon gets the output as it is, or the result of
    ``submitted(context)`` if `submitted` is given."""
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
    """Return a context that yields the client: the given one or, without one, a new client. With a
    `ref_fn`, no client is needed, and none is made."""
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


EPS, ATOL, RTOL = 1e-4, 1e-5, 1e-3
_DRAWN_TOGETHER = 0.75  # for a smooth function, half the step leaves half the difference
_CALLS = 8  # a mask of few elements may well be drawn twice in a row
MAX_ELEMENTS = 1000
"""Most elements to check in one input. Of a larger input, a fixed seed chooses the elements."""


class GradientChecker:
    """Compares an op's gradients with central differences.

    The op is called with float64 tensors, so that the differences are exact enough to judge by. The
    outputs are summed with random weights: a plain sum would hide the errors of ops whose outputs
    have a constant sum, such as softmax. Elements at which the op has a kink are left out.

    Parameters
    ----------
    adapter : FrameworkAdapter
    eps : float
        Step of the differences, multiplied by the element's magnitude if this is above 1. It can
        also be passed as `epsilon`.
    atol, rtol : float
    """

    def __init__(
        self,
        adapter: FrameworkAdapter,
        eps: float = EPS,
        atol: float = ATOL,
        rtol: float = RTOL,
        *,
        epsilon: float | None = None,
        max_elements: int = MAX_ELEMENTS,
    ) -> None:
        check_tolerances(atol, rtol)
        self.adapter = adapter
        self.eps = eps if epsilon is None else epsilon
        self.atol = atol
        self.rtol = rtol
        self.max_elements = max_elements

    def check(
        self,
        op: Callable[..., Any],
        inputs: Inputs,
        check_inputs: Sequence[str] | None = None,
    ) -> CheckOutcome:
        """Check the gradients for all float inputs, or only for those in `check_inputs`.

        Parameters
        ----------
        inputs : mapping of name to tensor, or sequence of tensors
            Inputs of the op; `base.caller` describes how they are passed.
        """
        given = self.adapter.arrays(inputs)
        floats = [n for n, a in given.items() if dtype_name(a.dtype) in FLOAT_LIMITS]
        names = [n for n in floats if check_inputs is None or n in check_inputs]
        if not names:
            return CheckOutcome(False, "no input of a float dtype to differentiate by")
        wide = {n: to_float64(a) if n in floats else a for n, a in given.items()}
        function = caller(op, inputs)
        outputs, pull = self.adapter.pullback(function, wide, names)
        weights = _weights(outputs)
        gradients = pull(weights)

        def weighted(arrays: Arrays) -> float:
            made = self.adapter.evaluate(function, arrays)
            return float(sum(np.sum(to_float64(a) * w) for a, w in zip(made, weights, strict=True)))

        outcome = self._compare(weighted, wide, gradients)
        if not outcome.passed and self._is_random(weighted, wide):
            return CheckOutcome(
                False,
                "no verdict: calls on the same inputs gave different outputs; an op that draws "
                "random numbers must draw the same ones in each call",
            )
        return outcome

    def _is_random(self, weighted: Callable[[Arrays], float], arrays: Arrays) -> bool:
        """Tell whether calls on the same inputs differ too much for central differences."""
        found = [weighted(arrays) for _ in range(_CALLS)]
        return max(found) - min(found) > self.eps * self.atol

    def _compare(
        self,
        weighted: Callable[[Arrays], float],
        arrays: dict[str, Array],
        gradients: dict[str, Array],
    ) -> CheckOutcome:
        tried = kinks = 0
        here = weighted(arrays)
        worst = 0.0
        for name, gradient in gradients.items():
            if gradient.shape != arrays[name].shape:
                message = f"the gradient by {name!r} has shape {list(gradient.shape)}"
                return CheckOutcome(False, message, float("inf"))
            for index in self._places(arrays[name].shape):
                numeric, smooth = self._difference(weighted, arrays, name, index, here)
                tried += 1
                if not smooth:
                    kinks += 1
                    continue
                analytic = float(gradient[index])
                error = abs(analytic - numeric)
                worst = max(worst, error)
                if not error <= self.atol + self.rtol * abs(numeric):
                    return CheckOutcome(
                        False,
                        f"the gradient by {name!r} at {list(index)} is {analytic:.6g}; central "
                        f"differences give {numeric:.6g}",
                        error,
                        {"input": name, "index": list(index)},
                    )
        if not tried:
            return CheckOutcome(False, "no verdict: the inputs hold no element to differentiate by")
        if kinks == tried:
            return CheckOutcome(False, "no verdict: the op has a kink at every element tried")
        return CheckOutcome(
            True, f"{tried - kinks} elements agree", worst, {"tried": tried, "kinks": kinks}
        )

    def _places(self, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        size = int(np.prod(shape))
        flat = np.arange(size)
        if size > self.max_elements:
            flat = np.sort(np.random.default_rng(0).choice(size, self.max_elements, replace=False))
        return [tuple(int(i) for i in np.unravel_index(place, shape)) for place in flat]

    def _difference(
        self,
        weighted: Callable[[Arrays], float],
        arrays: dict[str, Array],
        name: str,
        index: tuple[int, ...],
        here: float,
    ) -> tuple[float, bool]:
        """Return the central difference for one element, and whether the derivative seems to
        exist. The derivative seems to exist if two step sizes give nearly the same result, and
        if there is no kink. To find a kink, the slopes on the two sides of the element's value
        are compared. As the step shrinks, these slopes converge if the function is smooth, and
        stay apart at a kink."""
        step = self.eps * max(1.0, abs(float(arrays[name][index])))
        found, apart = [], []
        for size in (step, step / 2):
            sides = []
            for sign in (1.0, -1.0):
                moved = arrays[name].copy()
                moved[index] += sign * size
                sides.append(weighted({**arrays, name: moved}))
            found.append((sides[0] - sides[1]) / (2 * size))
            apart.append(abs(sides[0] - 2 * here + sides[1]) / size)
        coarse, fine = found
        allowed = self.atol + self.rtol * max(abs(coarse), abs(fine))
        kink = apart[1] > allowed and apart[1] > _DRAWN_TOGETHER * apart[0]
        return fine, abs(coarse - fine) <= allowed and not kink


def _weights(outputs: Sequence[Array]) -> list[Array]:
    rng = np.random.default_rng(1)
    return [rng.uniform(0.5, 1.5, array.shape) for array in outputs]


Check = Callable[[Callable[..., Any], Mapping[str, Any]], CheckOutcome]
CASES: Mapping[str, Any] = {
    "batch_sizes": (1, 2, 4, 8),
    "seq_lengths": (64, 128, 256),
    "hidden_dims": (256, 512),
    "edge_cases": ((1,), (1, 1)),
}
"""Options for the sizes of cases, with which clients ask the daemon for cases."""


class FuzzOutcome(Mapping[str, Any]):
    """The result of fuzzing with a framework's own checks; values can be read by attribute or key.
    ``total``, ``passed``, ``failed`` and ``inconclusive`` are numbers of cases; ``seed`` is the
    master seed. ``unjudged`` is the share of all output elements without a verdict. ``reason``
    explains why the outcome is inconclusive; otherwise it is empty. ``forward_failures`` lists the
    results of the cases in which the op raised, or failed the comparison with the reference. Each
    requested check has a list of its own failures: for the check ``jit``, it is ``jit_failures``.
    The object is true if enough was judged and nothing failed."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._values:
            raise AttributeError(name)
        return self._values[name]

    def __bool__(self) -> bool:
        judged = self._values["passed"] > 0 and not self._values["reason"]
        return bool(self._values["failed"] == 0 and judged)

    def __repr__(self) -> str:
        counts = ", ".join(f"{n}={self._values[n]}" for n in ("total", "passed", "failed", "seed"))
        return f"FuzzOutcome({counts})"


class CheckFailedError(Exception):
    """Raised to end the fuzzing at the first failure of a check."""


class _Tried(Struct):
    """A function that converts numpy arrays to a framework's tensors, and calls the op. Fuzzers
    call it in place of the op. Each call also runs the framework's checks."""

    adapter: FrameworkAdapter
    op: Callable[..., Any]
    checks: Mapping[str, Check]
    master: int
    dtypes: Sequence[str]
    fail_fast: bool
    calls: int = 0
    failures: dict[str, list[CheckOutcome]] = field(default_factory=dict)
    stopped_at: int | None = None  # seed of the case whose check ended the fuzzing

    def __post_init__(self) -> None:
        self.failures = {name: [] for name in self.checks}

    @property
    def func(self) -> Callable[..., Any]:
        """Return the op, whose code this is, as `functools.partial` says it."""
        return self.op

    def __call__(self, inputs: Mapping[str, Any]) -> Any:
        case_seed = derive_seed(self.master, f"iter_{self.calls}")
        self.calls += 1
        dtype = SeededRng(case_seed).derive("dtype").choice(self.dtypes)
        arrays = dict(inputs)
        if dtype == "bfloat16":  # which travels as float32
            wide = numpy_dtype("float32")
            low = numpy_dtype(dtype)
            arrays = {n: a.astype(low) if a.dtype == wide else a for n, a in arrays.items()}
        run = caller(self.op, arrays)
        tensors = to_tensors(self.adapter, arrays)
        output = run(dict(tensors))
        judgeable = any(array.size for array in arrays.values())
        for name, check in self.checks.items() if judgeable else ():
            outcome = check(self.op, arrays)
            if not outcome.passed:
                self.failures[name].append(replace(outcome, seed=case_seed))
                if self.fail_fast:
                    self.stopped_at = case_seed
                    raise CheckFailedError(f"{name}: {outcome.message}")
        # The fuzzer looks for inputs that the op changed.
        for name, tensor in tensors.items() if self.adapter.mutable else ():
            np.copyto(inputs[name], self.adapter.to_numpy(tensor), casting="same_kind")
        returned = outputs_by_name(output)
        return returned if len(returned) > 1 else next(iter(returned.values()))


def fuzz_with_checks(
    adapter: FrameworkAdapter,
    client: Any,
    op_name: str,
    op: Callable[..., Any] | None,
    checks: Mapping[str, Check],
    *,
    iterations: int = 100,
    seed: int | None = None,
    fail_fast: bool = False,
    atol: float | None = None,
    rtol: float | None = None,
    precision: str | None = None,
    ref_fn: Callable[..., Any] | None = None,
    names: Sequence[str] = ("input",),
    dtypes: Sequence[str] | None = None,
    **options: Any,
) -> FuzzOutcome:
    """Fuzz an op with a client, or with `ref_fn` and no daemon. The parameters are described in
    each framework's function, such as `pytorch.fuzz_pytorch_op`."""
    if op is None or (client is None and ref_fn is None):
        raise UsageError(
            Problem("fuzz-arguments", "fuzzing takes an op, and a client or ref_fn to judge it by")
        )
    master = generate_seed() if seed is None else seed
    tried = _Tried(adapter, op, checks, master, tuple(dtypes or DTYPES), fail_fast)
    if ref_fn is not None:
        config = FuzzConfig(master, dtypes=tried.dtypes, **{**CASES, **options})
        cases = SeededFuzzer(config).iterator(iterations)
        found = fuzz_locally(
            tried, ref_fn, cases, seed=master, names=names, op_name=op_name,
            atol=atol, rtol=rtol, precision=precision or INPUT, fail_fast=fail_fast,
        )  # fmt: skip
    else:
        given = {"atol": atol, "rtol": rtol, "precision": precision}
        limits = {name: value for name, value in given.items() if value is not None}
        if dtypes is not None:
            options["dtypes"] = list(dtypes)
        found = client.fuzz_op_client_side(
            op_name, tried, iterations, master, fail_fast, **options, **limits
        )
    by_check = {f"{name}_failures": failures for name, failures in tried.failures.items()}
    # When a check ends the fuzzing, the client counts the op as one that raised.
    forward = [result for result in found.failures if result.seed != tried.stopped_at]
    seeds = {outcome.seed for failures in tried.failures.values() for outcome in failures}
    failed = len(seeds | {result.seed for result in forward})
    total = found.total
    return FuzzOutcome(
        {
            "total": total,
            "passed": total - failed - found.inconclusive,
            "failed": failed,
            "inconclusive": found.inconclusive,
            "unjudged": found.unjudged,
            "reason": found.reason,
            "seed": master,
            "forward_failures": forward,
            **by_check,
        }
    )
