"""Make shapes, dtypes, layouts and tensors for testing an op, from a seed and without a daemon."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
from msgspec import Struct, field, to_builtins
from msgspec.structs import replace
from numpy.typing import NDArray

from gpuemu_flow.cases import protocol_v1
from gpuemu_flow.client.results import (
    FailureInfo,
    FuzzResults,
    ValidationResult,
    raised_result,
    summed,
)
from gpuemu_flow.frameworks.base import caller
from gpuemu_flow.frameworks.local import (
    Versions,
    checked_precision,
    compare,
    outputs_by_name,
    reference_of,
)
from gpuemu_flow.model.types import Case, FailureKind, InputSpec, Json, Shape, Verdict
from gpuemu_flow.model.verdicts import Elements, decide
from gpuemu_flow.numerics.dtypes import numpy_dtype, to_float64, widened
from gpuemu_flow.numerics.operand import TENSOR_CORE
from gpuemu_flow.numerics.rng import SeededRng, derive_seed, generate_seed
from gpuemu_flow.numerics.rng_arrays import fill_uniform

__all__ = [
    "BATCH_SIZES",
    "DTYPES",
    "EDGE_CASES",
    "HIDDEN_DIMS",
    "LAYOUTS",
    "SEQ_LENGTHS",
    "FuzzConfig",
    "SeededFuzzer",
    "TestCase",
    "fuzz_dtypes",
    "fuzz_dtypes_seeded",
    "fuzz_layouts",
    "fuzz_layouts_seeded",
    "fuzz_shapes",
    "fuzz_shapes_seeded",
    "generate_random_tensor",
]

BATCH_SIZES = (1, 2, 4, 8, 16, 32)
SEQ_LENGTHS = (64, 128, 256, 512, 1024)
HIDDEN_DIMS = (256, 512, 768, 1024)
EDGE_CASES: tuple[Shape, ...] = ((1,), (1, 1), (1, 1, 1))
DTYPES = ("float32", "float16")
LAYOUTS = ("contiguous", "strided", "transposed")
_RANGES = {"min_dims": 1, "max_dims": 4, "min_size": 1, "max_size": 64}
_SCALE = 10.0


def fuzz_shapes(*limits: int, seed: int | None = None, **dims: Any) -> Iterator[Shape]:
    """Yield every combination of given sizes; without sizes, yield random shapes without end.

    Parameters
    ----------
    *limits : int
        Values of ``min_dims``, ``max_dims``, ``min_size`` and ``max_size``, in this order; at most
        four.
    seed : int, optional
        Seed of random shapes.
    **dims
        For every combination of sizes: a sequence of sizes for each dim, in the order of the dims.
        For random shapes: any of the limits ``min_dims``, ``max_dims``, ``min_size`` and
        ``max_size``, which are inclusive integers; those that are left out have default values.
    """
    if len(limits) > len(_RANGES):
        raise TypeError(f"fuzz_shapes takes {len(_RANGES)} limits, not {len(limits)}")
    by_position = dict(zip(_RANGES, limits, strict=False))
    if set(by_position) & set(dims):
        raise TypeError(f"fuzz_shapes got {', '.join(set(by_position) & set(dims))} twice")
    given = {**by_position, **dims}
    if given and not set(given) <= set(_RANGES):
        yield from itertools.product(*dims.values())
        return
    inside = _limits(given)
    rng = SeededRng(generate_seed() if seed is None else seed)
    for n in itertools.count():
        yield _random_shape(rng.derive(f"iter_{n}").derive("shape"), inside)


def _limits(given: Mapping[str, int | None]) -> dict[str, int]:
    limits = {**_RANGES, **{name: value for name, value in given.items() if value is not None}}
    for what in ("dims", "size"):
        if not 0 <= limits[f"min_{what}"] <= limits[f"max_{what}"]:
            raise ValueError(f"min_{what} and max_{what} leave nothing to choose from: {limits}")
    return limits


def _random_shape(rng: SeededRng, limits: Mapping[str, int]) -> Shape:
    rank = rng.gen_range(limits["min_dims"], limits["max_dims"] + 1)
    return tuple(rng.gen_range(limits["min_size"], limits["max_size"] + 1) for _ in range(rank))


def fuzz_dtypes(
    dtypes: Sequence[str] | None = None,
    include: Sequence[str] | None = None,
    exclude: Sequence[str] = (),
) -> Iterator[str]:
    """Yield `dtypes` or `include` (by default float32 and float16), except those in `exclude`."""
    yield from (name for name in (dtypes or include or DTYPES) if name not in exclude)


def fuzz_layouts(
    shape: Sequence[int] | None = None,
    include_contiguous: bool = True,
    include_strided: bool = True,
    include_transposed: bool = True,
) -> Iterator[Any]:
    """Yield layouts of a shape as (shape, strides in elements); without a shape, their names.

    The layouts are the contiguous one, each swap of two neighbouring dims, and a layout that uses
    every second element of the memory.
    """
    if shape is None:
        wanted = (include_contiguous, include_strided, include_transposed)
        yield from itertools.compress(LAYOUTS, wanted)
        return
    dims = tuple(shape)
    if include_contiguous:
        yield dims, protocol_v1.nominal_strides(dims, "contiguous")
    if include_transposed:
        for i in range(len(dims) - 1):
            swapped = (*dims[:i], dims[i + 1], dims[i], *dims[i + 2 :])
            yield swapped, protocol_v1.nominal_strides(swapped, "contiguous")
    if include_strided:
        yield dims, protocol_v1.nominal_strides(dims, "strided")


def fuzz_shapes_seeded(
    seed: int,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    seq_lengths: Sequence[int] = SEQ_LENGTHS,
    hidden_dims: Sequence[int] = HIDDEN_DIMS,
    edge_cases: Sequence[Sequence[int]] = EDGE_CASES,
    edge_case_probability: float = protocol_v1.EDGE_CASE_PROBABILITY,
    **limits: int,
) -> Iterator[tuple[int, Shape]]:
    """Yield (case seed, shape) without end, as the daemon does for the same seed and lists.

    With `min_dims`, `max_dims`, `min_size` or `max_size`, shapes are random within these limits.
    """
    if limits:
        seeds = (case_seed for case_seed, _ in _iterations(seed, "shape"))
        yield from zip(seeds, fuzz_shapes(seed=seed, **limits), strict=False)
        return
    for case_seed, rng in _iterations(seed, "shape"):
        if edge_cases and rng.gen_bool(edge_case_probability):
            yield case_seed, tuple(rng.choice(edge_cases))
            continue
        batch, seq = rng.choice(batch_sizes), rng.choice(seq_lengths)
        yield case_seed, (batch, seq, rng.choice(hidden_dims))


def fuzz_dtypes_seeded(
    seed: int, dtypes: Sequence[str] = DTYPES, *, include: Sequence[str] | None = None
) -> Iterator[tuple[int, str]]:
    """Yield (case seed, dtype) without end, of `dtypes` or `include`."""
    for case_seed, rng in _iterations(seed, "dtype"):
        yield case_seed, rng.choice(include or dtypes)


def fuzz_layouts_seeded(
    seed: int, shape: Sequence[int] | None = None, layouts: Sequence[str] = LAYOUTS
) -> Iterator[tuple[Any, ...]]:
    """Yield (case seed, layout, shape, strides) without end; without `shape`, omit the last two."""
    for case_seed, rng in _iterations(seed, "layout"):
        layout = rng.choice(layouts)
        if shape is None:
            yield case_seed, layout
            continue
        yield case_seed, layout, tuple(shape), _strides(tuple(shape), layout)


def _strides(shape: Shape, layout: str) -> tuple[int, ...]:
    if layout != "channels_last" or len(shape) < 3:
        named = layout if layout in LAYOUTS else "contiguous"
        return protocol_v1.nominal_strides(shape, named)
    # In memory the channels, dim 1, come last.
    batch, channels, *rest = shape
    inner = protocol_v1.nominal_strides((batch, *rest, channels), "contiguous")
    return (inner[0], inner[-1], *inner[1:-1])


def _iterations(seed: int, domain: str) -> Iterator[tuple[int, SeededRng]]:
    for n in itertools.count():
        case_seed = derive_seed(seed, f"iter_{n}")
        yield case_seed, SeededRng(case_seed).derive(domain)


def generate_random_tensor(
    seed: int,
    shape: Sequence[int],
    dtype: str = "float32",
    domain: str | tuple[float, float] = "data",
) -> NDArray[Any]:
    """Return a tensor of random values that a seed determines.

    Parameters
    ----------
    domain : str or (float, float)
        The name of a random stream, or the range ``[low, high)`` of uniform values. A stream gives
        floats that are ten times a standard normal value. It gives integers and booleans as the
        daemon draws them. (The function of this name in the original gpuemu package gives zeros
        for integers and booleans, or fails.)
    """
    dims, wanted = tuple(shape), numpy_dtype(dtype)
    count = math.prod(dims)
    if not isinstance(domain, str):
        low, high = domain
        uniform = SeededRng(seed).derive("data").f64(count) * (high - low) + low
        scaled: NDArray[Any] = uniform.reshape(dims).astype(wanted)
        return scaled
    rng = SeededRng(seed).derive(domain)
    if wanted.kind in "iub":
        return fill_uniform(rng, count, wanted.name).reshape(dims)
    values: NDArray[Any] = rng.randn(*dims).astype(wanted) * wanted.type(_SCALE)
    return values


class FuzzConfig(Struct):
    """Settings that decide a sequence of cases: sizes per dim, or limits of random shapes.

    The class can also be called with limits in place of the lists of sizes:
    ``FuzzConfig(iterations, seed, min_dims, max_dims, min_size, max_size)``.

    Attributes
    ----------
    seed : int
        Seed of the sequence; by default, it is taken from the clock.
    batch_sizes, seq_lengths, hidden_dims, edge_cases
        Sizes to draw from; one case in ten is an edge case.
    dtypes, layouts : sequence of str
    iterations : int
        Number of cases of `SeededFuzzer.run`.
    min_dims, max_dims, min_size, max_size : int, optional
        Limits of the number of dims and of their sizes. If any limit is given, shapes are random
        within these limits, and the lists of sizes are not used.
    """

    seed: int | None = None
    batch_sizes: Sequence[int] = BATCH_SIZES
    seq_lengths: Sequence[int] = SEQ_LENGTHS
    hidden_dims: Sequence[int] = HIDDEN_DIMS
    dtypes: Sequence[str] = DTYPES
    layouts: Sequence[str] = LAYOUTS
    edge_cases: Sequence[Sequence[int]] = (*EDGE_CASES, (0,))
    iterations: int = 100
    min_dims: int | None = None
    max_dims: int | None = None
    min_size: int | None = None
    max_size: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.batch_sizes, int):
            self._read_numbers()
        if self.seed is None:
            self.seed = generate_seed()

    def _read_numbers(self) -> None:
        """Correct the fields after a call that gives limits in place of lists of sizes.

        Such a call is ``FuzzConfig(iterations, seed, min_dims, max_dims, min_size, max_size)``. The
        fields have another order, so that the call stores the seed in ``batch_sizes``, for example.
        This method moves each number to its own field, and gives the lists their default values.
        """
        if self.seed is not None:
            self.iterations = self.seed
        self.seed = cast("int", self.batch_sizes)
        self.batch_sizes = BATCH_SIZES
        lists = {"seq_lengths": SEQ_LENGTHS, "hidden_dims": HIDDEN_DIMS,
                 "dtypes": DTYPES, "layouts": LAYOUTS}  # fmt: skip
        for (name, usual), limit in zip(lists.items(), _RANGES, strict=True):
            given = getattr(self, name)
            if isinstance(given, int):
                setattr(self, limit, given)
                setattr(self, name, usual)

    @property
    def limits(self) -> dict[str, int] | None:
        """Return the limits of random shapes; None if lists of sizes are given."""
        given = {name: getattr(self, name) for name in _RANGES}
        return _limits(given) if any(v is not None for v in given.values()) else None

    def as_request(self) -> protocol_v1.SequenceConfig:
        """Convert to the daemon's class, or raise the errors of `protocol_v1.SequenceConfig`."""
        return protocol_v1.SequenceConfig.from_json(self.to_dict())

    def to_dict(self) -> dict[str, Json]:
        """Return the settings in the form of a request's ``fuzz_config``."""
        return {
            "seed": self.seed,
            "shape_options": {
                "batch_sizes": list(self.batch_sizes),
                "seq_lengths": list(self.seq_lengths),
                "hidden_dims": list(self.hidden_dims),
                "edge_cases": [list(shape) for shape in self.edge_cases],
            },
            "dtypes": list(self.dtypes),
            "layouts": list(self.layouts),
        }


