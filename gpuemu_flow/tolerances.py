"""Choose and measure tolerances: the documented tables, profiles and calibration."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from gpuemu_flow.model.errors import Problem, UsageError, did_you_mean
from gpuemu_flow.model.types import Json, Tolerance, canonical_dtype
from gpuemu_flow.numerics.dtypes import numpy_dtype, to_float64

FLOATS = ("float16", "bfloat16", "float32", "float64")
Pairs = Mapping[str, tuple[float, float]]

DEFAULT_TOLERANCES: dict[str, dict[str, float]] = {
    "float16": {"atol": 1e-3, "rtol": 1e-2},
    "bfloat16": {"atol": 1e-2, "rtol": 1e-1},
    "float32": {"atol": 1e-5, "rtol": 1e-4},
    "float64": {"atol": 1e-10, "rtol": 1e-9},
}
"""Documented defaults of the Python interface. A configuration that sets no tolerance has ``auto``
instead; see docs/oracle.md."""

FRAMEWORK_FACTORS = {"numpy": 1.0, "pytorch": 1.0, "jax": 1.5, "tensorflow": 1.5}
OPERATION_FACTORS = {
    "matmul": 1.5, "softmax": 1.5, "conv2d": 2.0, "batchnorm": 2.0, "layernorm": 2.0,
    "attention": 2.5,
}  # fmt: skip
_UNKNOWN = (1e-5, 1e-5)
_STRICT: Pairs = {
    "float16": (1e-4, 1e-3), "bfloat16": (1e-3, 1e-2), "float64": (1e-12, 1e-11),
}  # fmt: skip
_RELAXED: Pairs = {
    "float16": (1e-2, 1e-1), "bfloat16": (5e-2, 5e-1), "float64": (1e-8, 1e-7),
}  # fmt: skip
_PRODUCTION: Pairs = {
    "float16": (5e-4, 5e-3), "bfloat16": (5e-3, 5e-2), "float32": (1e-6, 1e-5),
    "float64": (1e-12, 1e-11),
}  # fmt: skip
_CROSS_FACTOR = 1.5
_PROFILES = ("testing", "production", "cross_framework")


class ToleranceConfig(Struct, frozen=True):
    """The tolerance ``|actual - expected| <= atol + rtol * |expected|``, usable as a mapping.

    Raises
    ------
    ValueError
        `atol` or `rtol` is negative or NaN.
    """

    atol: float
    rtol: float

    def __post_init__(self) -> None:
        for name in ("atol", "rtol"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be at least 0, not {getattr(self, name)}")

    def __getitem__(self, name: str) -> float:
        if name not in ("atol", "rtol"):
            raise KeyError(name)
        return float(getattr(self, name))

    def keys(self) -> Iterator[str]:
        """Return ``atol`` and ``rtol``, so that ``**tolerance`` works."""
        return iter(("atol", "rtol"))

    @classmethod
    def for_dtype(cls, dtype: str, framework: str = "numpy") -> ToleranceConfig:
        """Return the default tolerance of a dtype, wider for frameworks that are less exact."""
        factor = FRAMEWORK_FACTORS.get(framework.lower(), 1.0)
        return cls(*_pair(DEFAULT_TOLERANCES, dtype)).scale(factor)

    @classmethod
    def strict(cls, dtype: str | None = None) -> ToleranceConfig:
        """Return a tolerance of about a tenth of a dtype's default; 1e-7 without a dtype."""
        if dtype is None:
            return cls(1e-7, 1e-7)
        return cls(*_STRICT.get(_name(dtype), (1e-6, 1e-5)))

    @classmethod
    def relaxed(cls, dtype: str | None = None) -> ToleranceConfig:
        """Return a tolerance of about ten times a dtype's default; 1e-3 without a dtype."""
        if dtype is None:
            return cls(1e-3, 1e-3)
        return cls(*_RELAXED.get(_name(dtype), (1e-4, 1e-3)))

    def scale(self, factor: float) -> ToleranceConfig:
        """Return the tolerance with `atol` and `rtol` multiplied by a factor."""
        return ToleranceConfig(self.atol * factor, self.rtol * factor)

    def to_dict(self) -> dict[str, float]:
        """Return ``{"atol": …, "rtol": …}``."""
        return {"atol": self.atol, "rtol": self.rtol}

    def as_tolerance(self) -> Tolerance:
        """Return the tolerance as the type that comparisons take."""
        return Tolerance(self.atol, self.rtol, "call")


def _name(dtype: Any) -> str:
    text = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    return canonical_dtype(str(text).rpartition(".")[2]) or str(dtype)


