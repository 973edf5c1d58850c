"""What really is the cause of each bug of `element_bugs.py`, written before any cause was looked at.

The first eight are of the kind that a stranger planted; the values and indices are exact, so that a
statement has to name the threshold, too.
"""

from __future__ import annotations

from dataclasses import dataclass

from truths import Dim, Dims, Layout, Planted, Relation, Value, above


@dataclass(frozen=True)
class Element:
    """It fails at elements for which an input's value is so.

    Attributes
    ----------
    inputs : tuple of str
        Any of them may be named.
    kinds : tuple of str
        ``above``, ``below``, ``magnitude_above``, ``magnitude_below``, ``equal``, ``odd``,
        ``infinite``; any may be named.
    value : float
        The true threshold; one that is stated may be off by a fifth of it.
    """

    inputs: tuple[str, ...]
    kinds: tuple[str, ...]
    value: float = 0.0


@dataclass(frozen=True)
class Place:
    """It fails at elements whose index is so.

    Attributes
    ----------
    where : str
        ``flat`` (the index among all elements of the output), or ``axis 1``.
    kind : str
        ``from``, ``first``, ``residue``, ``range``, ``tail`` (the last, partial tile).
    numbers : tuple of int
        The index; modulus and remainder; first and end of a range; size of a tile.
    """

    where: str
    kind: str
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Dtype:
    """It fails in this dtype only."""

    name: str


def element(bug: str, op: str, *truths: object, **more: object) -> Planted:
    """One of the bugs of `element_bugs.py`."""
    return Planted(bug, op, truths, module="element_bugs", **more)


HALF = ("float32", "float16")

ELEMENTS = (
    element("scale_clamped", "scale", Element(("x",), ("magnitude_above",), 1000)),
    element("silu_clamped_above", "silu3", Element(("x",), ("above",), 100)),
    element("gelu_identity_from_three", "gelu", Element(("x",), ("above",), 3)),
    element("swiglu_open_gate", "swiglu", Element(("g",), ("above",), 5)),
    element("bias_relu_bias_clamped", "bias_relu", Element(("b",), ("magnitude_above",), 4)),
    element("axpy_flushed", "axpy", Element(("x",), ("magnitude_below",), 0.01)),
    element("gelu_zero", "gelu", Element(("x",), ("equal",), 0), Value(("x",), ("zeros",))),
    element("threshold_inclusive", "threshold", Element(("x",), ("equal",), 2)),
    element(
        "floor_eighth_truncated",
        "floor_eighth",
        Element(("x",), ("below",), 0),
        Value(("x",), ("negative",)),
    ),
    element("log_softmax_clamped", "log_softmax", Element(("x",), ("above",), 80)),
    element("cross_entropy_ignores_zero", "cross_entropy", Element(("labels",), ("equal",), 0)),
    element(
        "gather_wraps",
        "gather",
        Element(("rows",), ("above",), 16),
        Element(("rows",), ("above",), 15),
    ),
    element("gather_pairs", "gather", Element(("rows",), ("odd",))),
    element(
        "scale_finite", "scale", Element(("x",), ("infinite",)), Value(("x",), ("inf",))
    ),
    element("conv1d_negative_input", "conv1d", Element(("x",), ("below",), -8)),
    element(
        "rmsnorm_weight_sign",
        "rmsnorm",
        Element(("w",), ("below",), 0),
        Value(("w",), ("negative",)),
        Relation(("magnitude-input",), ("w",)),
    ),
    element(
        "leaky_wrong_slope",
        "leaky",
        Element(("x",), ("below",), 0),
        Value(("x",), ("negative",)),
    ),
    element("rowmax_from_low", "rowmax", Element(("x",), ("row_top_below",), -50)),
    element(
        "argmax_tie_after_first_tile",
        "argmax",
        together=(above("N", 64), Value(("x",), ("ties", "zeros", "constant"))),
    ),
    element("silu_first_512", "silu3", Place("flat", "from", (512,))),
    element("axpy_first_1024", "axpy", Place("flat", "from", (1024,))),
    element("scale_whole_blocks", "scale", Place("flat", "tail", (128,)), Place("axis 0", "tail", (128,))),
    element("silu_partial_block", "silu3", Place("flat", "tail", (256,))),
    element("transpose_first_columns", "transpose", above("M", 64), Place("axis 1", "from", (64,))),
    element(
        "softmax_second_block",
        "softmax",
        above("N", 128),
        Place("axis 1", "range", (128, 256)),
    ),
    element("bias_relu_later_rows", "bias_relu", above("M", 24), Place("axis 0", "from", (24,))),
    element("axpy_odd", "axpy", Place("flat", "residue", (2, 1))),
    element("silu_fourth_lane", "silu3", Place("flat", "residue", (4, 3))),
    element(
        "matmul_far_tile", "matmul", Place("both", "from", (32, 32)), together=(above("M", 32), above("N", 32))
    ),
    element(
        "matmul_second_rows",
        "matmul",
        above("M", 16),
        Place("axis 0", "range", (16, 32)),
    ),
    element("bmm_later_batches", "bmm", above("B", 2), Place("axis 0", "from", (2,))),
    element("scale_first_element", "scale", Place("axis 0", "first"), Place("flat", "first")),
    element(
        "mean_odd_rows", "mean", above("M", 1), Place("axis 0", "residue", (2, 1)), Place("flat", "residue", (2, 1))
    ),
    element(
        "variance_later_rows", "variance", above("M", 64), Place("axis 0", "from", (64,)), Place("flat", "from", (64,))
    ),
    element("cumsum_from_100", "cumsum", above("N", 100), Place("axis 1", "from", (100,))),
    element("l2norm_even_width", "l2norm", Dim("N", lambda n: n % 2 == 0)),
    element("silu_wide_inner", "silu3", above("C", 96), Place("axis 2", "from", (96,))),
    element("transpose_reshaped", "transpose", Relation(("reshaped",))),
    element("bmm_transposed", "bmm", Dims("K", "N")),
    element("silu_strides", "silu3", Layout("x")),
    element("cumsum_other_axis", "cumsum", Relation(("wrong-axis",), ("0",))),
    element("rmsnorm_half_sum", "rmsnorm", Dtype("float16"), dtypes=HALF),
    element("scale_half", "scale", Dtype("float16"), dtypes=HALF),
)
"""In the order of `element_bugs.py`; every third is held out."""
