"""Basic types without numpy: dtypes, layouts, recipes of inputs, cases, results, findings."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace

# Recipes of inputs, as data: shape, dtype, strategy, range, and further rules for the values.

Bound = int | float | str
"""A number, or an expression of dims such as ``V-1``."""

Number = int | float
T = TypeVar("T")


Shape = tuple[int, ...]

CORE_STRATEGIES = ("uniform", "normal", "small", "negative", "sparse", "ties", "integers")
STRESS_STRATEGIES = ("wide", "offset", "extremes", "special")
STRATEGIES = CORE_STRATEGIES + STRESS_STRATEGIES
PLAIN_STRATEGIES = ("normal", "uniform")
"""Strategies whose values hide no error."""


class Unused(Struct, frozen=True):
    """The elements of an input beyond a length: those of an index along an axis that is too large.

    Each axis of the input that holds the lengths is one of this input's `axes`. With a `table`, an
    input of integers, this input's first axis has pages: row b continues in page ``table[b, 1]``.
    """

    lengths: str
    along: int
    axes: tuple[int, ...] = ()
    table: str = ""

    @property
    def others(self) -> tuple[str, ...]:
        """Return the inputs that say which elements are unused."""
        return (self.lengths, self.table) if self.table else (self.lengths,)


class ValueRule(Struct, frozen=True, omit_defaults=True):
    """Rules for the values of one input, which hold under every strategy."""

    kind: str = ""  # one of `KINDS`; empty for values that only have bounds
    # Bounds, both included; expressions of dims are computed for each case
    low: Bound | None = None
    high: Bound | None = None
    # Values to insert among the others; if there is no other rule, the only values
    # ("inf", "-inf" and "nan" are words here, which JSON can hold)
    values: tuple[bool | Number | str, ...] = ()
    # Fraction of elements taken from `values`; for a mask, fraction of true elements
    share: float | None = None
    # True to draw NaN and Inf, too; False to draw none; None if the range decides
    nonfinite: bool | None = None
    to: int | str | None = None  # for offsets, the last value; for lengths, the largest length
    of: str = ""  # the input into which indices point, or which has the scale of a quantized input
    axis: int = 0  # the axis of `of`
    bits: int = 0  # number of bits of a quantized value
    descending: bool = False  # true if sorted values decrease
    allow_empty_rows: bool = False  # true if a row of a mask may be all false
    total: int | str | None = None  # sum of the values
    # Relation of each element to the corresponding element of another input: ``<=``, ``<``, ``>=``,
    # ``>``, ``==``, ``!=``, or ``cumsum``: the offsets of the other input's lengths
    relation: str = ""
    other: str = ""
    # Relations between places of the last axis, as of boxes: ``(0, "<=", 2)``
    columns: tuple[tuple[int, str, int], ...] = ()
    unused: Unused | None = None  # the elements that no op may use, which hold NaN and Inf
    optional: bool = False  # true if None replaces the input in some cases
    # For a scalar that is not a number, the possible values; the input is an index into them
    choices: tuple[Any, ...] = ()
    generate: str = ""  # the user's function that returns the values, as ``file.py:function``

    @property
    def numbers(self) -> tuple[Number, ...]:
        """Return `values` as numbers."""
        return tuple(float(v) if isinstance(v, str) else v for v in self.values)

    @property
    def concerns_whole(self) -> bool:
        """Tell whether the rule concerns the input as a whole, not each element by itself."""
        return bool(self.kind and self.kind not in ELEMENTWISE) or bool(
            self.relation or self.total is not None or self.generate or self.columns
        )


PATTERNS: dict[str, tuple[str, ...]] = {
    "permutation": ("random", "identity", "reversed", "rotated", "swapped_ends"),
    "sorted": ("random", "ties", "constant", "ends", "steps"),
    "offsets": (
        "random", "even", "empty_first", "empty_last", "all_in_one", "all_in_last", "every_other",
    ),
    "lengths": ("random", "full", "one_full", "short", "alternate"),
    "mask": ("random", "all", "prefix", "suffix", "one_first", "one_last", "alternate", "empty"),
    "one_hot": ("random", "first", "last", "diagonal"),
    "positive": ("random", "tiny", "large", "wide", "ones"),
    "probabilities": ("random", "even", "certain", "zeros", "tiny_tail"),
    "symmetric": ("random", "diagonal", "zero", "rank_one", "ties", "graded"),
    "positive_definite": ("random", "identity", "diagonal", "nearly_singular", "graded"),
    "unique": ("random", "consecutive", "spread", "descending"),
    "indices": ("random", "ends", "last", "first", "ascending", "few", "descending"),
    "quantized": ("random", "full", "saturated", "zero_rows", "small"),
    "packed": ("random", "low_only", "high_only", "ends", "all_values"),
}  # fmt: skip
"""The adversarial strategies of each kind, in the order in which cases take them."""

SCALAR = "scalar"
"""The kind of arguments that are Python numbers; its values are taken in turn."""
ABSENT = "absent"
"""The strategy of an optional input in a case that has None in its place."""
PATTERNS[SCALAR] = ("random", "lowest", "highest", "near_lowest")

RAGGED = ("offsets", "lengths")
"""Kinds of ragged batches."""
KINDS = tuple(kind for kind in PATTERNS if kind != SCALAR)
ELEMENTWISE = ("positive", "indices", "packed")
"""Kinds whose elements do not depend on each other."""


def is_kept_finite(
    kind: str, low: Bound | None, high: Bound | None, rule: ValueRule | None
) -> bool:
    """Tell whether an input's range is the only reason why it gets no NaN or Inf."""
    if kind != "float":
        return False
    if rule is not None:
        if rule.kind or rule.nonfinite is not None or {"inf", "-inf", "nan"} & {*rule.values}:
            return False
        low, high = (low, high) if rule.low is None else (rule.low, rule.high)
    return low is not None and high is not None