def _pair(table: Mapping[str, Mapping[str, float]], dtype: Any) -> tuple[float, float]:
    found = table.get(_name(dtype))
    return _UNKNOWN if found is None else (found["atol"], found["rtol"])


def compare_tolerances(a: ToleranceConfig, b: ToleranceConfig) -> dict[str, Json]:
    """Compare the numbers of two tolerances.

    Returns
    -------
    dict
        ``atol_ratio`` and ``rtol_ratio`` are the numbers of `a` divided by those of `b`, as text
        such as ``2.00x``. ``a_stricter`` is True if both numbers of `a` are smaller than those of
        `b`, and ``b_stricter`` is True if both numbers of `b` are smaller.
    """

    def ratio(name: str) -> str:
        return "inf" if b[name] == 0 else f"{a[name] / b[name]:.2f}x"

    return {
        "atol_ratio": ratio("atol"),
        "rtol_ratio": ratio("rtol"),
        "a_stricter": a.atol < b.atol and a.rtol < b.rtol,
        "b_stricter": b.atol < a.atol and b.rtol < a.rtol,
    }


class _Get:
    """Descriptor that makes `get` return a profile on the class, and a tolerance on a profile."""

    def __get__(self, profile: ToleranceProfile | None, owner: type[ToleranceProfile]) -> Any:
        return owner.named if profile is None else profile.of_dtype


class ToleranceProfile:
    """A tolerance for each dtype.

    Parameters
    ----------
    name : str
    tolerances : mapping of dtype to ToleranceConfig
    """

    get = _Get()

    def __init__(self, name: str, tolerances: Mapping[str, ToleranceConfig]) -> None:
        self.name = name
        self.tolerances = {_name(dtype): value for dtype, value in tolerances.items()}

    def of_dtype(self, dtype: str) -> ToleranceConfig:
        """Return the tolerance of a dtype; 1e-5 for a dtype that the profile does not name."""
        return self.tolerances.get(_name(dtype)) or ToleranceConfig(*_UNKNOWN)

    @property
    def atol(self) -> float:
        """Return the absolute tolerance of float32."""
        return self.of_dtype("float32").atol

    @property
    def rtol(self) -> float:
        """Return the relative tolerance of float32."""
        return self.of_dtype("float32").rtol

    @classmethod
    def named(cls, name: str) -> ToleranceProfile:
        """Return ``testing``, ``production`` or ``cross_framework``.

        Raises UsageError: ``unknown-tolerance-profile``.
        """
        if name == "cross_framework":
            return cls.for_cross_framework()
        if name not in _PROFILES:
            hint = did_you_mean(name, _PROFILES)
            message = f"there is no tolerance profile {name!r}"
            raise UsageError(Problem("unknown-tolerance-profile", message, hint))
        return cls.for_testing() if name == "testing" else cls.for_production()

    @classmethod
    def for_testing(cls) -> ToleranceProfile:
        """Return the profile ``testing``, which has the default tolerance of each float dtype."""
        return cls("testing", {d: ToleranceConfig.for_dtype(d) for d in FLOATS})

    @classmethod
    def for_production(cls) -> ToleranceProfile:
        """Return a profile stricter than the defaults."""
        return cls("production", {d: ToleranceConfig(*pair) for d, pair in _PRODUCTION.items()})

    @classmethod
    def for_cross_framework(cls, source: str = "pytorch", target: str = "jax") -> ToleranceProfile:
        """Return a profile to compare outputs of one framework with outputs of another."""
        factor = max(FRAMEWORK_FACTORS.get(f.lower(), 1.0) for f in (source, target))
        factor *= _CROSS_FACTOR
        each = {d: ToleranceConfig.for_dtype(d).scale(factor) for d in FLOATS}
        return cls(f"{source}-{target}", each)


def get_recommended_tolerance(
    first: str | None = None,
    second: str | None = None,
    third: str | None = None,
    *,
    dtype: str | None = None,
    framework: str | None = None,
    operation: str | None = None,
    op: str | None = None,
    op_type: str | None = None,
) -> ToleranceConfig:
    """Return a dtype's default tolerance, made wider for some frameworks and operations.

    `first`, `second` and `third` may name a dtype, a framework and an operation in any order: names
    of dtypes and of frameworks are recognised, and another name is the operation. The dtype is
    ``float32`` by default. `op` and `op_type` are other names of `operation`.
    """
    operation = operation or op or op_type
    for word in (first, second, third):
        if word is None:
            continue
        if dtype is None and canonical_dtype(word) is not None:
            dtype = word
        elif framework is None and word.lower() in FRAMEWORK_FACTORS:
            framework = word
        else:
            operation = operation or word
    tolerance = ToleranceConfig.for_dtype(dtype or "float32", framework or "numpy")
    return tolerance.scale(OPERATION_FACTORS.get((operation or "").lower(), 1.0))


