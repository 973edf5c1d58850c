"""Basic types: dtypes, layouts, strategies, verdicts, cases and results, without numpy."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field, to_builtins

from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.kernel_findings import KernelFinding
from gpuemu_flow.model.value_rules import CORE_STRATEGIES as CORE_STRATEGIES  # noqa: PLC0414
from gpuemu_flow.model.value_rules import STRATEGIES as STRATEGIES  # noqa: PLC0414
from gpuemu_flow.model.value_rules import STRESS_STRATEGIES as STRESS_STRATEGIES  # noqa: PLC0414
from gpuemu_flow.model.value_rules import InputSpec as InputSpec  # noqa: PLC0414 - others import it here
from gpuemu_flow.model.value_rules import always as always  # noqa: PLC0414

Json = Any  # a value that json.dumps accepts: None, bool, int, float, str, list, dict
Shape = tuple[int, ...]


class DType(Struct, frozen=True):
    """Name, size and family of an element type."""

    name: str  # canonical lower-case name, as in the wire protocol
    itemsize: int  # Bytes per element
    kind: str  # ``float``, ``int``, ``uint`` or ``bool``; for outputs also ``complex``


DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        DType("float16", 2, "float"),
        DType("bfloat16", 2, "float"),
        DType("float8_e4m3fn", 1, "float"),
        DType("float8_e5m2", 1, "float"),
        DType("float32", 4, "float"),
        DType("float64", 8, "float"),
        DType("int8", 1, "int"),
        DType("int16", 2, "int"),
        DType("int32", 4, "int"),
        DType("int64", 8, "int"),
        DType("uint8", 1, "uint"),
        DType("uint16", 2, "uint"),
        DType("uint32", 4, "uint"),
        DType("uint64", 8, "uint"),
        DType("bool", 1, "bool"),
    )
}

COMPLEX: dict[str, DType] = {
    d.name: d for d in (DType("complex64", 8, "complex"), DType("complex128", 16, "complex"))
}
"""Further dtypes, which only outputs may have."""

ELEMENT_TYPES = {**DTYPES, **COMPLEX}
MAX_DIMS = 32  # numpy 1.x's own limit

DTYPE_ALIASES: dict[str, str] = {
    "f16": "float16", "half": "float16", "fp16": "float16",
    "bf16": "bfloat16",
    "f32": "float32", "float": "float32", "fp32": "float32",
    "f64": "float64", "double": "float64", "fp64": "float64",
    "f8_e4m3": "float8_e4m3fn", "fp8_e4m3": "float8_e4m3fn", "float8_e4m3": "float8_e4m3fn",
    "f8_e5m2": "float8_e5m2", "fp8_e5m2": "float8_e5m2",
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
    "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
    "boolean": "bool",
}  # fmt: skip


def canonical_dtype(name: str) -> str | None:
    """Return the canonical dtype name for a name or alias in any case, or None when unknown."""
    lower = name.strip().lower()
    lower = DTYPE_ALIASES.get(lower, lower)
    return lower if lower in DTYPES else None


LAYOUTS = ("contiguous", "strided", "transposed", "offset", "padded", "permuted", "expanded")

FRAMEWORK_KINDS = ("torch", "jax", "numpy")
"""Kinds of programs whose functions take tensors of the package of that name."""
XLA_COMPILED, XLA_STEPWISE = "compiled", "stepwise"
"""Arguments of a JAX program: XLA compiles its function as a whole, or does not."""
IN_PROCESS = ("callable", *FRAMEWORK_KINDS, "triton")
"""Kinds of programs that are Python functions, to which inputs are passed by their signature."""

STRATEGY_GROUPS = {"core": CORE_STRATEGIES, "stress": STRESS_STRATEGIES}

ACCURACIES = ("element", "norm")
PRECISIONS = ("tensor-core", "float32", "input")
"""Names for the values that a correct op may round to a dtype narrower than float32. ``float32``
means only its outputs, ``tensor-core`` its outputs and the operands of matrix products, and
``input`` the values of every step."""

INVARIANTS = (
    "shape_preserved", "non_negative", "finite", "no_nan", "no_inf", "symmetric", "normalized",
)  # fmt: skip


class Verdict(str, enum.Enum):
    """Verdict on a case or an op."""

    PASSED = "passed"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"
    SKIPPED = "skipped"
    ERROR = "error"


BAD = (Verdict.FAILED, Verdict.ERROR)
"""Verdicts that somebody has to look into."""


class FailureKind(str, enum.Enum):
    """Kind of a failure. The first seven kinds have the names of wire protocol v1."""

    TOLERANCE = "ToleranceExceeded"
    NAN = "NaNDetected"
    INF = "InfDetected"
    SHAPE = "ShapeMismatch"
    DTYPE = "DTypeMismatch"
    INVARIANT = "InvariantViolation"
    REFERENCE = "ReferenceError"
    EXECUTION = "ExecutionError"
    INPUT_MODIFIED = "InputModified"
    UNWRITTEN = "OutputNotWritten"
    OUT_OF_BOUNDS = "OutOfBoundsWrite"
    OUT_OF_BOUNDS_READ = "OutOfBoundsRead"
    NON_DETERMINISTIC = "NonDeterministic"
    MISALIGNED = "MisalignedAccess"
    UNINITIALIZED_READ = "UninitializedRead"
    RACE = "DataRace"
    BARRIER = "BarrierMisuse"
    TRAP = "KernelTrap"
    KERNEL_BYPASSED = "KernelBypassed"
    GENERATOR = "GeneratorError"
    OUTPUT_NAMES = "OutputNamesMismatch"


def listed(value: Json) -> Json:
    """Return plain JSON with lists in place of tuples, as it is read back after it was stored."""
    if isinstance(value, dict):
        return {key: listed(each) for key, each in value.items()}
    return [listed(each) for each in value] if isinstance(value, list | tuple) else value


class Case(Struct, frozen=True):
    """One test case: everything that determines its input tensors, not the tensors themselves."""

    # Index in the op's sequence of cases. It is not part of the case's identity.
    index: int
    seed: int  # seed of the case, an unsigned 64-bit integer that is shown to users
    # Dtype, layout and strategy of the case as a whole; single inputs may differ
    dtype: str
    layout: str
    strategy: str
    inputs: tuple[InputSpec, ...]
    target: str | None = None  # input to which `layout` and `strategy` apply; None for all inputs
    # Class of shapes that this case represents (``tail``, ``pow2_plus_1``, ``equal``, ...)
    shape_class: str = ""
    dims: tuple[tuple[str, int], ...] = ()  # Symbolic dims in schema order

    @property
    def numel(self) -> int:
        """Return the number of elements of all inputs."""
        total = 0
        for spec in self.inputs:
            n = 1
            for d in spec.shape:
                n *= d
            total += n
        return total

    @property
    def nbytes(self) -> int:
        """Return the size of all inputs together, in bytes."""
        return sum(DTYPES[s.dtype].itemsize * math.prod(s.shape) for s in self.inputs)

    def to_json(self) -> dict[str, Json]:
        """Return plain JSON; `from_json` is its inverse."""
        plain: dict[str, Json] = to_builtins(self)
        return plain

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> Case:
        """Undo `to_json`; raise ValueError for other data."""
        return convert(data, cls)

    def to_text(self) -> str:
        """Return the case as one word for a command line; only the op and the seed are not in it.

        In ``float32/a=3x5:normal,b=5x7:large:strided``, the case's dtype is followed by the shape,
        strategy, layout and dtype of each input. A contiguous layout and the case's dtype are left
        out. An input may end with ``ends1turn2``: the numbers are `InputSpec.ends` and
        `InputSpec.turn`, and a number of 0 is left out.
        """
        parts = []
        for spec in self.inputs:
            own = "" if spec.dtype == self.dtype else spec.dtype
            layout = "" if spec.layout == "contiguous" else spec.layout
            words = ["x".join(map(str, spec.shape)), spec.strategy, layout, own, spec.demands]
            parts.append(f"{spec.name}={':'.join(words).rstrip(':')}")
        return f"{self.dtype}/{','.join(parts)}"

    def identity(self) -> dict[str, Json]:
        """Return the part of the case that action keys contain: everything except `index`."""
        out = self.to_json()
        del out["index"], out["shape_class"]
        return out


class Tolerance(Struct, frozen=True):
    """The tolerance ``|actual - expected| <= atol + rtol * |expected|``, and its origin."""

    atol: float
    rtol: float
    origin: str = "table"


class Failure(Struct, frozen=True, omit_defaults=True):
    """One reason why a case failed."""

    kind: FailureKind
    message: str
    output: str = always("")  # name of the output tensor; empty if the failure concerns all outputs
    index: Shape | None = always(None)  # Multi-index of the worst (or first) element
    # Values at `index`. In JSON, NaN and infinities are strings.
    expected: float | None = always(None)
    actual: float | None = always(None)
    # For a compiled kernel, the finding with its source line; `message` is the finding's text
    finding: KernelFinding | None = None
    # If a program gave no outputs: the name of its exception, else the error's slug
    why: str = always("")
    place: str = always("")  # ``file:line`` where the program failed; empty if unknown

    @classmethod
    def of_kernel(cls, kind: FailureKind, finding: KernelFinding) -> Failure:
        """Make a failure from a finding of a kernel check."""
        return cls(kind, str(finding), finding=finding)


class ErrorStats(Struct, frozen=True):
    """The errors of one comparison; all are zero for empty tensors.

    ``max_ulp`` is measured in the output's own dtype. ``tolerance_used`` is the largest ratio of a
    finite element's error to its tolerance; up to 1.0 passes. ``num_no_verdict`` counts elements
    without a verdict. ``num_finite`` counts the other elements whose expected value is finite.
    """

    count: int = 0
    num_exceeding: int = 0
    num_no_verdict: int = 0
    num_finite: int = 0
    max_abs: float = 0.0
    mean_abs: float = 0.0
    p50_abs: float = 0.0
    p90_abs: float = 0.0
    p99_abs: float = 0.0
    max_rel: float = 0.0
    mean_rel: float = 0.0
    max_ulp: float = 0.0
    mean_ulp: float = 0.0
    tolerance_used: float = 0.0
    worst_index: Shape | None = None
    worst_expected: float | None = None
    worst_actual: float | None = None

    @property
    def unjudged(self) -> float:
        """Return the share of the elements without a verdict."""
        return self.num_no_verdict / self.count if self.count else 0.0


class WeakOutput(Struct, frozen=True):
    """Facts that weaken the evidence of the comparison of one output in one case."""

    name: str
    # The only value that the finite elements are expected to have; None if there are several
    value: float | None = None
    zeros: bool = False  # true if zeros would pass because of an explicit tolerance


class Lean(Struct, frozen=True):
    """How far the errors of one output in one case lean to one side; see `verdicts.Tally`."""

    name: str
    mean: float  # mean of the signed errors in ulp; above 0 where results are too large
    count: int  # number of elements in the mean
    cut: bool = False  # true if nearly all results lie one rounding toward zero, as if truncated


class CheckResult(Struct, frozen=True, omit_defaults=True):
    """Verdict on one case's outputs.

    Raises ValueError: The verdict is a pass although no element was compared.
    """

    verdict: Verdict
    failures: tuple[Failure, ...] = always(())
    stats: ErrorStats = field(default_factory=ErrorStats)
    notes: tuple[str, ...] = always(())  # Our own remarks, as sentences
    empty: tuple[str, ...] = always(())  # names of outputs without elements
    # Outputs that are expected to have a single value, or for which zeros would pass
    weak: tuple[WeakOutput, ...] = always(())
    stderr: str = ""  # the end of a program's standard error
    stdout: str = ""  # the end of the standard output of a program that gave no outputs
    printed: str = ""  # text that an emulated kernel printed
    blank: bool = False  # true if all elements of all inputs are 0 or NaN
    # True if a case without a verdict says nothing about the op: all outputs are empty for these
    # inputs, or the inputs are beyond what users feed
    uncounted: bool = False
    # One item for each output in a narrow float type that the tolerance ``auto`` judged
    lean: tuple[Lean, ...] = always(())

    def __post_init__(self) -> None:
        compared = self.stats.count - self.stats.num_no_verdict
        if self.verdict is Verdict.PASSED and not compared > 0:
            raise ValueError("passed with nothing compared")

    @property
    def all_notes(self) -> tuple[str, ...]:
        """Return the notes, followed by the programs' own output, as in JSON documents."""
        if not (self.printed or self.stdout or self.stderr):
            return self.notes
        written = (("printf", self.printed), ("stdout", self.stdout), ("stderr", self.stderr))
        return (*self.notes, *(f"{name}:\n{text}" for name, text in written if text))

    def to_json(self) -> dict[str, Json]:
        """Return plain JSON, with numbers in the form of `number_to_json`."""
        plain: dict[str, Json] = to_builtins(self, enc_hook=_number)
        plain["failures"] = [_numbers_to_json(failure) for failure in plain["failures"]]
        plain["stats"] = _numbers_to_json(plain["stats"])
        plain["notes"] = self.all_notes
        return plain

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> CheckResult:
        """Undo `to_json`; raise KeyError, TypeError or ValueError for other data."""
        # The last notes are these; see `all_notes`.
        written = sum(bool(data.get(name)) for name in ("stderr", "stdout", "printed"))
        own = data["notes"][: len(data["notes"]) - written]
        return convert({**data, "notes": own}, cls, strict=False)  # which reads "NaN" as a float