class TestCase(Struct, frozen=True):
    """One case.

    Attributes
    ----------
    seed : int
    shape, strides : tuple of int
        Strides count elements. They are the strides that the layout's name implies, although the
        arrays are in C order.
    dtype, layout : str
    """

    __test__ = False  # pytest takes classes of this name for its own

    seed: int
    shape: Shape
    dtype: str
    layout: str
    strides: tuple[int, ...] = field(default=())

    def generate_input(self, name: str = "input") -> NDArray[Any]:
        """Return normally distributed values for an input, from the random stream called `name`."""
        return generate_random_tensor(self.seed, self.shape, self.dtype, name)

    def tensors(self, names: Sequence[str] = ("input",)) -> dict[str, NDArray[Any]]:
        """Return the tensors that the daemon makes of this case for the inputs `names`.

        The values of an input depend on its position in `names`, not on its name.
        """
        inputs = tuple(
            InputSpec(name, self.shape, self.dtype, position=position)
            for position, name in enumerate(names)
        )
        case = Case(0, self.seed, self.dtype, "contiguous", "uniform", inputs)
        return protocol_v1.tensors(case, protocol_v1=False)

    @property
    def inputs(self) -> dict[str, NDArray[Any]]:
        """Return the case's tensors for an op with a single input, named ``input``."""
        return self.tensors()


