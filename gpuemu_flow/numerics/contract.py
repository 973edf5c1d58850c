"""Output contracts as data: all that the configuration says about one output."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from gpuemu_flow.model.types import DTYPES, Number, Tolerance

OWN_TOLERANCE = "gpuemu.toml, of this output"
UNKNOWN_SIZE = "?"
SAME_AS, PROMOTE = "same as ", "promote"
VIEWS = ("sign", "phase", "permutation")
GRADIENT_PREFIX = "d/d"
"""Beginning of the names of outputs that are gradients; see `numerics.gradients`."""
PARAMETERS = "self"
"""Stands for all parameters of a module among the inputs whose gradients are wanted.

A single parameter is written as ``self.weight``.
"""


class Statistics(Struct, frozen=True):
    """The distribution that the elements of a random output are drawn from."""

    # A number, or the name of an input that holds each element's mean. If empty, the reference's
    # output holds the means.
    mean: str | float = ""
    std: Number | None = None  # Standard deviation of every element
    zeros: Number | None = None  # share of the elements that are 0
    samples: int = 1000  # number of elements that a case needs for a verdict
    false_alarms: Number = 1e-6  # largest share of cases in which a correct op may fail


class CompareRef(Struct, frozen=True):
    """A function of the user's that compares one output."""

    path: str  # the file, relative to the workspace; empty for a function of an installed package
    module: str
    function: str


class Mask(Struct, frozen=True):
    """A test of an input that decides which elements of an output count."""

    input: str
    axes: tuple[int, ...]  # Axes of the output, one for each axis of the input
    # ``true``, ``false``, ``==`` or ``!=`` tests the input's values. With ``<``, an element counts
    # if its index on axis `along` is less than the input's value.
    test: str
    value: Number = 0.0  # Value that ``==`` and ``!=`` compare with
    along: int = 0  # Axis of the output, for ``<``


class OutputContract(Struct, frozen=True, omit_defaults=True):
    """A description of one output."""

    name: str
    # Names of dims and sizes; ``?`` is a size that depends on the inputs' values. None if not
    # declared.
    dims: tuple[str | int, ...] | None = None
    # Canonical name, ``same as INPUT`` or ``promote``; empty for the dtype of the reference's
    # output
    dtype: str = ""
    # Bounds of the output's values, both included
    low: Number | None = None
    high: Number | None = None
    # The output's own tolerance; both None to use that of the op
    atol: Number | None = None
    rtol: Number | None = None
    # Input into which the output's indices point; indices of equal elements are equally correct
    ties: str = ""
    order: bool = False  # true if the elements along `axis` may be in any order
    up_to: str = ""  # Difference from the reference that is allowed: one of `VIEWS`, or empty
    axis: int | None = None  # the axis of `ties`, `order` and `up_to`
    only: Mask | None = None  # the mask of the elements that count; None if all do
    compare: CompareRef | None = None
    statistics: Statistics | None = None

    @property
    def tolerance(self) -> Tolerance | None:
        if self.ties:
            return Tolerance(0.0, 0.0, "equal values")
        if self.atol is None and self.rtol is None:
            return None
        return Tolerance(self.atol or 0.0, self.rtol or 0.0, OWN_TOLERANCE)

    @property
    def plain(self) -> bool:
        """Tell whether every element is compared with the expected one at the same index."""
        views = self.ties or self.order or self.up_to or self.only is not None
        return not views and not self.apart

    @property
    def of_form(self) -> bool:
        """Tell whether the contract declares only dims and dtype, and nothing about values."""
        return self == OutputContract(self.name, self.dims, self.dtype)

    @property
    def in_place(self) -> bool:
        """Tell whether elements are compared with the expected ones at the same index. The result
        is True even if a mask leaves out elements, whereas `plain` is then False."""
        return not (self.ties or self.order or self.up_to or self.apart)

    @property
    def apart(self) -> bool:
        """Tell whether the output is judged as a whole, not element by element."""
        return self.compare is not None or self.statistics is not None


def parameter_name(of: str) -> str:
    """Return a module parameter's name among an op's inputs: ``self.weight`` for ``weight``."""
    return f"{PARAMETERS}.{of}"


def names_parameter(name: str) -> bool:
    return name == PARAMETERS or name.startswith(f"{PARAMETERS}.")


DEFAULT_ORIGIN = "default"

DEFAULTS: dict[str, float] = {
    "float64": 1e-10,
    "float32": 1e-5,
    "float16": 1e-2,
    "bfloat16": 1e-2,
    # One step at the bottom of a binade, as 1e-2 nearly is for bfloat16: two right ops may round to
    # neighbouring values, and nothing finer can be asked of these formats.
    "float8_e4m3fn": 0.125,
    "float8_e5m2": 0.25,
}
"""``atol = rtol`` per float dtype, as gpuemu documents them; integers and booleans are exact."""


class PartialTolerance(Struct, frozen=True):
    """A tolerance as one table gives it for one dtype; None leaves a value to the next table."""

    atol: float | None = None
    rtol: float | None = None


ToleranceTable = Mapping[str, PartialTolerance]


def default_tolerance(dtype: str) -> Tolerance:
    """Return the documented default of a dtype from `DEFAULTS`; integers and booleans are exact. An
    unknown dtype gets the default of float32."""
    known = DTYPES.get(dtype)
    value = DEFAULTS["float32"] if known is None else DEFAULTS.get(dtype, 0.0)
    return Tolerance(value, value, DEFAULT_ORIGIN)


def resolve(
    dtype: str,
    op_tolerances: ToleranceTable | None = None,
    validation_tolerances: ToleranceTable | None = None,
    *,
    call: PartialTolerance | None = None,
    kernel_tolerances: ToleranceTable | None = None,
) -> Tolerance:
    """Return the tolerance of one dtype: `atol` and `rtol`, each from the first table that sets it.
    The tables are, in order: the call itself, ``[ops.tolerances]``, the kernel's tolerances,
    ``[validation.tolerances]``, the documented defaults."""
    places: list[tuple[str, PartialTolerance | None]] = [("call", call)]
    for name, table in (
        ("op", op_tolerances),
        ("kernel", kernel_tolerances),
        ("validation", validation_tolerances),
    ):
        places.append((name, table.get(dtype) if table else None))
    default = default_tolerance(dtype)
    atol, atol_from = default.atol, DEFAULT_ORIGIN
    rtol, rtol_from = default.rtol, DEFAULT_ORIGIN
    for name, given in reversed(places):
        if given is None:
            continue
        if given.atol is not None:
            atol, atol_from = given.atol, name
        if given.rtol is not None:
            rtol, rtol_from = given.rtol, name
    same = atol_from == rtol_from
    return Tolerance(atol, rtol, atol_from if same else f"atol {atol_from}, rtol {rtol_from}")