def _number(value: Json) -> Json:
    """Return the Python number of one of numpy's."""
    return value.item()


def number_to_json(value: Json) -> Json:
    """Convert NaN and infinities, which JSON lacks, to strings; return other values unchanged."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _numbers_to_json(values: Mapping[str, Json]) -> dict[str, Json]:
    """Return the values; convert those that JSON cannot represent to strings."""
    out = dict(values)
    for name, value in values.items():
        if isinstance(value, float) and value - value != 0.0:
            out[name] = number_to_json(value)
    return out


def number_from_json(value: Json) -> Json:
    """Undo `number_to_json`."""
    return float(value) if isinstance(value, str) and value in _NON_FINITE else value


_NON_FINITE = ("NaN", "Infinity", "-Infinity")


def failure_to_json(failure: Failure) -> dict[str, Json]:
    """Return a failure as plain JSON."""
    return _numbers_to_json(to_builtins(failure, enc_hook=_number))


def failure_from_json(data: Mapping[str, Json]) -> Failure:
    """Undo `failure_to_json`; raise ValueError for other data."""
    return convert(data, Failure, strict=False)


LEAST_RANKS = {"padded": 2, "permuted": 3}
"""Number of dims that a tensor needs for some layouts; with fewer dims, it gets another layout."""


def effective_layout(layout: str, shape: Shape) -> str:
    """Return the layout that a tensor of `shape` really has when `layout` is asked for.

    Raises ValueError when there is no such layout.
    """
    if layout == "transposed" and (len(shape) < 2 or min(shape[-2:]) < 2):
        layout = "strided"
    if layout == "permuted" and (len(shape) < 3 or min(shape[-3:-1]) < 2):
        layout = "padded"
    if layout == "padded" and not any(size > 1 for size in shape[:-1]):
        layout = "strided"
    if layout == "strided":
        return "strided" if any(size > 1 for size in shape) else "contiguous"
    if layout == "expanded":
        return "expanded" if any(size > 1 for size in shape) else "contiguous"
    if layout not in ("contiguous", "transposed", "offset", "padded", "permuted"):
        raise ValueError(f"there is no layout {layout!r}")
    return layout


WIDE, SINGLE, OWN = "float64", "float32", None
"""Dtypes of float inputs; `OWN` stands for each input's own dtype."""


def dtypes_to_try(*, widened: bool, single: bool = False) -> tuple[str | None, ...]:
    """List the dtypes in which to give a reference its float inputs, until it returns outputs.

    A reference refuses a dtype if it raises, exits, crashes or hangs. It is then given the next
    dtype; None stands for the inputs' own dtypes. If it refuses all dtypes, the error for the last
    dtype is reported.
    """
    wider = (WIDE, SINGLE) if single else (WIDE,)
    return (*wider, OWN) if widened else (OWN,)