class SeededFuzzer:
    """A repeatable sequence of cases, made from a seed.

    For the same seed and the same lists of sizes, the daemon makes the same cases.

    Parameters
    ----------
    config : FuzzConfig or int
        All settings, or only the seed.
    options : FuzzConfig, optional
        The other settings if `config` is a seed. The seed in `options` is ignored.
    """

    def __init__(self, config: FuzzConfig | int, options: FuzzConfig | None = None) -> None:
        if isinstance(config, FuzzConfig):
            self.config = config
        else:
            self.config = replace(options or FuzzConfig(0), seed=config)
        self._request = self.config.as_request()
        self._limits = self.config.limits
        self._next = 0

    def next(self) -> TestCase:
        """Return the next case."""
        case = protocol_v1.case_at(self._request, ["input"], self._next)
        self._next += 1
        shape = protocol_v1.representative_shape(self._request, case)
        if self._limits is not None:
            shape = _random_shape(SeededRng(case.seed).derive("shape"), self._limits)
        strides = protocol_v1.nominal_strides(shape, case.layout)
        return TestCase(case.seed, shape, case.dtype, case.layout, strides)

    def next_test_case(self) -> TestCase:
        """Return the next case; the same as `next`."""
        return self.next()

    def iterator(self, max_iterations: int = 1000) -> Iterator[TestCase]:
        """Yield the next cases, at most `max_iterations`."""
        return (self.next() for _ in range(max_iterations))

    def __iter__(self) -> Iterator[TestCase]:
        return self.iterator(self.config.iterations)

    def reset(self) -> None:
        """Restart with the first case."""
        self._next = 0

    def run(
        self,
        op_fn: Callable[..., Any],
        ref_fn: Callable[..., Any] | None = None,
        iterations: int | None = None,
        **options: Any,
    ) -> Any:
        """Run an op on the cases, beginning with the first; see `frameworks.local_fuzz`.

        Without a reference, a case fails if the op raises an exception or returns NaN or Inf.

        Returns
        -------
        FuzzResults
        """
        self.reset()
        count = self.config.iterations if iterations is None else iterations
        return fuzz_locally(op_fn, ref_fn, self.iterator(count), seed=self.config.seed, **options)