def strategies_of(rule: ValueRule | None) -> tuple[str, ...]:
    known: tuple[str, ...] = STRATEGIES
    if rule is not None and rule.kind == SCALAR and rule.values:
        known = tuple(f"pick{n}" for n in range(len(rule.values)))
    elif rule is not None and rule.kind:
        known = PATTERNS[rule.kind]
    return (*known, ABSENT) if rule is not None and rule.optional else known


GENERATE_FAILED_SLUG, GENERATE_RESULT_SLUG = "generate-failed", "generate-result"
GENERATE_DIFFERS_SLUG, NOT_CALLED_SLUG = "generate-nondeterministic", "generate-not-called"
GENERATOR_SLUGS = (
    GENERATE_FAILED_SLUG, GENERATE_RESULT_SLUG, GENERATE_DIFFERS_SLUG, NOT_CALLED_SLUG,
)  # fmt: skip


class GeneratedValues(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Values that the user's function returned for one input, or the reason why there are none."""

    data: str = ""  # the array's bytes in C order, compressed, in base 64
    # The error of the function; empty if there was none
    slug: str = ""
    message: str = ""
    hint: str = ""
    file: str = ""  # file of the function, relative to the workspace
    line: int = 0  # line of the error in `file`; 0 if unknown


def always(value: T) -> T:
    """Return a field's default that JSON states all the same, in a struct that omits defaults."""
    return field(default_factory=lambda: value)


class InputSpec(Struct, frozen=True, omit_defaults=True):
    """Recipe of one input tensor of a case."""

    name: str
    shape: Shape
    dtype: str  # canonical dtype name
    # One of `types.LAYOUTS`: the real layout of the tensor in memory
    layout: str = always("contiguous")
    # The way in which the values are drawn: one of `types.STRATEGIES` or, if the rule has a kind,
    # one of the strategies that `PATTERNS` has for this kind
    strategy: str = always("uniform")
    # Index in the op's ``input_names``; it names the random stream (``input_<position>``)
    position: int = always(0)
    # Range of the values from the op's schema, both ends included
    low: Number | None = always(None)
    high: Number | None = always(None)
    # If above 0, both ends of the range are inserted among the values. Only the first cases of a
    # run in which the input has this range get the ends; `ends` numbers these cases from 1.
    ends: int = 0
    # Number of the variety of values that the input shows, counted from 1; 0 leaves the variety to
    # chance. The first cases with a strategy show its varieties in turn; see `cases.generate`.
    turn: int = 0
    # Constants of the op's and the reference's sources: they and the numbers next to them are among
    # the values
    near: tuple[float, ...] = ()
    rule: ValueRule | None = None  # further rules of the schema for the values
    # The values, if the rule names a function that returns them and the function was called
    given: GeneratedValues | None = None

    @property
    def is_generated(self) -> bool:
        """Tell whether the values come from the user's function."""
        return self.rule is not None and bool(self.rule.generate) and self.strategy != ABSENT

    @property
    def has_values(self) -> bool:
        """Tell whether the values can be made now. They cannot if the user's function that returns
        them has not been called yet or has failed."""
        return not self.is_generated or (self.given is not None and not self.given.slug)

    @property
    def demands(self) -> str:
        """Return `ends`, `turn` and `near` as a word, such as ``ends1turn2near20.0_-0.5``. Those
        that demand nothing are left out."""
        counted = {"ends": self.ends, "turn": self.turn, "near": "_".join(map(repr, self.near))}
        return "".join(f"{name}{count}" for name, count in counted.items() if count)


# Findings of the checks of compiled kernels, with messages and source lines as data.

THERE = "{there}"
"""Placeholder, in a finding's `words`, for the second place of the finding."""

TITLES = {
    "mem": "memcheck",
    "init": "initcheck",
    "race": "racecheck",
    "sync": "synccheck",
    "order": "ordercheck",
    "trap": "trap",
}
"""Names of the checks as compute-sanitizer has them."""


class CodePlace(Struct, frozen=True):
    """The place of an instruction."""

    file: str = ""  # Source file, relative to the workspace if inside; empty if unknown
    line: int = 0  # line in `file`, 1-based; 0 if unknown
    # Line (1-based) in the PTX without comments and line information; 0 if unknown. Unlike `line`,
    # it does not change when a comment is added to the source.
    code: int = 0

    @property
    def is_inside(self) -> bool:
        """Tell whether the place is a line of a workspace file, which an editor can show."""
        return bool(self.line and self.file) and not self.file.startswith(("/", "../"))

    def __str__(self) -> str:
        if self.line:
            return f"{self.file.rpartition('/')[2]}:{self.line}"
        return f"PTX line {self.code}"


class KernelFinding(Struct, frozen=True):
    """One error that a check found at one place."""

    # ``mem``, ``init``, ``race``, ``sync``, ``order`` or ``trap``
    check: str
    rule: str  # Kind of mistake, kebab-case
    kernel: str  # name of the entry
    instruction: str  # Short name of the instruction, such as ``ld.shared``
    words: str  # Message, in which `THERE` stands for the line of `there`
    place: CodePlace
    there: CodePlace | None  # for a race, the other access; for a barrier, the other barrier
    # Indices (x, y, z) of the first block and thread with the error
    block: tuple[int, ...]
    thread: tuple[int, ...]
    count: int  # number of occurrences, over all threads

    @property
    def message(self) -> str:
        """Describe what happened, without check and place."""
        there = "" if self.there is None else str(self.there)
        return f"{self.instruction} {self.words.replace(THERE, there)}".strip()

    def __str__(self) -> str:
        times = "once" if self.count == 1 else f"{self.count:,} times"
        where = str(self.place) if self.place.line else f"{self.kernel} ({self.place})"
        if not self.kernel and not self.place.line:  # host code without line information
            where = "host code (no line: build with -g)"
        return f"{TITLES.get(self.check, self.check)}: {where} {self.message} · {times}"

    def moved(self, now: Callable[[CodePlace], CodePlace]) -> KernelFinding:
        """Return a copy of the finding in which ``now(place)`` replaces each place."""
        there = None if self.there is None else now(self.there)
        return replace(self, place=now(self.place), there=there)


Json = Any  # a value that json.dumps accepts: None, bool, int, float, str, list, dict


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
        total = 0
        for spec in self.inputs:
            n = 1
            for d in spec.shape:
                n *= d
            total += n
        return total

    @property
    def nbytes(self) -> int:
        return sum(DTYPES[s.dtype].itemsize * math.prod(s.shape) for s in self.inputs)

    @property
    def is_plain(self) -> bool:
        """Tell whether no input has values that may hide an error, such as zeros or equal ones."""
        drawn = (spec for spec in self.inputs if spec.shape and spec.strategy in STRATEGIES)
        return not any(
            spec.strategy not in PLAIN_STRATEGIES or spec.turn or spec.layout == "expanded"
            for spec in drawn
        )

    def to_text(self) -> str:
        """Return the case as one word for a command line; only the op and the seed are not in it.
        In ``float32/a=3x5:normal,b=5x7:large:strided``, the case's dtype is followed by the shape,
        strategy, layout and dtype of each input. A contiguous layout and the case's dtype are left
        out. An input may end with ``ends1turn2``: the numbers are `InputSpec.ends` and
        `InputSpec.turn`, and a number of 0 is left out."""
        parts = []
        for spec in self.inputs:
            own = "" if spec.dtype == self.dtype else spec.dtype
            layout = "" if spec.layout == "contiguous" else spec.layout
            words = ["x".join(map(str, spec.shape)), spec.strategy, layout, own, spec.demands]
            parts.append(f"{spec.name}={':'.join(words).rstrip(':')}")
        return f"{self.dtype}/{','.join(parts)}"

    def identity(self) -> dict[str, Json]:
        """Return the part of the case that action keys contain: everything except `index`."""
        out: dict[str, Json] = to_builtins(self)
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
    """The errors of one comparison; all are zero for empty tensors. ``max_ulp`` is measured in the
    output's own dtype. ``tolerance_used`` is the largest ratio of a finite element's error to its
    tolerance; up to 1.0 passes. ``num_no_verdict`` counts elements without a verdict.
    ``num_finite`` counts the other elements whose expected value is finite."""

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


TOP_BINADES = 3
"""Number of binades, from the largest value down, in which the relative errors decide ``rtol``."""


class MeasuredErrors(Struct, frozen=True):
    """The errors of a trusted implementation in one case, in the outputs of one dtype."""

    dtype: str
    max_abs: float  # largest ``|actual - expected|`` over the elements where both values are finite
    # Pairs (e, r), e falling: r is the largest ``|actual - expected| / |expected|`` over the
    # elements with ``2**e <= |expected| < 2**(e + 1)``. Left out is an r that a larger e has, too.
    relative: tuple[tuple[int, float], ...] = ()
    at_zero: float = 0.0  # largest ``|actual|`` where the expected value is 0
    mismatches: int = 0  # elements whose actual or expected value, but not both, is NaN or Inf

    @property
    def at_the_top(self) -> float:
        """Return the largest relative error among the elements of largest magnitude."""
        top = self.relative[0][0] if self.relative else 0
        return max((r for e, r in self.relative if e > top - TOP_BINADES), default=0.0)

    def beyond(self, rtol: float) -> float:
        """Return an upper bound of the largest ``error - rtol * |expected|``. It is at most twice
        too large."""
        excess = ((r - rtol) * 2.0 ** (e + 1) for e, r in self.relative)
        return max(self.at_zero, 0.0, *excess)


class CheckResult(Struct, frozen=True, omit_defaults=True):
    """Verdict on one case's outputs. Raises ValueError: The verdict is a pass although no element
    was compared."""

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
    measured: tuple[MeasuredErrors, ...] = ()  # of outputs that a client submitted

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


LEAST_RANKS = {"padded": 2, "permuted": 3}
"""Number of dims that a tensor needs for some layouts; with fewer dims, it gets another layout."""


def effective_layout(layout: str, shape: Shape) -> str:
    """Return the layout that a tensor of `shape` really has when `layout` is asked for. Raises
    ValueError when there is no such layout."""
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
    """List the dtypes in which to give a reference its float inputs, until it returns outputs. A
    reference refuses a dtype if it raises, exits, crashes or hangs. It is then given the next
    dtype; None stands for the inputs' own dtypes. If it refuses all dtypes, the error for the last
    dtype is reported."""
    wider = (WIDE, SINGLE) if single else (WIDE,)
    return (*wider, OWN) if widened else (OWN,)


# Inputs that a program was seen to use while it ran, as data.


class ConfiguredEnv(Struct, frozen=True):
    """The environment variables that the configuration determines for a program."""

    values: Mapping[str, str] = field(default_factory=dict)
    names: tuple[str, ...] = ()


class Observation(Struct, frozen=True):
    """Everything that a program was seen to use, except its arguments."""

    files: frozenset[str] = frozenset()
    missed: frozenset[str] = frozenset()
    listed: frozenset[str] = frozenset()
    looked: frozenset[str] = frozenset()
    untracked: frozenset[str] = frozenset()

    def __or__(self, other: Observation) -> Observation:
        """Join two observations of the same program."""
        names = self.__struct_fields__
        return Observation(*(getattr(self, name) | getattr(other, name) for name in names))
