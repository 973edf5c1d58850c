"""Validation in this process, without a daemon: the same comparison and results as a client's."""

from __future__ import annotations

import functools
import linecache
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from msgspec import to_builtins
from msgspec.structs import replace
from numpy.typing import NDArray

from gpuemu_flow.client.calls import as_array, check_tolerances
from gpuemu_flow.client.context import failed
from gpuemu_flow.client.results import FailureInfo, ValidationResult
from gpuemu_flow.model.errors import Problem, RunnerError, UsageError, did_you_mean
from gpuemu_flow.model.installed import is_installed
from gpuemu_flow.model.types import PRECISIONS, CheckResult, Failure, Tolerance, Verdict
from gpuemu_flow.model.verdicts import Elements
from gpuemu_flow.numerics.checked_output import note_of_tolerance, note_of_zeros
from gpuemu_flow.numerics.compare import Policy, check_outputs
from gpuemu_flow.numerics.contract import PartialTolerance, resolve
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, dtype_name, to_float64
from gpuemu_flow.numerics.envelope import (
    Envelope,
    exact_outputs_of,
    is_exact_op,
    is_separate,
    shadow_is_faithful,
)
from gpuemu_flow.numerics.evaluations import on_each
from gpuemu_flow.numerics.operand import TENSOR_CORE, Rounding, rounding_for, rounding_to
from gpuemu_flow.numerics.shadow import shadow_source

# Versions of a function that compute in float32, compiled in this process from rewritten source.
# Loaded modules stay unchanged: the function is copied, together with the user's own functions and
# modules that it uses. Workers make such versions in another way: they import a reference once
# more, from rewritten files.

PLAIN, SHADOW, OPERANDS, STEPS = "plain", "shadow", "operands", "steps"
_NARROWED = {"float32": "float64", "complex64": "complex128"}
_MAX_DEPTH = 50


@functools.lru_cache(maxsize=4096)
def _is_own(path: str | None) -> bool:
    """Tell whether a file is the user's, and not one of Python, this package or installed ones."""
    if not path or path.startswith(_NOT_OWN):
        return False
    return not is_installed(path)


_NOT_OWN = (f"{Path(__file__).resolve().parent.parent}{os.sep}", "<frozen")