# Fuzz an op in this process against a reference that is a Python function.


def fuzz_locally(
    op_fn: Callable[..., Any],
    ref_fn: Callable[..., Any] | None,
    cases: Iterable[TestCase],
    *,
    seed: int | None = None,
    names: Sequence[str] = ("input",),
    op_name: str = "op",
    atol: float | None = None,
    rtol: float | None = None,
    precision: str = TENSOR_CORE,
    fail_fast: bool = False,
    convert: Callable[[Any], Any] | None = None,
) -> FuzzResults:
    """Run an op on cases and compare its outputs with those of a Python function.

    Parameters
    ----------
    ref_fn : callable, optional
        The reference: a function of numpy arrays, with float inputs in float64. Without a
        reference, a case fails if the op raises, or returns NaN or Inf.
    names : sequence of str
        Names of the op's inputs.
    precision : str
        Which values a correct op may round: ``tensor-core``, ``float32`` or ``input``; see
        ``docs/oracle.md``.
    convert : callable, optional
        Turns an array into an argument of the op; by default, copies the array.
    """
    allowed = checked_precision(precision) or TENSOR_CORE
    limits: dict[str, Any] = {"atol": atol, "rtol": rtol, "precision": allowed}
    versions = None if ref_fn is None else Versions(ref_fn)
    done: list[ValidationResult] = []
    for case in cases:
        done.append(
            _judged(op_fn, ref_fn, versions, case, names, op_name, limits, convert or np.copy)
        )
        if fail_fast and not done[-1].passed and done[-1].verdict != Verdict.INCONCLUSIVE.value:
            break
    return summed(seed or 0, done)