def calibrate_tolerance(
    first: Any = None,
    second: Any = None,
    input_shapes: Sequence[Sequence[int]] | str | None = None,
    dtype: str = "float32",
    n_samples: int = 100,
    seed: int = 42,
    percentile: float = 99.0,
    safety_margin: float = 2.0,
    *,
    reference_fn: Callable[..., Any] | None = None,
    test_fn: Callable[..., Any] | None = None,
    op_fn: Callable[..., Any] | None = None,
    ref_fn: Callable[..., Any] | None = None,
    shapes: Sequence[Sequence[int]] | None = None,
    iterations: int | None = None,
) -> ToleranceConfig:
    """Measure a tolerance from the errors of an implementation that is known to be right.

    There are two forms. ``calibrate_tolerance(reference_fn, test_fn, input_shapes)`` calls two
    functions on random inputs; the keywords `ref_fn`, `op_fn` and `shapes` are other names of these
    arguments. ``calibrate_tolerance(client, "softmax")`` takes the errors from the passing results
    that the daemon has stored for an op.

    Parameters
    ----------
    input_shapes : sequence of shapes
        One shape for each argument of the reference. If there are more or fewer shapes than
        arguments, each call uses one of the shapes for all arguments, and calls use them in turn.
    n_samples, iterations : int
        Number of calls, or of stored results.
    percentile, safety_margin : float
        The suggestion is this percentile of the calls' largest errors, times the margin.

    Raises
    ------
    UsageError
        ``calibrate-arguments``: the arguments fit neither form.
    """
    count = iterations or n_samples
    if hasattr(first, "list_results"):
        wanted = input_shapes if isinstance(input_shapes, str) else dtype
        return _from_results(first, str(second), wanted, count, percentile, safety_margin)
    expected = reference_fn or ref_fn or (first if callable(first) else None)
    tested = test_fn or op_fn or (second if callable(second) else None)
    lists = shapes if shapes is not None else input_shapes
    if expected is None or tested is None or lists is None or isinstance(lists, str):
        raise UsageError(
            Problem(
                "calibrate-arguments",
                "calibrate_tolerance takes a reference, an implementation and shapes, or a client "
                "and an op's name",
            )
        )
    samples = _samples(expected, [tuple(shape) for shape in lists], dtype, count, seed)
    errors = [_errors(expected(*sample), tested(*sample)) for sample in samples]
    worst_abs, worst_rel = zip(*errors, strict=True)
    return ToleranceConfig(
        float(np.percentile(worst_abs, percentile)) * safety_margin,
        float(np.percentile(worst_rel, percentile)) * safety_margin,
    )


def _samples(
    function: Callable[..., Any], shapes: list[tuple[int, ...]], dtype: str, count: int, seed: int
) -> Iterator[list[Any]]:
    together = _arity(function) in (len(shapes), None)
    rng = np.random.default_rng(seed)
    wanted = numpy_dtype(dtype)
    for n in range(count):
        chosen = shapes if together else [shapes[n % len(shapes)]] * (_arity(function) or 1)
        yield [rng.standard_normal(shape).astype(wanted) for shape in chosen]


def _arity(function: Callable[..., Any]) -> int | None:
    """Return the number of positional arguments of a function; None if it is unknown."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return getattr(function, "nin", None)
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return None
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is p.empty for p in parameters)


def _errors(expected: Any, actual: Any) -> tuple[float, float]:
    """Return the largest absolute and relative difference, in float64."""
    wide_e, wide_a = to_float64(np.asarray(expected)), to_float64(np.asarray(actual))
    if not wide_e.size:
        return 0.0, 0.0
    difference = np.abs(wide_e - wide_a)
    return float(difference.max()), float((difference / (np.abs(wide_e) + 1e-10)).max())


def _from_results(
    client: Any, op: str, dtype: str, count: int, percentile: float, margin: float
) -> ToleranceConfig:
    """Calibrate from the passing results that the daemon has stored of an op."""
    results = [
        result
        for result in client.list_results(limit=10_000)
        if result.passed
        and result.op_name == op
        and (result.repro_info is None or _name(result.repro_info.dtype) == _name(dtype))
    ][:count]
    if not results:
        raise UsageError(
            Problem(
                "calibrate-no-results",
                f"the daemon has no passing result of {op} in {dtype}",
                "validate or fuzz the op first",
            )
        )
    worst_abs = float(np.percentile([r.max_diff for r in results], percentile)) * margin
    worst_rel = float(np.percentile([r.max_rel_diff for r in results], percentile)) * margin
    return ToleranceConfig(worst_abs, worst_rel)