class Versions:
    """A function and its versions in float32 or with intermediate rounding, made on demand.

    Parameters
    ----------
    function : callable
        Versions are made from the source of functions, lambdas, partials, methods and functions
        returned by ``jax.jit``. Any other callable is used unchanged as every version.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._made: dict[str, Callable[..., Any]] = {PLAIN: function}
        self._rewritten: dict[str, bool] = {PLAIN: False}

    def rewritten(self, name: str) -> bool:
        self.version(name)
        return self._rewritten[name]

    def version(self, name: str) -> Callable[..., Any]:
        """Return one version of the function; make it when it is first requested.

        Parameters
        ----------
        name : str
            ``plain`` is the function itself. ``shadow`` computes in float32 what the function
            computes in float64. ``operands`` does so, too, and also passes the operands of matrix
            products through `operand.rounded`. ``steps`` does all this, and also passes the results
            of arithmetic and of calls through `operand.rounded`.
        """
        if name not in self._made:
            world = _World("" if name == SHADOW else name)
            self._made[name] = world.value(self._made[PLAIN])
            self._rewritten[name] = world.rewrote
        return self._made[name]


class _World:
    """Rewritten copies of functions, their closures, and the globals that they use."""

    def __init__(self, wrap: str) -> None:
        self.rewrote = False
        self._wrap = wrap
        self._modules: dict[int, ModuleType] = {}
        self._functions: dict[int, FunctionType] = {}
        self._codes: dict[str, list[tuple[CodeType, CodeType]]] = {}
        self._named: set[tuple[int, str]] = set()
        self._originals: list[Any] = []  # kept, so that no id is given to something else
        self._depth = 0

    def value(self, value: Any) -> Any:
        """Return a value's substitute: a rewritten function, a float32 copy, or the value."""
        if self._depth >= _MAX_DEPTH:
            return value
        self._depth += 1
        try:
            return self._value(value)
        finally:
            self._depth -= 1

    def _value(self, value: Any) -> Any:
        if isinstance(value, FunctionType):
            return self._function(value) if _is_own(value.__code__.co_filename) else value
        if isinstance(value, functools.partial):
            return functools.partial(
                self.value(value.func),
                *map(self.value, value.args),
                **{name: self.value(given) for name, given in value.keywords.items()},
            )
        if isinstance(value, MethodType):
            return MethodType(self.value(value.__func__), value.__self__)
        return self._of_framework(self._of_numpy(value))

    def _of_numpy(self, value: Any) -> Any:
        if value is np.float64 or value is np.complex128:
            return np.float32 if value is np.float64 else np.complex64
        if isinstance(value, np.dtype) and value in (np.float64, np.complex128):
            return np.dtype(np.float32 if value == np.float64 else np.complex64)
        if type(value) is np.ndarray and value.dtype == np.float64:
            return value.astype(np.float32)
        return value

    def _of_framework(self, value: Any) -> Any:
        library = type(value).__module__.partition(".")[0]
        if library in ("jax", "jaxlib"):
            inner = getattr(value, "__wrapped__", None)
            if isinstance(inner, FunctionType):
                return self.value(inner)
        torch = sys.modules.get("torch")
        if torch is not None and library == "torch":
            if value is torch.float64:
                return torch.float32
            if type(value) is torch.Tensor and value.dtype == torch.float64:
                return value.detach().float()
        return value

    def _function(self, function: FunctionType) -> FunctionType:
        known = self._functions.get(id(function))
        if known is not None:
            return known
        old = function.__code__
        code = self._code(old)
        cells = tuple(CellType() for _ in old.co_freevars)
        space = self._space(function.__globals__)
        made = FunctionType(code, space, function.__name__, function.__defaults__, cells or None)
        made.__kwdefaults__ = function.__kwdefaults__
        made.__dict__.update(function.__dict__)
        made.__qualname__, made.__module__ = function.__qualname__, function.__module__
        self._originals.append(function)
        self._functions[id(function)] = made
        if function.__defaults__:
            made.__defaults__ = tuple(map(self.value, function.__defaults__))
        names = set(_names(code))
        self._fill(function.__globals__, space, names)
        for cell, original in zip(cells, function.__closure__ or (), strict=True):
            try:
                content = original.cell_contents
            except ValueError:  # not assigned yet
                continue
            cell.cell_contents = self.value(content)
            if isinstance(content, ModuleType):
                cell.cell_contents = self._module(content, names)
        return made

    def _space(self, names: dict[str, Any]) -> dict[str, Any]:
        """Return the copied globals of a module; make the copy when it is first requested. `names`
        is the module's own dict. All rewritten functions of the module use the same copy."""
        made = self._modules.get(id(names))
        if made is None:
            made = self._modules[id(names)] = ModuleType(str(names.get("__name__", "shadow")))
            made.__dict__.update(names)
            self._originals.append(names)
        return made.__dict__

    def _fill(self, old: dict[str, Any], new: dict[str, Any], names: set[str]) -> None:
        for name in names:
            source = name if name in old else _NARROWED.get(name, name)
            if source not in old:
                continue
            value = old[source]
            if isinstance(value, ModuleType):
                new[name] = self._module(value, names)
            elif (id(old), name) not in self._named:
                self._named.add((id(old), name))
                new[name] = self.value(value)

    def _module(self, module: ModuleType, names: set[str]) -> ModuleType:
        if not _is_own(getattr(module, "__file__", None)) or self._depth >= _MAX_DEPTH:
            return module
        old = vars(module)
        new = self._space(old)
        self._depth += 1
        try:
            self._fill(old, new, {n for n in names if n in old and old[n] is not module})
        finally:
            self._depth -= 1
        return self._modules[id(old)]

    def _code(self, code: CodeType) -> CodeType:
        path = code.co_filename
        if path not in self._codes:
            self._codes[path] = self._compile(path)
        found = [(old, new) for old, new in self._codes[path] if _is_the_place(old, code)]
        if len(found) != 1:
            return code
        (_, new), same = found[0], ("co_freevars", "co_argcount", "co_kwonlyargcount", "co_flags")
        if not all(getattr(new, n) == getattr(code, n) for n in same):
            return code
        self.rewrote = self.rewrote or new != found[0][0]
        return new

    def _compile(self, path: str) -> list[tuple[CodeType, CodeType]]:
        linecache.checkcache(path)
        source = "".join(linecache.getlines(path))
        changed = shadow_source(source, self._wrap) if source else None
        if changed is None:
            return []
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                old = compile(source, path, "exec", dont_inherit=True)
                new = compile(changed, path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return []
        pairs = list(zip(_nested(old), _nested(new), strict=False))
        same_names = all(one.co_name == other.co_name for one, other in pairs)
        return pairs if same_names and len(pairs) == sum(1 for _ in _nested(new)) else []


def _is_the_place(old: CodeType, code: CodeType) -> bool:
    """Tell whether the code of a loaded function comes from the same source as `old`."""
    if old == code:
        return True
    here = old.co_name == code.co_name and old.co_firstlineno == code.co_firstlineno
    return here and any("@pytest_ar" in (*c.co_names, *c.co_freevars) for c in _nested(code))


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _names(code: CodeType) -> Iterator[str]:
    for one in _nested(code):
        yield from one.co_names


Arrays = dict[str, NDArray[Any]]
OUTPUT = "output"


def outputs_by_name(returned: Any) -> Arrays:
    """Convert the return value of an op, which is one tensor, several in an order, or a mapping."""
    if isinstance(returned, Mapping):
        values = {str(name): value for name, value in returned.items()}
    elif isinstance(returned, (tuple, list)):
        values = {f"{OUTPUT}_{n}": value for n, value in enumerate(returned)}
    else:
        values = {OUTPUT: returned}
    return {name: as_array(value, name) for name, value in values.items()}


def reference_of(
    function: Callable[..., Any] | Versions,
    call: Callable[[Callable[..., Any], Arrays], Any],
) -> LocalReference:
    """Return a function as a `LocalReference`.

    Parameters
    ----------
    function : callable or Versions
    call : callable
        Calls a version of the function, such as its float32 version, on arrays by name. Returns the
        outputs in a form that `outputs_by_name` accepts.
    """
    return LocalReference(function, lambda version, arrays: outputs_by_name(call(version, arrays)))


def compare(
    actual: Any,
    expected: Any,
    *,
    inputs: Mapping[str, Any] | None = None,
    op_name: str = "op",
    seed: int = 0,
    atol: float | None = None,
    rtol: float | None = None,
    found: tuple[Failure, ...] = (),
    raise_on_failure: bool = False,
    reference: LocalReference | None = None,
    precision: str = TENSOR_CORE,
) -> ValidationResult:
    """Judge the outputs of an op against those of its reference.

    Parameters
    ----------
    actual, expected : tensor, sequence of tensors, or mapping of name to tensor
        Of any framework. Expected floats that are wider than the actual ones are not rounded before
        the comparison.
    inputs : mapping of name to tensor, optional
        The op's inputs. `reference` is measured on them, and they show whether NaN and Inf in the
        output can come from NaN and Inf in the inputs.
    atol, rtol : float, optional
        Replace the tolerance measured on the reference or, if the reference cannot be called again,
        the documented tolerance of the output's dtype.
    found : tuple of Failure
        Further failures of the output that are already known.
    raise_on_failure : bool
    reference : LocalReference, optional
        The function that gave `expected`, called with float64 arrays; see `reference_of`.
    precision : str
        Which values a correct op may round; one of `types.PRECISIONS`. It only affects a tolerance
        that is measured on `reference`.

    Raises
    ------
    ValidationError
        Only with `raise_on_failure`.
    ClientError
        ``client-not-a-tensor``, ``client-bad-tolerance``.
    """
    start = time.perf_counter()
    check_tolerances(atol, rtol)
    ours, theirs = outputs_by_name(actual), outputs_by_name(expected)
    if len(ours) == len(theirs) == 1:
        ours = dict(zip(theirs, ours.values(), strict=True))
    dtypes: dict[str, str] = {}
    for name, array in theirs.items():
        own = dtype_name(ours[name].dtype) if name in ours else None
        if own in FLOAT_LIMITS and _is_wider(array, ours[name]):
            theirs[name], dtypes[name] = to_float64(array), own
    call = PartialTolerance(atol, rtol)
    tolerance: dict[str, Tolerance] | Envelope = {
        name: resolve(name, call=call)
        for name in {dtype_name(array.dtype) or "" for array in ours.values()}
    }
    held = {name: as_array(value, name) for name, value in (inputs or {}).items()}
    if reference is not None and atol is None and rtol is None and held:
        of_ours = {name: dtype_name(array.dtype) or "" for name, array in ours.items()}
        tolerance = local_envelope(reference, held, theirs, of_ours, seed, precision)
    checked = check_outputs(
        ours,
        theirs,
        tolerance=tolerance,
        policy=Policy(),
        expected_dtypes=dtypes,
        inputs=held,
    )
    result = as_result(checked, ours, op_name, seed, found, time.perf_counter() - start)
    if raise_on_failure and not result.passed:
        raise failed(result)
    return result


def _is_wider(expected: NDArray[Any], actual: NDArray[Any]) -> bool:
    name = dtype_name(expected.dtype)
    return name in FLOAT_LIMITS and expected.dtype.itemsize > actual.dtype.itemsize


def as_result(
    checked: CheckResult,
    outputs: Arrays,
    op_name: str,
    seed: int,
    found: tuple[Failure, ...] = (),
    seconds: float = 0.0,
) -> ValidationResult:
    """Return a comparison as the `ValidationResult` that a client would return. `found` are further
    failures, and `seconds` is the duration."""
    failures = (*found, *checked.failures)
    verdict = checked.verdict
    if found and verdict in (Verdict.PASSED, Verdict.INCONCLUSIVE):
        verdict = Verdict.FAILED
    stats = checked.stats
    return ValidationResult(
        passed=verdict is Verdict.PASSED,
        seed=seed,
        op_name=op_name,
        max_diff=stats.max_abs,
        max_rel_diff=stats.max_rel,
        failures=[_failure_info(failure, outputs) for failure in failures],
        timestamp=int(time.time()),
        duration_ms=round(seconds * 1000),
        error_stats=to_builtins(stats),
        verdict=verdict.value,
        notes=[*note_of_tolerance(checked), *note_of_zeros(checked), *checked.notes],
        tolerance_used=stats.tolerance_used,
        unjudged=stats.unjudged,
        compared=to_builtins(Elements.of(checked)),
    )


def with_changes(result: ValidationResult, changed: Mapping[str, int]) -> ValidationResult:
    """Return a result with notes on the inputs that the op changed in place. `changed` has, for
    each of these inputs, the number of changed elements. Such a change is not a failure: without a
    configuration, it may be intended."""
    notes = [
        f"inputs-changed: the op changed {count} elements of input {name!r} in place"
        for name, count in changed.items()
    ]
    return replace(result, notes=[*notes, *result.notes]) if notes else result


def _failure_info(failure: Failure, outputs: Arrays) -> FailureInfo:
    flat = None
    array = outputs.get(failure.output)
    if failure.index is not None and array is not None and len(failure.index) == array.ndim:
        flat = int(np.ravel_multi_index(failure.index, array.shape)) if array.ndim else 0
    return FailureInfo(
        kind=failure.kind.value,
        message=failure.message,
        index=flat,
        expected=failure.expected,
        actual=failure.actual,
        output=failure.output,
        multi_index=None if failure.index is None else list(failure.index),
    )


# The ``auto`` tolerance of an output whose reference is a function in this process.


GivenArrays = Mapping[str, NDArray[Any]]
Outputs = dict[str, NDArray[Any]]
_ROUNDING = threading.RLock()  # what a shadow rounds to is a setting of the whole process


class LocalReference:
    """A reference in this process, which can be evaluated repeatedly.

    Parameters
    ----------
    function : callable or Versions
        The user's own function. Other versions, such as one that computes in float32, are made from
        its source.
    outputs : callable
        Takes the function, or another version of it, and inputs. Calls the function on the inputs,
        and returns its outputs as arrays by name.
    """

    def __init__(
        self,
        function: Callable[..., Any] | Versions,
        outputs: Callable[[Callable[..., Any], dict[str, NDArray[Any]]], Outputs],
    ) -> None:
        self.versions = function if isinstance(function, Versions) else Versions(function)
        self._outputs = outputs

    def __call__(
        self, inputs: GivenArrays, *, shadow: bool = False, rounding: Rounding | None = None
    ) -> Outputs:
        """Return the reference's outputs, as `numerics.evaluations.Evaluate` describes."""
        name = SHADOW if shadow else PLAIN
        if rounding is not None:
            name = STEPS if rounding.steps else OPERANDS
        copies = {key: array.copy(order="K") for key, array in inputs.items()}
        try:
            function = self.versions.version(name)
            if rounding is None:
                with np.errstate(all="ignore"):
                    return self._outputs(function, copies)
            with _ROUNDING, rounding_to(rounding), np.errstate(all="ignore"):
                return self._outputs(function, copies)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            raise RunnerError(Problem("reference-failed", text)) from None


def checked_precision(precision: str | None) -> str | None:
    """Return `precision` if it is None or one of `PRECISIONS`. Raise UsageError
    ``validate-arguments`` for any other value."""
    if precision is None or precision in PRECISIONS:
        return precision
    raise UsageError(
        Problem(
            "validate-arguments",
            f"precision {str(precision)[:60]!r} is none of {', '.join(PRECISIONS)}",
            did_you_mean(str(precision)[:60], PRECISIONS),
        )
    )


def local_envelope(
    reference: LocalReference,
    inputs: GivenArrays,
    expected: GivenArrays,
    dtypes: Mapping[str, str],
    seed: int,
    precision: str,
) -> Envelope:
    """Return the error that a correct op may have, measured by evaluating the reference again.

    Parameters
    ----------
    reference : LocalReference
    inputs, expected : mapping of str to ndarray
        The inputs in their own dtypes, and the reference's outputs on them in float64.
    dtypes : mapping of str to str
        Dtypes of the op's outputs.
    seed : int
        Seed of random inputs, and of random changes of the given inputs.
    precision : str
        Which values a correct op may round as it computes; one of `PRECISIONS`.
    """
    plain = on_each(reference, [_plain(inputs, seed)])
    exact = is_exact_op(plain)
    weak = not exact and not shadow_is_faithful(plain)
    names = [dtype_name(array.dtype) or "" for array in inputs.values()]
    floats = [name for name in names if name in FLOAT_LIMITS]
    return Envelope(
        inputs,
        expected,
        reference,
        dtype=dtypes,
        seed=seed,
        exact_op=exact,
        exact_outputs=exact_outputs_of(plain) if not exact and not weak else (),
        weak=weak,
        rounding=rounding_for(precision, floats[0]) if floats else None,
        separate=lambda axis: is_separate(axis, plain),
    )


def _plain(inputs: GivenArrays, seed: int) -> dict[str, NDArray[Any]]:
    """Return the inputs with all floats replaced by normal random values, to test the reference."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal(array.shape, dtype=np.float32)
        if dtype_name(array.dtype) in FLOAT_LIMITS
        else array
        for name, array in inputs.items()
    }