def _judged(
    op_fn: Callable[..., Any],
    ref_fn: Callable[..., Any] | None,
    versions: Versions | None,
    case: TestCase,
    names: Sequence[str],
    op_name: str,
    limits: Mapping[str, Any],
    convert: Callable[[Any], Any],
) -> ValidationResult:
    inputs = case.tensors(names)
    try:
        returned = caller(op_fn, inputs)({n: convert(a) for n, a in inputs.items()})
        actual = outputs_by_name(returned)
    except Exception as error:
        return raised_result(op_name, case.seed, f"{type(error).__name__}: {error}")
    if ref_fn is None or versions is None:
        failures = _finite_only(actual, inputs)
        looked_at = sum(np.size(array) for array in actual.values())
        verdict = decide(bool(failures), looked_at)
        return ValidationResult(
            passed=verdict is Verdict.PASSED,
            seed=case.seed,
            op_name=op_name,
            failures=failures,
            verdict=verdict.value,
            compared=to_builtins(Elements(looked_at, 0, looked_at)),
        )
    try:
        expected = caller(ref_fn, inputs)(widened(inputs))
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        return raised_result(op_name, case.seed, text, FailureKind.REFERENCE)
    return compare(
        actual,
        expected,
        inputs=inputs,
        op_name=op_name,
        seed=case.seed,
        **limits,
        reference=reference_of(versions, lambda function, given: caller(function, inputs)(given)),
    )


def _finite_only(outputs: Mapping[str, Any], inputs: Mapping[str, Any]) -> list[FailureInfo]:
    """Judge an op without a reference: return a failure for each output with NaN or Inf.

    If an input contains NaN or Inf, return no failures.
    """
    if not all(np.isfinite(to_float64(a)).all() for a in inputs.values()):
        return []
    return [
        FailureInfo(FailureKind.NAN.value, f"{name!r} holds NaN or Inf", output=name)
        for name, array in outputs.items()
        if not np.isfinite(to_float64(array)).all()
    ]
